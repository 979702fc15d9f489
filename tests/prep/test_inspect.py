"""mtl-prep inspect and stats: figures that agree with a plain count of the documents."""

import json
import math
import shutil
import struct
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import stdlib_texts
from mtl_common.bins import Bins, Writer
from mtl_common.errors import DataError
from mtl_common.tokenizers import load
from mtl_prep.finished.inspect import inspect, powers
from mtl_prep.finished.measure import Lengths, lengths
from mtl_prep.finished.picture import draw
from mtl_prep.finished.stats import as_dict, measured
from mtl_prep.running.tokenize import Request, tokenize
from preparing import json_lines, prep

TEXTS = [text[: 300 + 40 * i] for i, text in enumerate(stdlib_texts(40))]


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Bins:
    """Forty documents of two sources in several shards, and two bad records."""
    place = tmp_path_factory.mktemp("inspect")
    (place / "a.jsonl").write_bytes(json_lines([*TEXTS[:25], "", b"nonsense"]))
    (place / "b.jsonl").write_bytes(json_lines(TEXTS[25:]))
    corpus = (place / "a.jsonl", place / "b.jsonl")
    tokenize(Request(corpus, tokenizer, place / "bins", 1, max_bad="9", shard_tokens=5000))
    return Bins(place / "bins")


def sizes(bins: Bins) -> list[int]:
    return [len(bins.document(i)) for i in range(len(bins))]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_lengths_are_those_of_a_plain_count(found: list[int]) -> None:
    values, counts = np.unique(found, return_counts=True)
    spread = Lengths(values, counts)
    ordered = sorted(found)
    for share in (0.01, 0.1, 0.5, 0.9, 1.0):
        assert spread.at(share) == ordered[max(math.ceil(share * len(found) - 1e-9), 1) - 1]
    assert spread.mean == pytest.approx(sum(found) / len(found))
    expected = Counter(1 << (length.bit_length() - 1) for length in found)
    assert {power: count for power, count in powers(spread).items() if count} == expected
    edges = np.array([1, 10, 100, 5001])
    documents, tokens = spread.between(edges)
    inside = [[n for n in found if a <= n < b] for a, b in pairwise(edges)]
    assert documents.tolist() == [len(part) for part in inside]
    assert tokens.tolist() == [sum(part) for part in inside]


def test_lengths_over_shards(bins: Bins) -> None:
    assert len(bins.manifest.shards) > 2
    spread = lengths(bins)
    assert dict(zip(spread.tokens.tolist(), spread.documents.tolist(), strict=True)) == Counter(sizes(bins))
    assert list(spread.tokens) == sorted(spread.tokens)


def test_the_page(bins: Bins) -> None:
    done = prep("inspect", bins.path, "--samples", 3, "--seed", 1)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "records      42 = 40 documents + 2 bad (1 empty, 1 not JSON)"
    tokens = [sum(sizes(bins)[:25]), sum(sizes(bins)[25:])]
    first, second = (source.path for source in bins.manifest.sources)
    assert f"2 sources in {Path(first).parent}/" in lines
    first, second = Path(first).name, Path(second).name
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith((first, second))}
    assert rows[first] == ["25", f"{tokens[0]:,}", f"{tokens[0] / bins.tokens:.1%}"]
    assert rows[second] == ["15", f"{tokens[1]:,}", f"{tokens[1] / bins.tokens:.1%}"]
    shown = [line for line in lines if line.startswith("document ")]
    assert len(shown) == 3
    number = int(shown[0].split(":")[0].split()[1])
    at = lines.index(shown[0])
    begins = TEXTS[number].splitlines()[0]
    assert begins.startswith(lines[at + 1].removeprefix("  | ")) or lines[at + 1] == f"  | {begins}"
    bars = [line for line in lines if line.endswith("#")]
    assert sum(int(line.split()[3].replace(",", "")) for line in bars) == 40
    assert max(line.count("#") for line in bars) == 40
    assert lines[-1].startswith(f"next: mtl-train --data {bins.path} ")


def test_what_counts_as_labels_is_set_off(tmp_path: Path, tokenizer: Path) -> None:
    """With the special tokens; the options stand as they are, line ends and all."""
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"source": "two\nlines", "target": "an answer"}]))
    pair = ("--shape", "pair", "--tokenizer", tokenizer)
    assert prep("tokenize", tmp_path / "a.jsonl", *pair, "--out", tmp_path / "bins").returncode == 0
    lines = prep("inspect", tmp_path / "bins").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("document 0:"))
    assert lines[at].endswith("tokens, those after > are labels")
    assert lines[at + 1 : at + 4] == ["  | two", "  | lines", "  > an answer<|endoftext|>"]
    assert any(line.startswith("options ") and line.endswith(r'separator "\n"') for line in lines)
    found = json.loads(prep("sample", tmp_path / "bins", "--json").stdout)
    assert found["runs"] == [
        {"text": "two\nlines\n", "counts": False},
        {"text": "an answer<|endoftext|>", "counts": True},
    ]


def test_samples_follow_the_seed(bins: Bins) -> None:
    numbers = {seed: [d.number for d in inspect(bins.path, 5, seed).samples] for seed in (1, 1, 2)}
    assert numbers[1] != numbers[2]
    assert all(len(set(found)) == 5 for found in numbers.values())
    assert inspect(bins.path, 0).samples == ()
    found = inspect(bins.path, 40).samples
    assert [d.number for d in found] == list(range(40))
    assert all(TEXTS[d.number].startswith(d.text) for d in found)
    assert [d.tokens for d in found] == sizes(bins)


