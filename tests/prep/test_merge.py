"""mtl-prep merge: the bytes of one run over the corpora together, and a refusal of what does not fit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from corpus import make_bins, stdlib_texts, train_bpe
from mtl_common.bins import Bins, Writer, read_manifest, write_manifest
from mtl_common.errors import UsageError
from mtl_prep.finished.merge import merge
from mtl_prep.finished.verify import verify
from preparing import Make, all_bytes, json_lines, prep, texts_of

TEXTS = [text[:5000] for text in stdlib_texts(24)]


@pytest.fixture
def corpora(tmp_path: Path) -> list[Path]:
    """Three corpora: many lines and bad ones, a single document, a directory of files."""
    (tmp_path / "a.jsonl").write_bytes(json_lines([*TEXTS[:10], "", b"nonsense", *TEXTS[10:12]]))
    (tmp_path / "b.jsonl").write_bytes(json_lines([TEXTS[12]]))
    (tmp_path / "c").mkdir()
    for number, text in enumerate(TEXTS[13:]):
        (tmp_path / "c" / f"{number:02}.py").write_text(text, "utf-8")
    (tmp_path / "c" / "99.py").write_bytes(b"\xff not UTF-8")
    return [tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c"]


@pytest.mark.parametrize("shard_tokens", [1 << 20, 9000, 2000, 700])
def test_merged_is_one_run_over_all_byte_for_byte(
    make: Make, corpora: list[Path], tmp_path: Path, shard_tokens: int
) -> None:
    parts = [make(path, name=f"part-{path.stem}", shard_tokens=shard_tokens).path for path in corpora]
    make(*corpora, name="whole", shard_tokens=shard_tokens)
    merge(parts, tmp_path / "merged")
    merged, whole = all_bytes(tmp_path / "merged"), all_bytes(tmp_path / "whole")
    assert merged.keys() == whole.keys()
    assert "bad.jsonl" in merged
    for name in whole:
        assert merged[name] == whole[name], name
    assert list(verify(tmp_path / "merged")) == []


def test_the_order_is_the_one_given(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem).path for path in corpora[:2])
    done = prep("merge", two, one, "--out", "merged", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "records    15 = 13 documents + 2 bad (1 empty, 1 not JSON)\n" in done.stdout
    assert done.stdout.endswith("next: mtl-prep verify merged\n")
    assert texts_of(Bins(tmp_path / "merged")) == [TEXTS[12], *TEXTS[:12]]


def test_other_sizes_of_shards_when_asked(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one = make(corpora[0], name="one", shard_tokens=2000).path
    two = make(corpora[1], name="two", shard_tokens=3000).path
    with pytest.raises(UsageError, match=r"--shard-tokens is 2000 of one, 3000 of the other"):
        merge([one, two], tmp_path / "merged")
    merge([one, two], tmp_path / "merged", shard_tokens=4000)
    make(*corpora[:2], name="whole", shard_tokens=4000)
    assert all_bytes(tmp_path / "merged") == all_bytes(tmp_path / "whole")


def edited(path: Path, out: Path, **changes: Any) -> Path:
    """A copy of bins whose manifest says something else."""
    shutil.copytree(path, out)
    write_manifest(out, read_manifest(out).model_copy(update=changes))
    return out


def test_what_does_not_fit_is_refused_by_name(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem) for path in corpora[:2])
    other = train_bpe(tmp_path / "other.json", 900)
    facts = two.manifest.tokenizer
    options = two.manifest.options
    wrong = {
        "tokenizer is ": make(corpora[1], name="x", tokenizer=other).path,
        "id type is .uint16. of one, .uint32. of the other": edited(two.path, tmp_path / "d", dtype="uint32"),
        "--eod is 0 of one, 7 of the other": edited(
            two.path, tmp_path / "e", tokenizer=facts.model_copy(update={"eod": 7})
        ),
        '--text-key is "text" of one, "body" of the other': edited(
            two.path, tmp_path / "t", options={**options, "text_key": "body"}
        ),
        "--new is null of one, true of the other": edited(
            two.path, tmp_path / "n", options={**options, "new": True}
        ),
    }
    for sentence, path in wrong.items():
        with pytest.raises(UsageError, match=sentence):
            merge([one.path, path], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_shuffled_bins_are_refused(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem) for path in corpora[:2])
    options = {**two.manifest.options, "shuffle_documents": 3}
    shuffled = edited(two.path, tmp_path / "s", options=options)
    with pytest.raises(UsageError, match="s was shuffled"):
        merge([one.path, shuffled], tmp_path / "merged")


def test_16_and_32_bits(tmp_path: Path) -> None:
    narrow = make_bins(tmp_path / "narrow", [[1, 2]], 65_536)
    wide = make_bins(tmp_path / "wide", [[1, 70_000]], 70_001)
    done = prep("merge", narrow, wide, "--out", tmp_path / "merged")
    assert done.returncode == 2
    assert done.stderr == (
        f'error: {narrow} and {wide} cannot be merged: id type is "uint16" of one, "uint32" of the other\n'
    )
    assert not (tmp_path / "merged").exists()


def test_bins_with_and_without_a_loss(tmp_path: Path, tokenizer: Path) -> None:
    for name, loss in (("a", [1, 0]), ("b", None)):
        with Writer(tmp_path / name, tokenizer, source=name) as writer:
            writer.add([5, 6], loss=loss)
    with pytest.raises(UsageError, match="loss column is true of one, false of the other"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")


def test_the_loss_goes_along(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("a", "b"):
        with Writer(tmp_path / name, tokenizer, source=name) as writer:
            writer.add([5, 6], loss=[1, 0])
            writer.add([7], loss=[0])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    merged = Bins(tmp_path / "merged")
    assert [merged.loss(i).tolist() for i in range(4)] == [[1, 0, 1], [0, 1]] * 2
    assert [merged.origin(i) for i in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_same_source_twice_is_refused(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one = make(corpora[1], name="one").path
    copy = shutil.copytree(one, tmp_path / "copy")
    for paths in ([one, one], [one, copy]):
        with pytest.raises(UsageError, match=r"b\.jsonl is in .*one and in .*; merge it once"):
            merge(paths, tmp_path / "merged")


def test_one_alone_and_what_exists(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem).path for path in corpora[:2])
    with pytest.raises(UsageError, match="at least two"):
        merge([one], tmp_path / "merged")
    before = all_bytes(one)
    with pytest.raises(UsageError, match=r"a exists; choose another --out"):
        merge([two, one], one)
    assert all_bytes(one) == before
