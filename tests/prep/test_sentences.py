"""Documents as sentences: where they begin, whose ids they have, and that nothing of a text is lost."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from corpus import EMOJI, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_common.tokenizers import load
from mtl_prep.corpus.records import Documents, Giant
from mtl_prep.encoding import sentences
from mtl_prep.encoding.composers import Composition
from mtl_prep.encoding.engine import Watch
from preparing import Make, json_lines, shard_bytes, texts_of

ENGLISH = "Dr. Smith paid $3.50 in Washington, D.C. on Jan. 5th.  Really?\n\nYes!  It is so. "
EXPECTED = ["Dr. Smith paid $3.50 in Washington, D.C. on Jan. 5th.", "  Really?", "\n\nYes!", "  It is so. "]
GERMAN = "Am 3. Mai kam sie. Wer? Ich."
ODD = (
    " ",
    "  \n ",
    "...",
    "?!",
    "no end",
    f"{EMOJI} {EMOJI}. \u4f60\u597d\u3002\u4e16\u754c\uff01",
    ENGLISH * 3,
)


def sentences_of(bins: Bins, document: int) -> list[str]:
    """The text of every sentence of a document."""
    tokenizer, ids = load(bins.tokenizer), bins.document(document)
    bounds = [*bins.sentences(document).tolist(), len(ids) - 1]
    return [tokenizer.decode(ids[a:b].tolist()) for a, b in pairwise(bounds)]


def test_sentences_begin_where_they_should(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(json_lines([ENGLISH, "One only", "One. Two."]))
    bins = make(source, sentences="en")
    assert sentences_of(bins, 0) == EXPECTED
    assert sentences_of(bins, 1) == ["One only"]
    assert sentences_of(bins, 2) == ["One.", " Two."]
    assert not bins.has_loss
    assert (bins.manifest.shards[0].sentences, bins.manifest.shards[0].one_sentence) == (7, 1)


def test_ids_are_those_of_the_sentences_one_by_one(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(json_lines([ENGLISH, *ODD]))
    bins = make(source, sentences="en")
    encode, split = load(bins.tokenizer).encode, sentences.Splitter("en").split
    assert texts_of(bins) == [ENGLISH, *ODD]
    for i, text in enumerate([ENGLISH, *ODD]):
        assert bins.document(i).tolist() == [id for part in split(text) for id in encode(part)] + [bins.eod]
        assert sentences_of(bins, i) == split(text)


def test_the_language_decides(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text(GERMAN)
    assert sentences_of(make(source, sentences="de", name="de"), 0) == [
        "Am 3. Mai kam sie.",
        " Wer?",
        " Ich.",
    ]
    assert sentences_of(make(source, sentences="en", name="en"), 0)[0] == "Am 3."


def test_workers_and_shards_change_nothing(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(json_lines([text[:3000] for text in stdlib_texts(40)] + [ENGLISH] * 40))
    cut = {"sentences": "en", "shard_tokens": 5000, "part_bytes": 20_000}
    one, two, whole = (
        make(source, **cut),
        make(source, name="two", workers=2, **cut),
        make(source, name="w", sentences="en"),
    )
    assert len(one.manifest.shards) > 3
    assert shard_bytes(one) == shard_bytes(two)
    for i in range(len(whole)):
        assert np.array_equal(one.document(i), whole.document(i))
        assert np.array_equal(one.sentences(i), whole.sentences(i))


def test_a_splitter_loses_nothing() -> None:
    draw, split = random.Random(3), sentences.Splitter("en").split
    parts = [
        "a",
        " ",
        "\n",
        ".",
        "! ",
        "?\n\n",
        "Mr. ",
        "\u3002",
        '"',
        "(",
        ")",
        "\u2028",
        "\r\n",
        "3.5",
        "etc.",
        "\t",
        EMOJI,
    ]
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randrange(1, 30)))
        found = split(text)
        assert "".join(found) == text
        assert all(part.strip() for part in found) or not text.strip()


def test_a_text_that_comes_in_pieces_has_the_sentences_of_the_whole() -> None:
    splitter = sentences.Splitter("en")
    text = (ENGLISH + "What now? Nothing at all.\n") * 200
    whole = splitter.split(text)
    for size, feed in ((7, 1000), (1000, 1000), (10**6, 3000)):
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        grown = [piece.text for feed in sentences.grown(pieces, splitter.pieces, feed) for piece in feed]
        assert grown == whole


def test_languages_without_rules_are_named(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for language in sentences.RULED.split():
        assert not sentences.Splitter(language).warning()
    assert not sentences.Splitter("gsw").warning()  # those of German
    (tmp_path / "a.txt").write_text("\u4f60\u597d\u3002 \u4e16\u754c\u3002")
    bins = make(tmp_path / "a.txt", sentences="zh")
    assert len(bins.sentences(0)) == 2
    told = capsys.readouterr().err
    assert (
        told.count("warning: --sentences zh: sentencex has no rules for it and takes those for English") == 1
    )
    assert "it has rules for am ar bg" in told
    assert 'did you mean "en"' in sentences.Splitter("eng").warning()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sentences": "english"}, "--sentences english is no code of a language, such as en or de"),
        ({"sentences": "en", "shape": "qa"}, "--sentences is for texts, not for --shape qa"),
    ],
)
def test_impossible_requests(make: Make, tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(json_lines(["x"]))
    with pytest.raises(UsageError, match=sentence):
        make(source, **options)


def test_a_document_that_is_read_in_pieces_is_as_one_that_is_not(tokenizer: Path, tmp_path: Path) -> None:
    loaded, text = load(tokenizer), ENGLISH * 60_000
    composing = Composition(language="en").composing(loaded, 0, "uint16")
    assert composing is not None
    small, large = Documents(), Documents(giant=Giant(0, 3, lambda: iter([text[:70_001], text[70_001:]])))
    small.add(0, 3, text)
    (one,), (two,) = (
        [replace(batch, ids=batch.ids.copy()) for batch in composing.batches(Watch(loaded), found, tmp_path)]
        for found in (small, large)
    )
    assert one.sentences is not None
    assert two.sentences is not None
    assert len(one.ids) > 10**6
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.sentences.starts, two.sentences.starts)
    assert (two.offsets.tolist(), two.record.tolist()) == ([0, len(one.ids)], [3])
    assert not list(tmp_path.iterdir())
