"""mtl-prep verify: whole bins are whole, and every kind of damage is named with its shard and document."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpus import stdlib_texts, train_bpe
from mtl_common.bins import (
    Batch,
    Bins,
    Manifest,
    Sentences,
    Shard,
    Writer,
    about,
    read_manifest,
    write_manifest,
    write_shard,
)
from mtl_prep.finished.verify import verify
from mtl_prep.running.tokenize import Request, tokenize
from preparing import json_lines, prep

Edit = Callable[[Manifest], dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Bins of two sources and three shards."""
    place = tmp_path_factory.mktemp("whole")
    texts = [text[:4000] for text in stdlib_texts(20)]
    (place / "a.jsonl").write_bytes(json_lines(texts[:12]))
    (place / "b.jsonl").write_bytes(json_lines([*texts[12:], ""]))
    corpus = (place / "a.jsonl", place / "b.jsonl")
    tokenize(Request(corpus, tokenizer, place / "bins", 1, shard_tokens=12_000))
    assert len(Bins(place / "bins").manifest.shards) == 3
    return place / "bins"


@pytest.fixture
def bins(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "bins")


def edit(bins: Path, change: Edit) -> None:
    """Writes another manifest, with the right digest."""
    manifest = read_manifest(bins)
    write_manifest(bins, manifest.model_copy(update=change(manifest)))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def rewrite(bins: Path, number: int, change: Callable[[Batch], None]) -> None:
    """Writes a shard and its entry anew, hashes and all, from documents changed in place."""
    found = Bins(bins)
    old, view = found.manifest.shards[number], found.shard(number)
    batch = Batch(view.tokens.copy(), view.offsets.copy(), view.source.copy(), view.record.copy())
    change(batch)
    facts = found.manifest.tokenizer
    about = {"mtl.tokenizer": facts.fingerprint, "mtl.dtype": "uint16", "mtl.eod": str(facts.eod)}
    new = write_shard(bins / old.file, "uint16", [batch], about)
    edit(bins, lambda m: {"shards": (*m.shards[:number], new, *m.shards[number + 1 :])})


def edited_shard(number: int, **changes: Any) -> Edit:
    def change(manifest: Manifest) -> dict[str, Any]:
        shards = list(manifest.shards)
        shards[number] = shards[number].model_copy(update=changes)
        return {"shards": tuple(shards)}

    return change


def test_whole_bins_are_whole(whole: Path) -> None:
    assert list(verify(whole)) == []
    done = prep("verify", whole)
    assert (done.returncode, done.stderr) == (0, "")
    assert "records    21 = 20 documents + 1 bad (1 empty)\n" in done.stdout
    assert f"whole      {whole}: sizes, hashes," in done.stdout


def test_progress_counts_every_byte(whole: Path) -> None:
    seen: list[int] = []
    assert list(verify(whole, seen.append)) == []
    assert sum(seen) == sum(path.stat().st_size for path in whole.glob("*.arrow"))


# A byte in every region of a shard file.
REGIONS: dict[str, Callable[[Shard], int]] = {
    "magic": lambda shard: 2,
    "schema": lambda shard: 200,
    "batch header": lambda shard: shard.offsets_at - 100,
    "offsets": lambda shard: shard.offsets_at + 9,
    "padding": lambda shard: shard.offsets_at + 8 * (shard.documents + 1),
    "first id": lambda shard: shard.tokens_at,
    "ids": lambda shard: shard.tokens_at + shard.tokens,
    "source": lambda shard: shard.source_at + 4,
    "record": lambda shard: shard.record_at + 8,
    "footer": lambda shard: shard.size - 100,
    "end": lambda shard: shard.size - 1,
}


