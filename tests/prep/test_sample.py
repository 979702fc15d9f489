"""mtl-prep sample: a random choice that depends on the seed alone, as bins and as text."""

import json
from pathlib import Path

import numpy as np
import pytest

from corpus import make_bins, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_prep.finished import sample as module
from mtl_prep.finished.draw import Draw
from mtl_prep.finished.sample import Size, documents, sample
from mtl_prep.finished.verify import verify
from mtl_prep.running.tokenize import Request, tokenize
from preparing import all_bytes, json_lines, prep

TEXTS = [text[:1200] for text in stdlib_texts(50)]


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Bins:
    """Fifty documents in several shards."""
    place = tmp_path_factory.mktemp("sample")
    (place / "a.jsonl").write_bytes(json_lines([*TEXTS[:10], "", *TEXTS[10:]]))
    tokenize(Request((place / "a.jsonl",), tokenizer, place / "bins", 1, shard_tokens=5000))
    return Bins(place / "bins")


def expected(bins: Bins, seed: int, size: Size) -> list[int]:
    """The documents by one sort of all of them."""
    draw = Draw(bins, seed)
    numbers = np.concatenate([draw(bins.shard(i).whole) for i in range(len(bins.manifest.shards))])
    chosen: list[int] = []
    for document in np.argsort(numbers).tolist():
        if size.tokens is None:
            if len(chosen) == size.documents:
                break
        elif sum(len(bins.document(i)) for i in chosen) + len(bins.document(document)) > size.tokens:
            break
        chosen.append(document)
    return sorted(chosen)


@pytest.mark.parametrize("waiting", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    "size", [Size(1), Size(12), Size(50), Size(80), Size(tokens=700), Size(tokens=6000), Size(tokens=10**6)]
)
def test_the_choice_is_that_of_one_sort(
    bins: Bins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: Size, waiting: int
) -> None:
    monkeypatch.setattr(module, "WAITING", waiting)
    made = sample(bins.path, size, 3, tmp_path / "out")
    found, chosen = Bins(tmp_path / "out"), expected(bins, 3, size)
    assert [found.origin(i) for i in range(len(found))] == [bins.origin(i) for i in chosen]
    assert [found.document(i).tolist() for i in range(len(found))] == [
        bins.document(i).tolist() for i in chosen
    ]
    assert made.documents == len(chosen)
    assert size.tokens is None or made.tokens <= size.tokens
    assert list(verify(tmp_path / "out")) == []


def test_the_seed_alone_decides_and_small_samples_are_in_large_ones(bins: Bins, tmp_path: Path) -> None:
    for name, count, seed in [("a", 10, 1), ("b", 10, 1), ("large", 20, 1), ("c", 10, 2)]:
        sample(bins.path, Size(count), seed, tmp_path / name)
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b")
    records = {name: [r for _, r in map(Bins(tmp_path / name).origin, range(10))] for name in "abc"}
    large = [r for _, r in map(Bins(tmp_path / "large").origin, range(20))]
    assert set(records["a"]) < set(large)
    assert records["a"] != records["c"]


def test_text_for_people(bins: Bins, tmp_path: Path) -> None:
    done = prep("sample", bins.path, "--documents", 2, "--seed", 4)
    assert (done.returncode, done.stderr) == (0, "")
    chosen = expected(bins, 4, Size(2))
    blocks = []
    for number in chosen:
        path, record = bins.origin(number)
        text = TEXTS[number]
        blocks.append(f"document {number}: record {record} of {path}, {len(bins.document(number))} tokens")
        blocks += [f"  | {line}" for line in text.splitlines()]
    assert done.stdout.splitlines() == blocks


def test_json_lines(bins: Bins) -> None:
    done = prep("sample", bins.path, "--documents", 5, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["number"] for record in found] == expected(bins, 0, Size(5))
    assert all(record["text"] == TEXTS[record["number"]] for record in found)
    assert all(record["record"] == record["number"] + (record["number"] >= 10) for record in found)
    assert [d.text for d in documents(bins, Size(5), 0)] == [record["text"] for record in found]


def test_bins_from_the_command_line(bins: Bins, tmp_path: Path) -> None:
    done = prep("sample", bins.path, "--tokens", 3000, "--out", "some", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = Bins(tmp_path / "some")
    assert found.tokens <= 3000
    assert f"tokens     {found.tokens:,} uint16" in done.stdout
    assert found.manifest.options["sample"] == "3,000 tokens by seed 0"


def test_wrong_requests(tmp_path: Path) -> None:
    path = make_bins(tmp_path / "bins", [[1, 2, 3], [4, 5]], 100)
    with pytest.raises(UsageError, match="2 tokens are too few for any document"):
        sample(path, Size(tokens=2), 0, tmp_path / "out")
    for options in (["--documents", 1, "--tokens", 5], ["--json", "--out", "x"]):
        done = prep("sample", path, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: give --documents or --tokens, and --out or --json, not both\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["bins"]