def test_a_picture(bins: Bins, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = prep("inspect", bins.path, "--plot", tmp_path / "new" / "a.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"picture      {tmp_path}/new/a.png\n" in done.stdout
    data = (tmp_path / "new" / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (960, 720)
    draw(inspect(bins.path), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert f"40 documents, {bins.tokens:,} tokens" in drawn
    assert f"median {lengths(bins).at(0.5):,}" in drawn


def test_pictures_that_cannot_be(bins: Bins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = prep("inspect", bins.path, "--plot", "a.gif", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --plot a.gif is neither .png nor .svg; name one of them\n"
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ModuleNotFoundError('no matplotlib')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = prep("inspect", bins.path, "--plot", "a.png", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --plot needs matplotlib; pip install 'mtl-prep[plot]'\n"


def test_pictures_of_one_and_of_equal_documents(tmp_path: Path, tokenizer: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, documents in {"one": [[5]], "equal": [[5] * 7] * 3, "far": [[5], [5] * 5000]}.items():
        with Writer(tmp_path / name, tokenizer) as writer:
            for ids in documents:
                writer.add(ids)
        draw(inspect(tmp_path / name, 0), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_stats_are_a_plain_count(bins: Bins) -> None:
    found = as_dict(measured(bins.path))
    counts = Counter(id for i in range(len(bins)) for id in bins.document(i).tolist())
    assert (found["documents"], found["tokens"]) == (40, counts.total())
    assert found["vocabulary"] == {"entries": 1024, "used": len(counts)}
    assert found["text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    library = load(bins.tokenizer)
    most = sorted(counts, key=lambda id: (-counts[id], id))[:20]
    assert [(t["id"], t["count"]) for t in found["frequent"]] == [(id, counts[id]) for id in most]
    assert all(t["text"] == library.piece(t["id"], special=True).decode() for t in found["frequent"])
    assert [s["tokens"] for s in found["sources"]] == [sum(sizes(bins)[:25]), sum(sizes(bins)[25:])]
    assert found["sources"][0]["bad"] == {"empty": 1, "not JSON": 1}
    assert sum(s["tokens"] for s in found["shards"]) == counts.total()
    assert found["lengths"]["50%"] == sorted(sizes(bins))[19]
    assert (found["lengths"]["shortest"], found["lengths"]["100%"]) == (min(sizes(bins)), max(sizes(bins)))
    assert found["label_tokens"] is None


def test_stats_as_tables(bins: Bins, tmp_path: Path, tokenizer: Path) -> None:
    with Writer(tmp_path / "other", tokenizer) as writer:
        writer.add([5, 5, 6], loss=[0, 1, 1])
    done = prep("stats", bins.path, tmp_path / "other")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["bins", "documents", "tokens", "share"]
    assert lines[1].split()[:3] == [str(bins.path), "40", f"{bins.tokens:,}"]
    assert lines[2].split()[:3] == [f"{tmp_path}/other", "1", "4"]
    assert "labels      3 tokens, 75.0%" in lines
    single = prep("stats", tmp_path / "other", "--json")
    assert json.loads(single.stdout)["label_tokens"] == 3
    assert json.loads(single.stdout)["frequent"][0]["count"] == 2


def test_many_sources_add_up(make_many: Path) -> None:
    lines = prep("stats", make_many).stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("source "))
    rows = [line.split() for line in lines[start + 1 : start + 22]]
    assert rows[-1][:2] == ["11", "others"]
    assert sum(int(row[-3].replace(",", "")) for row in rows) == 31
    shares = [float(row[-1].rstrip("%")) for row in rows[:-1]]
    assert shares == sorted(shares, reverse=True)


@pytest.fixture
def make_many(tmp_path: Path, tokenizer: Path) -> Path:
    """Bins of thirty-one files."""
    (tmp_path / "texts").mkdir()
    for number in range(31):
        (tmp_path / "texts" / f"{number:02}.txt").write_text("word " * (number + 1))
    tokenize(Request((tmp_path / "texts",), tokenizer, tmp_path / "bins", 1))
    return tmp_path / "bins"


def test_what_is_no_bins(tmp_path: Path) -> None:
    done = prep("inspect", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no finished token bins" in done.stderr
    with pytest.raises(DataError, match="holds no finished token bins"):
        measured(tmp_path)


def test_stats_of_damaged_bins_are_refused(bins: Bins, tmp_path: Path) -> None:
    copy = shutil.copytree(bins.path, tmp_path / "bins")
    shard = bins.manifest.shards[1]
    with (copy / shard.file).open("r+b") as file:
        file.seek(shard.tokens_at)
        file.write(b"\xff")
    done = prep("stats", copy)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {copy}/shard-00001.arrow is damaged, its hash is another; "
        "restore it or make the bins again\n"
    )


def test_parts_of_characters_are_shown_as_bytes(tmp_path: Path, tokenizer: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        writer.add("\U0001f600" * 5)
    found = measured(tmp_path / "bins")
    assert {t.piece for t in found.frequent} > {bytes([byte]) for byte in "\U0001f600".encode()}
    page = prep("stats", tmp_path / "bins").stdout
    assert all(repr(bytes([byte])) in page for byte in "\U0001f600".encode())