@pytest.mark.parametrize("region", REGIONS)
def test_one_wrong_bit_is_found_in_every_region(bins: Path, region: str) -> None:
    shard = read_manifest(bins).shards[1]
    flip(bins / shard.file, REGIONS[region](shard))
    problems = list(verify(bins))
    assert problems
    assert all(problem.startswith(f"{bins / shard.file}: ") for problem in problems)
    assert any("hash" in problem for problem in problems)


def test_no_byte_of_a_shard_is_outside_the_hashes(bins: Path) -> None:
    shard = read_manifest(bins).shards[2]
    for at in range(0, shard.size, shard.size // 40):
        flip(bins / shard.file, at)
        assert list(verify(bins)), at
        flip(bins / shard.file, at)
    assert list(verify(bins)) == []


def test_older_bins_without_a_hash_of_the_file_are_read_and_verified(bins: Path) -> None:
    path = bins / "manifest.json"
    content = json.loads(path.read_text())
    del content["digest"]
    for shard in content["shards"]:
        del shard["xxh3"]
    path.write_text(json.dumps(content | {"version": "1.0"}))
    assert list(verify(bins)) == []
    assert len(Bins(bins)) == 20


def test_files_cut_or_lengthened_or_gone(bins: Path) -> None:
    first, second, third = (bins / shard.file for shard in read_manifest(bins).shards)
    size = second.stat().st_size
    os.truncate(first, 1000)
    with second.open("ab") as file:
        file.write(b"x")
    third.unlink()
    problems = list(verify(bins))
    assert problems[0].startswith(f"{first}: it is cut off: 1,000 bytes instead of ")
    assert problems[1] == f"{second}: it is too long: {size + 1:,} bytes instead of {size:,}"
    assert problems[2] == f"{third}: it is missing"
    done = prep("verify", bins)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {bins} has 3 problems; restore it or make it again"
    assert [line.removeprefix("problem: ") for line in done.stderr.splitlines()[:-1]] == problems


def test_shards_in_each_others_places(bins: Path) -> None:
    first, second = (bins / shard.file for shard in read_manifest(bins).shards[:2])
    first.rename(bins / "x")
    second.rename(first)
    (bins / "x").rename(second)
    problems = list(verify(bins))
    assert any(problem.startswith(f"{first}: ") for problem in problems)
    assert any(problem.startswith(f"{second}: ") for problem in problems)


def test_shards_listed_in_another_order(bins: Path) -> None:
    edit(bins, lambda m: {"shards": (m.shards[1], m.shards[0], m.shards[2])})
    assert list(verify(bins)) == [
        f"{bins}/shard-00000.arrow: document 0: not after the one before in the order of sources and records"
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: {"documents": 19}, "it counts 19 documents, its shards 20"),
        (lambda m: {"tokens": 7}, "it counts 7 tokens, its shards"),
        (lambda m: {"dtype": "int32"}, "ids of type int32 do not hold a vocabulary of 1,024"),
        (
            lambda m: {"tokenizer": m.tokenizer.model_copy(update={"eod": 4096})},
            "the end of a document, 4096, is no id",
        ),
        (
            lambda m: {"tokenizer": m.tokenizer.model_copy(update={"vocab_size": 1000})},
            "it has 1,024 entries, the manifest says 1,000",
        ),
        (
            lambda m: {"sources": (m.sources[0].model_copy(update={"records": 13}), m.sources[1])},
            "the 13 records of ",
        ),
        (lambda m: {"sources": m.sources[:1]}, "from a source that is not listed"),
        (lambda m: {"shards": (*m.shards, m.shards[0])}, "it lists shard-00000.arrow 2 times"),
        (lambda m: {"shards": m.shards[:2]}, "shard-00002.arrow: the manifest does not list it"),
        (edited_shard(0, largest_id=1022), "the manifest says 1,022"),
        (edited_shard(0, tokens_at=1 << 40), "the manifest places its columns outside the file"),
        (edited_shard(1, source_at=512), "source_at is "),
        (edited_shard(1, xxh3_offsets="0" * 32), "the hash of its offsets does not match"),
        (edited_shard(1, xxh3="0" * 32), "its hash does not match"),
        (edited_shard(1, documents=3), "rows, not one of 3"),
    ],
)
def test_a_manifest_that_says_something_else(bins: Path, change: Edit, sentence: str) -> None:
    edit(bins, change)
    assert any(sentence in problem for problem in verify(bins)), list(verify(bins))


