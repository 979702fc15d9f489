"""Documents too large to be judged: bad records, or kept as they are but for equal ones and personal data."""

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from curating import kept_records, make_words
from mtl_common.errors import ConfigError
from mtl_prep.curate.manifest import Manifest
from mtl_prep.curate.recipe import read_recipe
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate
from preparing import Make, all_bytes, json_lines, texts_of

GIANT = 20_000
RECIPE = """
[exact_duplicates]
[length]
max_words = 60
[pii]
keys = ["author"]
[repeats]
kind = "gopher_repetition"
only = { kind = "never" }
"""


def large_text(seed: int, sep: str = "\n") -> str:
    """Lines with an address each, more than GIANT bytes of them, with quotes and letters to escape."""
    words = make_words(seed, 4000)
    return sep.join(f'"{word}" \\ \u00e4 person{i}@example.org' for i, word in enumerate(words[:1000]))


def cleaned(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(line[: line.index(" person")] + " <EMAIL>" for line in lines)


LARGE = [large_text(i) for i in range(3)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("large") / "tree"
    tree.mkdir()
    (tree.parent / "r.toml").write_text(f'large = "keep"\n{RECIPE}', "utf-8")
    small = [{"text": f"small {i} a@b.org", "n": i} for i in range(40)]
    first = {"id": 1, "more": ["x" * 2000, {"deep": "y" * 3000}], "text": LARGE[0], "author": "Jane"}
    second: dict[str, Any] = {"text": LARGE[1], "id": 2, "big": 2**70, "author": None}
    again = {"other": "z", "text": LARGE[0]}
    records = [*small[:20], first, *small[20:], second, again, {"text": "word " * 61}]
    (tree / "a.jsonl").write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    packed = json_lines([{"text": LARGE[2], "id": 3}, "the last one"])
    (tree / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(packed))
    (tree / "c.txt").write_text(LARGE[1], "utf-8")
    (tree / "d.txt").write_text(LARGE[2].replace("\n", "\r\n"), "utf-8")
    (tree / "e.txt").write_text(large_text(9), "utf-8")
    return tree


def run(corpus: Path, out: Path, **options: Any) -> Manifest:
    known: dict[str, Any] = {"workers": 1, "part_bytes": 9_000, "shard_bytes": 25_000, "giant": GIANT}
    known |= {"recipe": corpus.parent / "r.toml", "max_bad": "100%"}
    return curate(Request(corpus=[corpus], out=out, **{**known, **options})).manifest


def test_large_documents_are_kept_but_equal_ones_and_addresses(corpus: Path, tmp_path: Path) -> None:
    manifest = run(corpus, tmp_path / "clean")
    found = kept_records(tmp_path / "clean")
    texts = [record["text"] for record in found]
    small = [f"small {i} <EMAIL>" for i in range(40)]
    assert texts == [
        *small[:20],
        cleaned(LARGE[0]),
        *small[20:],
        cleaned(LARGE[1]),
        cleaned(LARGE[2]),
        "the last one",
        cleaned(large_text(9)),
    ]
    assert {step.name: step.documents for step in manifest.steps} == {
        "exact_duplicates": 3,
        "length": 1,
        "pii": 0,
        "repeats": 0,
    }
    assert manifest.large == 4
    assert manifest.read.documents == 49 == manifest.kept.documents + 4
    assert manifest.kept.characters == sum(map(len, texts))
    twice = sum(map(len, LARGE))  # each stands there once more
    assert manifest.read.characters == twice * 2 + len(large_text(9)) + 10 * 15 + 30 * 16 + 61 * 5 + 12
    assert manifest.steps[0].characters == twice
    assert manifest.steps[2].edits == {"author": 2, "email": 4040}
    assert sum(shard.records for shard in manifest.shards) == len(found)
    assert all(shard.records for shard in manifest.shards)
    there = {path.name for path in (tmp_path / "clean").glob("shard-*")}
    assert there == {shard.file for shard in manifest.shards}


def test_records_of_large_documents_stay_whole(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "clean")
    found = {r.get("id"): r for r in kept_records(tmp_path / "clean") if len(r["text"]) > 1000}
    assert found[1] == {
        "curated_from": {"source": str(corpus / "a.jsonl"), "record": 20},
        "id": 1,
        "more": ["x" * 2000, {"deep": "y" * 3000}],
        "text": cleaned(LARGE[0]),
        "author": "<NAME>",
    }
    assert list(found[2]) == ["curated_from", "text", "id", "big", "author"]
    assert (found[2]["big"], found[2]["author"]) == (2**70, "<NAME>")
    assert found[3]["curated_from"] == {"source": str(corpus / "b.jsonl.zst"), "record": 0}
    samples = (tmp_path / "clean/removed/exact_duplicates.jsonl").read_bytes()
    shown = [json.loads(line) for line in samples.splitlines()]
    assert {(Path(s["source"]).name, s["record"], Path(s["reason"]).name) for s in shown} == {
        ("a.jsonl", 42, "a.jsonl record 20"),
        ("c.txt", 0, "a.jsonl record 41"),
        ("d.txt", 0, "b.jsonl.zst record 0"),
    }
    assert all(len(s["text"]) == 400 for s in shown)


def test_processes_shares_and_sizes_of_units_do_not_matter(corpus: Path, tmp_path: Path, make: Make) -> None:
    run(corpus, tmp_path / "one")
    run(corpus, tmp_path / "three", workers=3)
    assert all_bytes(tmp_path / "one") == all_bytes(tmp_path / "three")
    run(corpus, tmp_path / "other", part_bytes=15_000, shard_bytes=1 << 20)
    assert kept_records(tmp_path / "other") == kept_records(tmp_path / "one")
    assert texts_of(make(tmp_path / "one"))[20] == cleaned(LARGE[0])


def test_without_a_word_in_the_recipe_they_are_bad(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE, "utf-8")
    manifest = run(corpus, tmp_path / "clean", recipe=tmp_path / "r.toml")
    bad = {Path(source.path).name: source.bad for source in manifest.sources if source.bad}
    why = "too large to curate"
    assert bad == {"a.jsonl": {why: 3}, **{f: {why: 1} for f in ("b.jsonl.zst", "c.txt", "d.txt", "e.txt")}}
    assert (manifest.large, manifest.kept.documents) == (0, 41)


def test_the_word_for_large_ones_is_checked(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('large = "hold"\n[pii]\n', "utf-8")
    with pytest.raises(ConfigError, match="large"):
        read_recipe(tmp_path / "r.toml")
    (tmp_path / "r.toml").write_text('[large]\nkind = "length"\nmin_words = 2\n', "utf-8")
    assert [name for name, _ in read_recipe(tmp_path / "r.toml").steps] == ["large"]
