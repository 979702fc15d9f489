"""mtl-prep merge: the bytes of one run over the corpora together, and a refusal of what does not fit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from corpus import make_bins, stdlib_texts, train_bpe
from mtl_common.bins import Bins, Writer, read_manifest, size_of, write_manifest
from mtl_common.errors import DataError, UsageError
from mtl_prep.finished.merge import Request, merge
from mtl_prep.finished.reorder import Reordered
from mtl_prep.finished.split import Request as Split
from mtl_prep.finished.split import split
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
    merge(Request(parts, tmp_path / "merged"))
    same_but_for_its_parts(tmp_path / "merged", tmp_path / "whole")
    assert [(p.documents, p.sources) for p in read_manifest(tmp_path / "merged").parts or ()] == [
        (12, 1),
        (1, 1),
        (11, 12),
    ]


def same_but_for_its_parts(merged: Path, whole: Path) -> None:
    """Every file of merged bins is that of the run over all; its manifest also says what it was merged of."""
    found, expected = all_bytes(merged), all_bytes(whole)
    assert found.keys() == expected.keys()
    assert "bad.jsonl" in found
    for name in expected.keys() - {"manifest.json"}:
        assert found[name] == expected[name], name
    manifest = read_manifest(merged)
    assert manifest.model_copy(update={"parts": None}) == read_manifest(whole)
    assert sum(part.tokens for part in manifest.parts or ()) == manifest.tokens
    assert list(verify(merged)) == []


@pytest.mark.parametrize("orders", [(None, None, None), (3, 4, None), (7, 7, 7)])
@pytest.mark.parametrize("shard_tokens", [9000, 700])
def test_shuffled_by_a_seed_is_one_shuffled_run(
    make: Make, corpora: list[Path], tmp_path: Path, orders: tuple[int | None, ...], shard_tokens: int
) -> None:
    """In whichever order the inputs are."""
    parts = [
        make(path, name=f"part-{path.stem}", shard_tokens=shard_tokens, shuffle_documents=seed).path
        for path, seed in zip(corpora, orders, strict=True)
    ]
    make(*corpora, name="whole", shard_tokens=shard_tokens, shuffle_documents=7)
    merge(Request(parts, tmp_path / "merged", shuffle_documents=7))
    same_but_for_its_parts(tmp_path / "merged", tmp_path / "whole")


def test_many_ranges_of_keys_are_one_order(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    inputs = [make(path, name=f"part-{path.stem}") for path in corpora]
    orders = []
    for size in (1 << 24, 3000, 100):
        with Reordered(inputs, 5, tmp_path, range_tokens=size) as order:
            batches = list(order.batches())
            orders.append([(s, r) for b in batches for s, r in zip(b.source, b.record, strict=True)])
            assert order.sizes(1 << 20).shards == (size_of(batches),)
    assert orders[0] == orders[1] == orders[2]
    assert len(set(orders[0])) == sum(map(len, inputs))
    assert orders[0] != sorted(orders[0])


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
    with pytest.raises(UsageError, match=r"one has shards of 2,000 tokens, .*two of 3,000; say which with"):
        merge(Request([one, two], tmp_path / "merged"))
    merge(Request([one, two], tmp_path / "merged", shard_tokens=4000))
    make(*corpora[:2], name="whole", shard_tokens=4000)
    same_but_for_its_parts(tmp_path / "merged", tmp_path / "whole")


def edited(path: Path, out: Path, **changes: Any) -> Path:
    """A copy of bins whose manifest says something else."""
    shutil.copytree(path, out)
    write_manifest(out, read_manifest(out).model_copy(update=changes))
    return out


def test_what_does_not_fit_is_refused_by_name(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem) for path in corpora[:2])
    other = train_bpe(tmp_path / "other.json", 900)
    facts = two.manifest.tokenizer
    wrong = {
        "tokenizer is ": make(corpora[1], name="x", tokenizer=other).path,
        "id type is .uint16. of one, .uint32. of the other": edited(two.path, tmp_path / "d", dtype="uint32"),
        "--eod is 0 of one, 7 of the other": edited(
            two.path, tmp_path / "e", tokenizer=facts.model_copy(update={"eod": 7})
        ),
    }
    for sentence, path in wrong.items():
        with pytest.raises(UsageError, match=sentence):
            merge(Request([one.path, path], tmp_path / "merged"))
    assert not (tmp_path / "merged").exists()


def test_shuffled_bins_stand_one_after_the_other(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (
        make(path, name=f"part-{path.stem}", shuffle_documents=seed)
        for path, seed in zip(corpora[:2], (3, 4), strict=True)
    )
    three = make(corpora[2], name="part-c")
    done = prep("merge", one.path, two.path, three.path, "--out", "merged", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "order      one part after the other, 2 of them shuffled by themselves\n" in done.stdout
    merged = Bins(tmp_path / "merged")
    assert texts_of(merged) == [text for bins in (one, two, three) for text in texts_of(bins)]
    assert "shuffle_documents" not in merged.manifest.options
    assert [p.options.get("shuffle_documents") for p in merged.manifest.parts or ()] == [3, 4, None]
    assert merged.manifest.shuffled
    assert list(verify(merged.path)) == []


def test_parts_say_what_they_said_before(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    """Also after a second merge, and when another library encoded them, which the tokenizer's facts list."""
    one, two, three = (make(path, name=f"part-{path.stem}") for path in corpora)
    facts = two.manifest.tokenizer.model_copy(update={"engine": "other"})
    options = {**two.manifest.options, "text_key": "body", "new": True}
    two_b = edited(two.path, tmp_path / "b2", tokenizer=facts, options=options, tool="mtl-prep 0.0.9")
    merge(Request([one.path, two_b], tmp_path / "ab", shuffle_documents=1))
    merge(Request([three.path, tmp_path / "ab"], tmp_path / "merged"))
    manifest, engine = read_manifest(tmp_path / "merged"), one.manifest.tokenizer.engine
    assert manifest.tokenizer.engine == f"{engine}, other"
    assert manifest.options == {"eod": 0, "shard_tokens": 1 << 27}
    assert [(p.tool, p.engine, p.options) for p in manifest.parts or ()] == [
        (three.manifest.tool, engine, three.manifest.options),
        (one.manifest.tool, engine, {**one.manifest.options, "shuffle_documents": 1}),
        ("mtl-prep 0.0.9", "other", {**options, "shuffle_documents": 1}),
    ]
    shown = prep("inspect", tmp_path / "merged", "--samples", 0).stdout
    assert "merged of" in shown
    assert 'text_key "body", new true, shuffle_documents 1' in shown


