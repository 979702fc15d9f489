"""Progress never passes the whole, and ends at it: on packed files, in tasks, and after a stop."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corpus import stdlib_texts
from mtl_common.log import Progress
from mtl_prep.journal import Journal
from mtl_prep.running import left
from mtl_prep.running.array_job import tokenize_share
from mtl_prep.running.shares import Share
from mtl_prep.running.tokenize import Request, tokenize
from preparing import json_lines


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The (done, total) of every step of every bar of reading."""
    found: list[list[tuple[int, int]]] = []

    @contextmanager
    def noting(what: str, total: int, unit: str, *, done: int = 0) -> Iterator[Progress]:
        found.append([(done, total)])
        yield Progress(what, total, unit, done, lambda bar: found[-1].append((bar.done, bar.total)))

    monkeypatch.setattr(left, "progress", noting)
    return found


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Plain and packed lines, a table in row groups, small files, and packed text that ends in zeros."""
    import pyarrow as pa
    from pyarrow import parquet

    tree, texts = tmp_path / "tree", list(stdlib_texts(30))
    tree.mkdir()
    (tree / "a.jsonl").write_bytes(json_lines(texts[:9]))
    (tree / "b.jsonl.gz").write_bytes(gzip.compress(json_lines(texts)) + b"\0" * 9_999)
    parquet.write_table(pa.table({"text": texts[9:20]}), tree / "c.parquet", row_group_size=3)
    (tree / "d.jsonl").write_bytes(json_lines(["small"]))
    (tree / "e.jsonl").write_bytes(b"")
    (tree / "f.txt").write_text(texts[20])
    return tree


def request(corpus: Path, tokenizer: Path, out: Path) -> Request:
    return Request([corpus], tokenizer, out, 1, part_bytes=40_000)


def check(bar: list[tuple[int, int]], total: int) -> None:
    assert bar == sorted(bar)
    assert {whole for _, whole in bar} == {total}
    assert bar[-1] == (total, total)


def test_it_ends_at_the_whole(
    bars: list[list[tuple[int, int]]], corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    size = sum(path.stat().st_size for path in corpus.iterdir())
    tokenize(request(corpus, tokenizer, tmp_path / "bins"))
    check(bars[0], size)
    assert len(bars[0]) > 10
    assert bars[0][0][0] == 0
    for number in (1, 2, 3):
        tokenize_share(request(corpus, tokenizer, tmp_path / "shares"), Share(number, 3))
        check(bars[number], bars[number][0][1])
    assert sum(bar[0][1] for bar in bars[1:4]) == size


@pytest.mark.parametrize("share", [Share(), Share(1, 2)])
def test_after_a_stop_it_begins_where_it_was(
    bars: list[list[tuple[int, int]]], corpus: Path, tokenizer: Path, tmp_path: Path, share: Share
) -> None:
    whole = request(corpus, tokenizer, tmp_path / "bins")
    tokenize_share(whole, share)
    journal = Journal(whole.out / "_work")
    names = journal.names("unit-")
    for name in names[1::2]:
        journal.forget(name)
    tokenize_share(whole, share)
    first, again = bars
    check(first, first[0][1])
    check(again, first[0][1])
    assert 0 < again[0][0] < again[0][1]
    assert len(again) < len(first)
    tokenize_share(whole, share)
    assert bars[2][0] == bars[2][-1] == first[-1]