def test_documents_moved_from_one_source_to_another(bins: Path) -> None:
    def change(manifest: Manifest) -> dict[str, Any]:
        first, second = manifest.sources
        more = {"documents": first.documents + 1, "records": first.records + 1}
        less = {"documents": second.documents - 1, "records": second.records - 1}
        return {"sources": (first.model_copy(update=more), second.model_copy(update=less))}

    edit(bins, change)
    problems = list(verify(bins))
    assert [problem.partition(": ")[2] for problem in problems] == [
        "the manifest counts 13 documents, the shards 12",
        "the manifest counts 7 documents, the shards 8",
    ]


def test_a_list_of_bad_records_that_does_not_add_up(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(["text", "", b"nonsense", {"text": 3}]))
    tokenize(Request((tmp_path / "a.jsonl",), tokenizer, tmp_path / "bins", 1, max_bad="9"))
    assert list(verify(tmp_path / "bins")) == []
    listed = tmp_path / "bins" / "bad.jsonl"
    lines = listed.read_bytes().splitlines(keepends=True)
    listed.write_bytes(lines[1] + b"{\n")
    assert list(verify(tmp_path / "bins")) == [
        f"{listed}: line 2 is no bad record",
        f"{listed}: it lists 0 records of {tmp_path}/a.jsonl as not JSON, the manifest 1",
    ]
    listed.unlink()
    assert len(list(verify(tmp_path / "bins"))) == 2


def test_any_edit_of_the_manifest_is_seen(bins: Path) -> None:
    path = bins / "manifest.json"
    path.write_text(path.read_text().replace('"text_key": "text"', '"text_key": "body"'))
    assert list(verify(bins)) == [f"{path}: it was changed after it was written"]


def test_another_tokenizer(bins: Path, tmp_path: Path) -> None:
    train_bpe(bins / "tokenizer" / "tokenizer.json", 1000)
    assert list(verify(bins)) == [f"{bins}/tokenizer: it is not the tokenizer that made the bins"]
    shutil.rmtree(bins / "tokenizer")
    assert len(list(verify(bins))) == 1


def test_ids_outside_the_vocabulary(bins: Path) -> None:
    def change(batch: Batch) -> None:
        batch.ids[5] = 1024

    rewrite(bins, 1, change)
    assert list(verify(bins)) == [
        f"{bins}/shard-00001.arrow: its largest id is 1,024, of a vocabulary of 1,024"
    ]


def test_documents_without_their_end_or_with_one_inside(bins: Path) -> None:
    def change(batch: Batch) -> None:
        batch.ids[batch.offsets[1] - 1] = 9
        batch.ids[batch.offsets[3] + 1] = batch.ids[batch.offsets[-1] - 1]

    rewrite(bins, 1, change)
    assert list(verify(bins)) == [
        f"{bins}/shard-00001.arrow: document 0: not ended by the end-of-document id 0",
        f"{bins}/shard-00001.arrow: document 3: with the end-of-document id 0 before the end",
    ]


def test_offsets_that_do_not_rise(bins: Path) -> None:
    def change(batch: Batch) -> None:
        batch.offsets[2] = batch.offsets[1]

    rewrite(bins, 0, change)
    assert f"{bins}/shard-00000.arrow: document 1: no end after the beginning" in list(verify(bins))


def test_the_order_of_a_seed_is_no_damage(bins: Path) -> None:
    edit(bins, lambda m: {"shards": (m.shards[1], m.shards[0], m.shards[2])})
    assert len(list(verify(bins))) == 1
    edit(bins, lambda m: {"options": {**m.options, "shuffle_documents": 7}})
    assert list(verify(bins)) == []


