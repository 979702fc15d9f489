"""Curation as a whole: counts that add up, the same bytes for any number of processes and any kill."""

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from corpus import stdlib_texts
from curating import RECIPE, kept_records, make_words, planted, request, write_curated
from mtl_common.bins import Bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.find import find
from mtl_prep.curate.manifest import Manifest, read_manifest
from mtl_prep.curate.near import banding, joined
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate
from preparing import Make, all_bytes, json_lines, prep, texts_of

RUN = "import sys; from pathlib import Path as p; from mtl_prep.curate.run import *; a = sys.argv; curate("
RUN += "Request(p(a[1]), [p(a[2])], p(a[3]), int(a[4]), part_bytes=30_000, shard_bytes=50_000, max_bad='2'))"

needs_rensa = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("rensa"), reason="rensa is not installed"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_curated(tmp_path_factory.mktemp("curated") / "tree")


def jaccard_of(first: list[str], second: list[str], shingle: int = 5) -> float:
    one, two = (
        {tuple(words[i : i + shingle]) for i in range(len(words) - shingle + 1)} for words in (first, second)
    )
    return len(one & two) / len(one | two)


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("rensa")
    out = tmp_path_factory.mktemp("unbroken") / "clean"
    curate(request(corpus, out))
    return out


def removed(manifest: Manifest) -> Mapping[str, int]:
    return {step.name: step.documents for step in manifest.steps}


def test_every_document_is_accounted_for(unbroken: Path) -> None:
    manifest = read_manifest(unbroken)
    long = sum(len(text) > 60_000 for text in set(stdlib_texts(24)))
    # a: 30 + mail; b: short, 8, 10 close, 1, 6, 10; c: 15
    assert manifest.read.documents == 31 + 36 + 15
    assert removed(manifest) == {
        "length": 1,
        "exact_duplicates": 4 + 10 + 1,
        "early": 1,
        "near_duplicates": 10,
        "pii": 0,
        "late": long,
    }
    assert manifest.kept.documents == len(kept_records(unbroken)) == manifest.read.documents - 27 - long
    assert [step.entered for step in manifest.steps][:3] == [82, 81, 66]
    for source in manifest.sources:
        assert source.documents == source.kept + sum(source.removed.values())
    assert sum(source.kept for source in manifest.sources) == manifest.kept.documents
    assert {source.path.rsplit("/")[-1]: source.bad for source in manifest.sources if source.bad} == {
        "a.jsonl": {"not JSON": 1, "empty": 1}
    }


def test_records_keep_their_keys_and_tell_where_they_come_from(corpus: Path, unbroken: Path) -> None:
    records = kept_records(unbroken)
    by_place = {(r["curated_from"]["source"], r["curated_from"]["record"]): r for r in records}
    assert len(by_place) == len(records)
    source = str(corpus / "a.jsonl")
    assert by_place[source, 7]["id"] == 7
    assert by_place[source, 7]["text"] == " ".join(make_words(7, 200))
    mail = by_place[source, 32]  # after a bad and an empty record
    assert mail["text"].startswith("Please write to <EMAIL>. Please")
    assert (mail["author"], mail["kind"], mail["n"]) == ("<NAME>", "mail", "\ud800")
    lines = (
        json_lines([])
        + zstandard.ZstdDecompressor().stream_reader((corpus / "b.jsonl.zst").read_bytes()).read()
    )
    packed = str(corpus / "b.jsonl.zst")
    for (name, number), record in by_place.items():
        if name == packed:
            original = orjson.loads(lines.split(b"\n")[number])["text"]
            assert record["text"][:200] == original[:200]


def test_the_first_of_those_alike_stays_and_samples_name_it(corpus: Path, unbroken: Path) -> None:
    samples = [
        orjson.loads(line) for line in (unbroken / "removed/near_duplicates.jsonl").read_bytes().splitlines()
    ]
    packed = str(corpus / "b.jsonl.zst")
    assert {(s["source"], s["record"], s["reason"]) for s in samples} == {
        (packed, 9 + i, f"nearly equal to {corpus}/a.jsonl record {i}") for i in range(10)
    }
    samples = [
        orjson.loads(line) for line in (unbroken / "removed/exact_duplicates.jsonl").read_bytes().splitlines()
    ]
    assert len(samples) == 15
    assert (str(corpus / "c2.py"), 0, f"equal to {corpus}/c14.py record 0") in {
        (s["source"], s["record"], s["reason"]) for s in samples
    }
    early = orjson.loads((unbroken / "removed/early.jsonl").read_bytes())
    assert early["reason"] == "too few words"
    assert early["text"].startswith("x x x")


