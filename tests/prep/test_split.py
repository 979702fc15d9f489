"""mtl-prep split: every document in exactly one part, the same part every time, each part complete bins."""

from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from corpus import stdlib_texts
from mtl_common.bins import Bins, Writer
from mtl_common.errors import DataError, UsageError
from mtl_prep.finished.merge import Request as Merge
from mtl_prep.finished.merge import merge
from mtl_prep.finished.split import Request, parse_parts, split
from mtl_prep.finished.verify import verify
from mtl_prep.running.tokenize import Request as Tokenize
from mtl_prep.running.tokenize import tokenize
from preparing import Make, all_bytes, json_lines, prep

TEXTS = [text[:1500] for text in stdlib_texts(60)]


def places(bins: Bins) -> list[tuple[str, int]]:
    return [bins.origin(i) for i in range(len(bins))]


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Bins:
    """Sixty documents of two sources in several shards; relative paths, which decide what a seed draws."""
    place = tmp_path_factory.mktemp("split")
    (place / "in").mkdir()
    (place / "in" / "a.jsonl").write_bytes(json_lines([*TEXTS[:40], ""]))
    (place / "in" / "b.jsonl").write_bytes(json_lines(TEXTS[40:]))
    with chdir(place):
        corpus = (Path("in/a.jsonl"), Path("in/b.jsonl"))
        tokenize(Tokenize(corpus, tokenizer, place / "bins", 1, shard_tokens=6000))
    return Bins(place / "bins")


def check_parts(bins: Bins, parts: list[Bins]) -> None:
    """Every document is in one part, as it was, in its order, and each part is whole."""
    assert sorted(place for part in parts for place in places(part)) == sorted(places(bins))
    ids = {bins.origin(i): bins.document(i).tolist() for i in range(len(bins))}
    for part in parts:
        assert [part.document(i).tolist() for i in range(len(part))] == [ids[place] for place in places(part)]
        assert list(verify(part.path)) == []
        assert all(shard.tokens <= 6000 for shard in part.manifest.shards)


def test_shares_by_seed(bins: Bins, tmp_path: Path) -> None:
    request = Request(bins.path, tmp_path / "parts", "train=0.7,valid=0.2,test=0.1", seed=1)
    made = split(request)
    parts = [Bins(tmp_path / "parts" / name) for name in ("train", "valid", "test")]
    check_parts(bins, parts)
    assert [m.documents for m in made.values()] == [len(part) for part in parts]
    assert 30 <= len(parts[0]) <= 54
    assert parts[1].manifest.options["part"] == "valid of train=0.7,valid=0.2,test=0.1 by seed 1"
    split(Request(bins.path, tmp_path / "again", request.parts, seed=1))
    assert all_bytes(tmp_path / "again") == all_bytes(tmp_path / "parts")
    split(Request(bins.path, tmp_path / "other", request.parts, seed=2))
    assert places(Bins(tmp_path / "other" / "train")) != places(parts[0])


def test_a_document_stays_in_its_part_wherever_it_stands(bins: Bins, make: Make, tmp_path: Path) -> None:
    """Also when its source comes later, in bins of other shards."""
    with chdir(bins.path.parent):
        other = make(Path("in/b.jsonl"), name="b", shard_tokens=3000)
    for name, path in (("one", bins.path), ("two", other.path)):
        split(Request(path, tmp_path / name, "train=0.6,valid=0.4"))
    valid = [place for place in places(Bins(tmp_path / "one" / "valid")) if place[0].endswith("b.jsonl")]
    assert places(Bins(tmp_path / "two" / "valid")) == valid


