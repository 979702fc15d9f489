"""Small files share a unit; every record keeps its file and its line."""

import gzip
import json
from pathlib import Path

import pytest
import xxhash

from mtl_prep.corpus.find import find
from mtl_prep.corpus.units import Files, Reading, Unit, read
from mtl_prep.journal import Journal
from mtl_prep.running.left import left_of
from mtl_prep.running.shares import Share
from mtl_prep.running.tokenize import Request, tokenize
from preparing import Make, all_bytes, json_lines, texts_of


def write_small(tree: Path) -> dict[str, list[str]]:
    """Sixty files of all kinds with three documents or one each, and a bad record in every JSON file."""
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[str, list[str]] = {}
    for i in range(60):
        texts = [f"file {i} text {j} " + "more " * (i % 7) for j in range(3)]
        name = f"{i:02d}" + (".jsonl", ".jsonl.gz", ".txt", ".parquet", ".jsonl", ".md")[i % 6]
        path = tree / name
        if ".jsonl" in name:
            lines = json_lines([*texts[:2], b"", {"text": None}, texts[2]])
            path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
        elif name.endswith(".parquet"):
            parquet.write_table(pa.table({"text": texts}), path)
        else:
            path.write_text("\n".join(texts))
            texts = ["\n".join(texts)]
        found[str(path)] = texts
    return found


def test_small_files_of_all_kinds_share_units(make: Make, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    found = write_small(tree)
    reading = Reading(find([tree]).sources, "text", 1 << 24)
    assert left_of(Journal(tmp_path), reading, 1, Share()).tasks == [Files(0, 60)]
    bins = make(tree)
    assert texts_of(bins) == [text for texts in found.values() for text in texts]
    sources = {source.path: source for source in bins.manifest.sources}
    assert {path: source.xxh3 for path, source in sources.items()} == {
        path: xxhash.xxh3_128_hexdigest(Path(path).read_bytes()) for path in found
    }
    bad = [json.loads(line) for line in (bins.path / "bad.jsonl").read_text().splitlines()]
    assert [(line["source"], line["line"]) for line in bad] == [
        (path, 4) for path in found if ".jsonl" in path
    ]
    assert [bins.origin(i) for i in range(4)] == [
        (str(tree / "00.jsonl"), record) for record in (0, 1, 4)
    ] + [(str(tree / "01.jsonl.gz"), 0)]
    apart = make(tree, name="apart", part_bytes=1_000)
    assert all_bytes(apart.path) == all_bytes(bins.path)


@pytest.mark.parametrize("workers", [1, 2])
def test_units_of_small_files_do_not_change_the_bytes(tokenizer: Path, tmp_path: Path, workers: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    write_small(tree)
    sizes = {"part_bytes": 4_000, "max_bad": "100%"}
    outs = [tmp_path / "one", tmp_path / "more"]
    for out, count in zip(outs, (1, workers), strict=True):
        tokenize(Request([tree], tokenizer, out, count, **sizes))  # type: ignore[arg-type]
    assert all_bytes(outs[0]) == all_bytes(outs[1])


def units(files: list[Path], journal: Path, part_bytes: int, giant: int = 1 << 26) -> list[Unit]:
    journal.mkdir()
    reading = Reading(find(files).sources, "text", part_bytes, giant=giant)
    return list(read(Files(0, len(files)), reading, Journal(journal)))


def test_a_small_file_that_swells_ends_its_unit(tmp_path: Path) -> None:
    texts = ["x" * 900 + str(i) for i in range(400)]
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl")]
    files[0].write_bytes(json_lines(["first"]))
    files[1].write_bytes(gzip.compress(json_lines(texts)))
    files[2].write_bytes(json_lines(["last"]))
    found = units(files, tmp_path / "journal", 100_000)
    assert [text for unit in found for text in unit.documents.texts] == ["first", *texts, "last"]
    places = [place for unit in found for place in unit.documents.places]
    assert places == [(0, 0), *((1, i) for i in range(400)), (2, 0)]
    assert all(sum(map(len, unit.documents.texts)) < 250_000 for unit in found)
    assert len({unit.name for unit in found}) == len(found) == 3
    assert [unit.name for unit in found] == sorted(unit.name for unit in found)
    assert sum(unit.size for unit in found) == sum(path.stat().st_size for path in files)


def test_a_giant_in_a_small_file_is_the_last_of_its_unit(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.txt")]
    files[0].write_bytes(json_lines(["first", "second"]))
    files[1].write_bytes(gzip.compress(json_lines(["before", "x" * 50_000, "after"])))
    files[2].write_text("text")
    found = units(files, tmp_path / "journal", 20_000, giant=10_000)
    giants = [unit.documents.giant for unit in found if unit.documents.giant]
    assert [(giant.source, giant.record, sum(map(len, giant.pieces()))) for giant in giants] == [
        (1, 1, 50_000)
    ]
    assert [unit.documents.texts for unit in found] == [["first", "second", "before"], ["after", "text"]]
    assert [unit.documents.places for unit in found] == [[(0, 0), (0, 1), (1, 0)], [(1, 2), (2, 0)]]