def test_several_processes_write_the_same_bytes(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    curate(request(corpus, tmp_path / "clean", workers=3))
    assert all_bytes(tmp_path / "clean") == all_bytes(unbroken)


def test_a_killed_run_goes_on_to_the_same_bytes(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    drawn = random.Random(3)
    out, kills = tmp_path / "clean", 0
    for attempt in range(8):
        workers = str(attempt % 2 + 1)
        arguments = [sys.executable, "-c", RUN, corpus.parent / "recipe.toml", corpus, out, workers]
        run = subprocess.Popen([*map(str, arguments)], stderr=subprocess.DEVNULL)
        begun = time.monotonic()
        while not out.exists() and run.poll() is None and time.monotonic() - begun < 60:
            time.sleep(0.01)
        try:
            run.wait(drawn.uniform(0, 0.6))
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait(60)
            kills += 1
        if (out / "manifest.json").exists():
            break
    curate(request(corpus, out))
    assert kills
    assert all_bytes(out) == all_bytes(unbroken)


def test_only_the_same_request_goes_on_or_is_recognized(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    assert curate(request(corpus, unbroken)).already
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace("min_characters = 40", "min_characters = 41"), "utf-8")
    with pytest.raises(UsageError, match=r"made with recipe\.length\.min_characters 40, not 41"):
        curate(request(corpus, unbroken, recipe=other))
    with pytest.raises(UsageError, match="shard-bytes 50000, not 9"):
        curate(request(corpus, unbroken, shard_bytes=9))


def test_shards_are_of_one_size_and_a_clean_corpus_is_read_as_one(
    unbroken: Path, tmp_path: Path, make: Make
) -> None:
    shards = read_manifest(unbroken).shards
    assert len(shards) > 3
    longest = max(len(orjson.dumps(r["text"])) for r in kept_records(unbroken)) + 1000
    assert all(abs(shard.json_bytes - 50_000) < longest for shard in shards[:-1])
    assert [Path(s.name).name for s in find([unbroken]).sources] == [shard.file for shard in shards]
    assert texts_of(make(unbroken)) == [record["text"] for record in kept_records(unbroken)]


def test_a_clean_corpus_can_be_cleaned_again(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    curate(Request(corpus.parent / "recipe.toml", [unbroken], again, 1))
    assert kept_records(again) == kept_records(unbroken)


def test_an_unfinished_clean_corpus_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "clean/_work/examined").mkdir(parents=True)
    with pytest.raises(DataError, match="unfinished clean corpus"):
        find([tmp_path])


def test_without_comparisons_steps_are_taken_too(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[pii]\n[length]\nmin_characters = 40\n[again]\nkind = 'pii'\n", "utf-8")
    found = curate(request(corpus, tmp_path / "clean", recipe=tmp_path / "r.toml")).manifest
    assert removed(found) == {"pii": 0, "length": 1, "again": 0}
    assert found.steps[0].edits["email"] >= 3
    assert not found.steps[2].edits


def test_a_text_stays_where_it_was_found(tmp_path: Path, make: Make) -> None:
    (tmp_path / "r.toml").write_text("[pii]\n", "utf-8")
    records = [{"data": [{"body": "to a@b.org"}], "n": 1}, {"content": "to c@d.org", "data": []}]
    (tmp_path / "c.jsonl").write_bytes(json_lines(records))
    (tmp_path / "t.txt").write_text("to e@f.org", "utf-8")
    corpus = [tmp_path / "c.jsonl", tmp_path / "t.txt"]
    curate(Request(tmp_path / "r.toml", corpus, tmp_path / "clean", 1, text_key="data.0.body,content"))
    found = [{k: v for k, v in r.items() if k != "curated_from"} for r in kept_records(tmp_path / "clean")]
    assert found == [
        {"data": [{"body": "to <EMAIL>"}], "n": 1},
        {"content": "to <EMAIL>", "data": []},
        {"data.0.body": "to <EMAIL>"},
    ]
    assert texts_of(make(tmp_path / "clean", text_key="data.0.body,content")) == ["to <EMAIL>"] * 3


def test_nothing_may_be_left(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[length]\nmin_characters = 10_000_000\n", "utf-8")
    found = curate(request(corpus, tmp_path / "clean", recipe=tmp_path / "r.toml")).manifest
    assert (found.kept.documents, found.shards) == (0, ())


def test_clusters_are_those_of_a_plain_union() -> None:
    numpy = pytest.importorskip("numpy")
    drawn = random.Random(1)
    for _ in range(50):
        pairs = [sorted((drawn.randrange(60), drawn.randrange(60))) for _ in range(drawn.randrange(1, 60))]
        label = list(range(60))
        for first, second in pairs * 60:
            label[first] = label[second] = min(label[first], label[second])
        half = len(pairs) // 2
        found = joined(numpy.arange(60), numpy.array(pairs[:half], int).reshape(-1, 2))
        assert joined(found, numpy.array(pairs[half:])).tolist() == label


def test_bands_find_what_they_should() -> None:
    assert banding(0.8, 128, 0.98) == (18, 7)
    bands, rows = banding(0.5, 256, 0.9)
    assert 1 - (1 - 0.5**rows) ** bands >= 0.9 > 1 - (1 - 0.5 ** (rows + 1)) ** (256 // (rows + 1))


@needs_rensa
def test_nearly_equal_documents_are_found(tmp_path: Path) -> None:
    """Recall at the threshold, and few false ones well below it; bench/curate.py has more of them."""
    originals = [make_words(i, 400 + i) for i in range(150)]
    close = [planted(words, 0.8, i) for i, words in enumerate(originals)]
    far = [planted(words, 0.5, i) for i, words in enumerate(originals)]
    for others, jaccard in [(close, 0.8), (far, 0.5)]:
        assert all(abs(jaccard_of(a, b) - jaccard) < 0.02 for a, b in zip(originals, others, strict=True))
    found = {}
    for name, others in [("close", close), ("far", far)]:
        texts = [" ".join(words) for words in [*originals, *others]]
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines(texts))
        (tmp_path / "r.toml").write_text("[near_duplicates]\n", "utf-8")
        out = tmp_path / name
        steps = curate(Request(tmp_path / "r.toml", [tmp_path / f"{name}.jsonl"], out, 1)).manifest.steps
        found[name] = steps[0].documents / len(others)
    assert found["close"] >= 0.95
    assert found["far"] <= 0.02


@needs_rensa
def test_the_commands(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    shown = prep(
        "curate",
        corpus.parent / "recipe.toml",
        corpus,
        "--out",
        tmp_path / "clean",
        "--max-bad",
        "2",
        "--workers",
        1,
    )
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^exact_duplicates +81 +-15 +18\.5%", shown.stdout, re.MULTILINE)
    assert shown.stdout.rstrip().split("\n")[-1].startswith("next: mtl-prep tokenize ")
    bins = tmp_path / "bins"
    options = [
        "--tokenizer",
        tokenizer,
        "--out",
        bins,
        "--max-bad",
        "2",
        "--curate",
        corpus.parent / "recipe.toml",
    ]
    inline = prep("tokenize", corpus, *options)
    assert inline.returncode == 0, inline.stderr
    assert texts_of(Bins(bins)) == [record["text"] for record in kept_records(tmp_path / "clean")]
    wrong = prep("curate", corpus / "none.toml", corpus, "--out", tmp_path / "other")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_units_without_documents_are_passed(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[exact_duplicates]\n", "utf-8")
    lines = [b'{"text": ""}\n' * 40, json_lines(["a", "b"]), b"no json\n" * 30, json_lines(["a", "c"])]
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines))
    options: dict[str, Any] = {"part_bytes": 100, "max_bad": "100%"}
    found = curate(Request(tmp_path / "r.toml", [tmp_path / "c.jsonl"], tmp_path / "clean", 1, **options))
    assert [record["text"] for record in kept_records(tmp_path / "clean")] == ["a", "b", "c"]
    assert found.manifest.sources[0].bad == {"empty": 40, "not JSON": 30}
