"""What the tests of curation share: a small corpus of all that recipes remove, requests, and what is kept."""

import json
import random
from pathlib import Path
from typing import Any

import zstandard

from corpus import stdlib_texts
from mtl_prep.curate.manifest import read_manifest
from mtl_prep.curate.request import Request
from preparing import json_lines

RECIPE = """
[length]
min_characters = 40
[exact_duplicates]
[early]
kind = "gopher_quality"
only = { kind = "en" }
min_words = 20
min_stop_words = false
[near_duplicates]
[pii]
keys = ["author"]
[late]
kind = "length"
max_characters = 60000
"""


def make_words(seed: int, count: int) -> list[str]:
    """Words that depend on the seed alone."""
    drawn = random.Random(seed)
    return ["".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(2, 9))) for _ in range(count)]


def planted(words: list[str], jaccard: float, seed: int, shingle: int = 5) -> list[str]:
    """Words with some replaced, so far apart that each spoils `shingle` shingles."""
    total = len(words) - shingle + 1
    spoiled = round((1 - jaccard) / (1 + jaccard) * total / shingle)
    drawn = random.Random(seed)
    gap = len(words) // spoiled
    assert gap >= shingle
    places = [i * gap + drawn.randrange(gap - shingle + 1) for i in range(spoiled)]
    changed = list(words)
    for place in places:
        changed[place + shingle // 2] += "qqq"
    return changed


def write_curated(tree: Path) -> Path:
    """A tree of exact and near duplicates, short, long and bad records, and a recipe beside it."""
    tree.mkdir()
    texts = list(stdlib_texts(24))
    prose = [" ".join(make_words(i, 200)) for i in range(30)]
    close = [" ".join(planted(text.split(), 0.9, 1)) for text in prose[:10]]
    mail = {
        "text": "Please write to jane.roe@example.com. " * 3,
        "kind": "mail",
        "author": "Jane Roe",
        "n": "\ud800",
    }
    first: list[Any] = [
        *({"text": text, "kind": "en", "id": i} for i, text in enumerate(prose)),
        b"no json",
        "",
        json.dumps(mail).encode(),
    ]
    second: list[Any] = [
        "short",
        *texts[:8],
        *close,
        {"text": "x " * 18 + "1" * 9, "kind": "en"},
        *texts[4:10],
    ]
    (tree / "a.jsonl").write_bytes(json_lines(first))
    (tree / "b.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor().compress(json_lines([*second, *prose[5:15]]))
    )
    for i, text in enumerate([*texts[10:], texts[12]]):
        (tree / f"c{i}.py").write_text(text, "utf-8")
    (tree.parent / "recipe.toml").write_text(RECIPE, "utf-8")
    return tree


def request(corpus: Path, out: Path, **options: Any) -> Request:
    """A request with small units and shards, of the recipe beside the corpus."""
    known: dict[str, Any] = {"part_bytes": 30_000, "shard_bytes": 50_000, "max_bad": "2", "workers": 1}
    recipe = options.pop("recipe", corpus.parent / "recipe.toml")
    return Request(recipe, [corpus], out, **{**known, **options})


def kept_records(out: Path) -> list[dict[str, Any]]:
    """The records of a clean corpus, in order."""
    found = []
    for shard in read_manifest(out).shards:
        data = zstandard.ZstdDecompressor().stream_reader((out / shard.file).read_bytes()).read()
        found += [json.loads(line) for line in data.splitlines()]
    return found