@pytest.fixture
def marked(tmp_path: Path, tokenizer: Path) -> Path:
    """Bins with a loss column."""
    with Writer(tmp_path / "marked", tokenizer) as writer:
        writer.add([5, 6, 7], loss=[0, 1, 1])
        writer.add([8], loss=[0])
    assert list(verify(tmp_path / "marked")) == []
    return tmp_path / "marked"


def test_a_wrong_bit_in_the_loss(marked: Path) -> None:
    shard = read_manifest(marked).shards[0]
    assert shard.loss_at is not None
    flip(marked / shard.file, shard.loss_at + 1)
    problems = [problem.partition(": ")[2] for problem in verify(marked)]
    assert problems == [
        "the hash of its loss does not match",
        "its loss has marks up to 17, their sum is 20, not 4",
    ]


@pytest.mark.parametrize(
    ("starts", "good"),
    [
        ([0, 2, 0], True),
        ([0, 1, 0], True),
        ([1, 2, 0], False),
        ([0, 0, 0], False),
        ([0, 4, 0], False),
        ([0, 2, 1], False),
    ],
)
def test_sentences(tmp_path: Path, tokenizer: Path, starts: list[int], good: bool) -> None:
    """Two documents of four and two ids, of two sentences and of one."""
    with Writer(tmp_path / "bins", tokenizer) as writer:
        writer.add([5, 6, 7])
        writer.add([8])
    found = Bins(tmp_path / "bins")
    sentences = Sentences(np.array(starts, np.uint32), np.array([0, 2, 3]))
    batch = replace(found.shard(0).whole, sentences=sentences)
    facts = about(found.manifest.tokenizer.fingerprint, "uint16", 0)
    shard = write_shard(tmp_path / "bins" / "shard-00000.arrow", "uint16", [batch], facts)
    edit(tmp_path / "bins", lambda m: {"shards": (shard,)})
    problems = list(verify(tmp_path / "bins"))
    assert (problems == []) == good
    assert all("no rising beginnings of sentences from 0 on" in problem for problem in problems)


def test_records_that_do_not_rise(bins: Path) -> None:
    def change(batch: Batch) -> None:
        batch.record[1] = batch.record[0]

    rewrite(bins, 0, change)
    assert list(verify(bins)) == [
        f"{bins}/shard-00000.arrow: document 1: not after the one before in the order of sources and records"
    ]


def test_what_is_no_bins(tmp_path: Path) -> None:
    done = prep("verify", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {tmp_path} holds no finished token bins; make them with mtl-prep tokenize\n"
    )


def test_memory_does_not_follow_the_size_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of documents are told rightly when every piece cuts documents somewhere else."""
    from mtl_common.bins import ShardView
    from mtl_prep.finished import verify_shard as module

    ids = np.array([1, 0, 2, 3, 0, 4, 4, 4, 4, 4, 0, 5, 0], np.uint16)
    offsets = np.array([0, 2, 5, 11, 13], np.int64)
    batch = Batch(ids, offsets, np.zeros(4, np.uint32), np.arange(4, dtype=np.uint64))
    shard = write_shard(tmp_path / "a.arrow", "uint16", [batch])
    view = ShardView(tmp_path / "a.arrow", shard, "uint16")
    for piece in range(1, 15):
        monkeypatch.setattr(module, "PIECE", piece)
        ends = module._Ends(view, 0)
        for start in range(0, len(ids), piece):
            ends.look(start, view.tokens[start : start + piece])
        assert (ends.endless, ends.broken) == ([], [])
        ends = module._Ends(view, 4)
        for start in range(0, len(ids), piece):
            ends.look(start, view.tokens[start : start + piece])
        assert (ends.endless, set(ends.broken)) == ([0, 1, 2, 3], {2})