def test_16_and_32_bits(tmp_path: Path) -> None:
    narrow = make_bins(tmp_path / "narrow", [[1, 2]], 65_536)
    wide = make_bins(tmp_path / "wide", [[1, 70_000]], 70_001)
    done = prep("merge", narrow, wide, "--out", tmp_path / "merged")
    assert done.returncode == 2
    assert done.stderr == (
        f'error: {narrow} and {wide} cannot be merged: id type is "uint16" of one, "uint32" of the other; '
        f"tokenize the other corpus anew with --tokenizer {narrow}/tokenizer\n"
    )
    assert not (tmp_path / "merged").exists()


def test_bins_with_and_without_a_loss(tmp_path: Path, tokenizer: Path) -> None:
    for name, loss in (("a", [1, 0]), ("b", None)):
        with Writer(tmp_path / name, tokenizer, source=name) as writer:
            writer.add([5, 6], loss=loss)
    with pytest.raises(UsageError, match="loss column is true of one, false of the other"):
        merge(Request([tmp_path / "a", tmp_path / "b"], tmp_path / "merged"))


def test_the_loss_goes_along(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("a", "b"):
        with Writer(tmp_path / name, tokenizer, source=name) as writer:
            writer.add([5, 6], loss=[1, 0])
            writer.add([7], loss=[0])
    merge(Request([tmp_path / "a", tmp_path / "b"], tmp_path / "merged"))
    merged = Bins(tmp_path / "merged")
    assert [merged.loss(i).tolist() for i in range(4)] == [[1, 0, 1], [0, 1]] * 2
    assert [merged.origin(i) for i in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_same_documents_twice_are_refused(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one = make(corpora[1], name="one").path
    copy = shutil.copytree(one, tmp_path / "copy")
    for paths in ([one, one], [one, copy]):
        with pytest.raises(
            UsageError, match=r"b\.jsonl is in .*one and in .*, with 1 documents? in both.*once"
        ):
            merge(Request(paths, tmp_path / "merged"))


def test_parts_that_do_not_add_up_are_told(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    merge(Request([make(path, name=f"part-{path.stem}").path for path in corpora], tmp_path / "merged"))
    manifest = read_manifest(tmp_path / "merged")
    one, *others = manifest.parts or ()
    wrong = one.model_copy(update={"documents": one.documents + 1, "sources": 2})
    write_manifest(tmp_path / "merged", manifest.model_copy(update={"parts": (wrong, *others)}))
    assert list(verify(tmp_path / "merged")) == [
        f"{tmp_path}/merged/manifest.json: it counts 24 documents, the parts that it was merged of 25",
        f"{tmp_path}/merged/manifest.json: it counts 14 sources, the parts that it was merged of 15",
    ]


def test_what_was_split_is_merged_again(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    bins = make(*corpora, name="bins", shard_tokens=5000)
    split(Split(bins.path, tmp_path / "parts", "a=0.5,b=0.3,c=0.2"))
    parts = [tmp_path / "parts" / name for name in "abc"]
    merge(Request(parts, tmp_path / "merged"))
    merged = Bins(tmp_path / "merged")
    assert sorted(texts_of(merged)) == sorted(texts_of(bins))
    assert {p.options["part"] for p in merged.manifest.parts or ()} == {
        f"{name} of a=0.5,b=0.3,c=0.2 by seed 0" for name in "abc"
    }
    assert list(verify(merged.path)) == []
    with pytest.raises(UsageError, match="documents in both"):
        merge(Request([*parts, bins.path], tmp_path / "again"))


def test_parts_of_merged_bins_say_what_they_were_merged_of(
    make: Make, corpora: list[Path], tmp_path: Path
) -> None:
    inputs = [make(path, name=f"part-{path.stem}", shuffle_documents=2) for path in corpora]
    merge(Request([bins.path for bins in inputs], tmp_path / "merged"))
    split(Split(tmp_path / "merged", tmp_path / "parts", "a=*/a.*,rest=*"))
    split(Split(tmp_path / "merged", tmp_path / "drawn", "one=0.5,two=0.5"))
    for name, expected in (("a", inputs[:1]), ("rest", inputs[1:])):
        manifest = read_manifest(tmp_path / "parts" / name)
        assert [(p.documents, p.tokens) for p in manifest.parts or ()] == [
            (len(b), b.tokens) for b in expected
        ]
        assert [p.options["shuffle_documents"] for p in manifest.parts or ()] == [2] * len(expected)
    for part in ("parts/a", "parts/rest", "drawn/one", "drawn/two"):
        assert list(verify(tmp_path / part)) == []


def test_a_damaged_input_makes_nothing(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem) for path in corpora[:2])
    shard = two.manifest.shards[0]
    content = bytearray((two.path / shard.file).read_bytes())
    content[shard.tokens_at] ^= 1
    (two.path / shard.file).write_bytes(content)
    for seed in (None, 1):
        with pytest.raises(DataError, match=r"b/shard-00000\.arrow is damaged"):
            merge(Request([one.path, two.path], tmp_path / "merged", shuffle_documents=seed))
    assert sorted(path.name for path in tmp_path.iterdir() if "merged" in path.name) == []


def test_one_alone_and_what_exists(make: Make, corpora: list[Path], tmp_path: Path) -> None:
    one, two = (make(path, name=path.stem).path for path in corpora[:2])
    with pytest.raises(UsageError, match="at least two"):
        merge(Request([one], tmp_path / "merged"))
    before = all_bytes(one)
    with pytest.raises(UsageError, match=r"a exists; choose another --out"):
        merge(Request([two, one], one))
    assert all_bytes(one) == before