def test_the_draw_is_even_and_fair(tmp_path: Path, tokenizer: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        for _ in range(20_000):
            writer.add([5])
    made = split(Request(tmp_path / "bins", tmp_path / "parts", "a=0.9,b=0.1"))
    assert abs(made["b"].documents - 2000) < 5 * np.sqrt(20_000 * 0.09)
    records = np.array([r for _, r in places(Bins(tmp_path / "parts" / "b"))])
    assert all(300 < count < 500 for count in np.histogram(records, 5)[0])


def test_in_order(bins: Bins, tmp_path: Path) -> None:
    split(Request(bins.path, tmp_path / "parts", "a=0.5,b=0.25,c=0.25", contiguous=True))
    parts = [Bins(tmp_path / "parts" / name) for name in "abc"]
    assert [len(part) for part in parts] == [30, 15, 15]
    check_parts(bins, parts)
    assert [place for part in parts for place in places(part)] == places(bins)
    assert [source.path for source in parts[0].manifest.sources] == ["in/a.jsonl"]


def test_by_source(bins: Bins, tmp_path: Path) -> None:
    done = prep("split", bins.path, "--parts", "first=*/a.*,rest=*", "--out", "parts", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row.split()[:2] for row in done.stdout.splitlines()[:4]] == [
        ["part", "documents"],
        ["first", "40"],
        ["rest", "20"],
        ["all", "60"],
    ]
    assert done.stdout.splitlines()[-1].startswith("next: mtl-train --data parts/first ")
    parts = [Bins(tmp_path / "parts" / name) for name in ("first", "rest")]
    check_parts(bins, parts)
    assert {place[0] for place in places(parts[1])} == {"in/b.jsonl"}
    assert [(s.records, s.documents, s.bad) for s in parts[0].manifest.sources] == [(40, 40, {})]


def test_parts_of_a_part_and_back(bins: Bins, tmp_path: Path) -> None:
    split(Request(bins.path, tmp_path / "parts", "a=0.5,b=0.5"))
    split(Request(tmp_path / "parts" / "a", tmp_path / "more", "a=0.5,b=0.5", seed=1))
    merge(Merge([tmp_path / "more" / "a", tmp_path / "more" / "b"], tmp_path / "merged"))
    merged, half = Bins(tmp_path / "merged"), Bins(tmp_path / "parts" / "a")
    assert sorted(places(merged)) == sorted(places(half))
    assert "part" not in merged.manifest.options


def test_which_tokens_count_goes_along(tmp_path: Path, tokenizer: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        for number in range(1, 9):
            writer.add([number] * number, loss=[number % 2] * number)
    split(Request(tmp_path / "bins", tmp_path / "parts", "a=0.5,b=0.5"))
    for name in "ab":
        part = Bins(tmp_path / "parts" / name)
        assert list(verify(part.path)) == []
        for i in range(len(part)):
            number = int(part.document(i)[0])
            assert part.loss(i).tolist() == [*[number % 2] * number, 1]


@pytest.mark.parametrize(
    ("parts", "error", "sentence"),
    [
        ("a=0.5", UsageError, "not two or more names"),
        ("a=0.5,a=0.5", UsageError, "not two or more names"),
        ("a,b", UsageError, "not two or more names"),
        ("../a=0.5,b=0.5", UsageError, "not two or more names"),
        (".a=0.5,b=0.5", UsageError, "not two or more names"),
        ("a=0.5,b=0.6", UsageError, "not above 0 with a sum of 1"),
        ("a=1,b=0", UsageError, "not above 0 with a sum of 1"),
        ("a=nan,b=1", UsageError, "not above 0 with a sum of 1"),
        ("a=*/a.jsonl,b=*.py", DataError, r"b\.jsonl matches none of \*/a\.jsonl, \*\.py; add a part"),
        ("a=*,b=*.py", DataError, "b would get none of the 60 documents"),
        ("a=0.99999999,b=0.00000001", DataError, "b would get none of the 60 documents"),
    ],
)
def test_wrong_parts(bins: Bins, tmp_path: Path, parts: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        split(Request(bins.path, tmp_path / "parts", parts))
    assert not (tmp_path / "parts").exists()
    assert not list(tmp_path.glob(".*"))


def test_patterns_have_no_order(bins: Bins, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--contiguous takes shares"):
        split(Request(bins.path, tmp_path / "parts", "a=*/a.jsonl,b=*", contiguous=True))


def test_parts() -> None:
    assert parse_parts("train=0.98, valid=0.02") == {"train": "0.98", "valid": "0.02"}
