"""Long documents are encoded in pieces, to the ids of the whole; what cannot be is a counted bad record."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from corpus import EMOJI, END, stdlib_texts
from mtl_common.bins import Bins
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus.records import BadRecordError
from mtl_prep.corpus.units import Reading
from mtl_prep.encoding import giants
from mtl_prep.encoding.giants import streamed
from mtl_prep.running.tokenize import Request, tokenize
from preparing import Make, bad_of, json_lines, texts_of

SENTENCES = [
    EMOJI,
    "don't we'll \u00df\u1e9e cafe\u0301 na\u00efve 1,234.5 (x)\t\n\n\n  indented\r\n",
    "\u4f60\u597d\u4e16\u754c\uff0c\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002\u518d\u89c1\uff01",
    f"quotes {END} inside",
    "\u0917\u0941\u0930\u0941\u091c\u0940 \u0e2a\u0e27 \u0645\u0631\u062d\u0628\u0627",
    "=" * 90 + " " * 60 + "word" * 40,
    "the quick brown fox",
]


def mixed(seed: int, count: int) -> str:
    chance = random.Random(seed)
    lines = [line for text in stdlib_texts(10) for line in text.splitlines(keepends=True)]
    return "".join(chance.choice(SENTENCES if chance.random() < 0.3 else lines) for _ in range(count))


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def sentencepiece_model(directory: Path) -> Path:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in stdlib_texts(6) for line in text.splitlines() if line]),
        model_prefix=str(directory / "own"),
        vocab_size=600,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    return directory / "own.model"


def word_piece(directory: Path) -> Path:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(
        stdlib_texts(6), trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", "[SEP]"])
    )
    library.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"


@pytest.fixture(scope="module", params=["bpe", "sentencepiece", "wordpiece"])
def any_tokenizer(
    request: pytest.FixtureRequest, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    directory = tmp_path_factory.mktemp(request.param)
    makers = {"sentencepiece": sentencepiece_model, "wordpiece": word_piece}
    return load(makers[request.param](directory) if request.param in makers else tokenizer)


@pytest.mark.parametrize(("feed", "size"), [(2_000, 300), (2_000, 70_000), (30_000, 1_000)])
def test_pieces_give_the_ids_of_the_whole(any_tokenizer: Tokenizer, feed: int, size: int) -> None:
    text = mixed(feed + size, 3_000)
    parts = list(streamed(any_tokenizer, pieces(text, size), feed))
    assert len(parts) > len(text) // feed // 2
    assert np.array_equal(np.concatenate(parts), any_tokenizer.encode_batch([text])[0])


def test_a_run_without_a_place_to_cut_is_encoded_as_one(any_tokenizer: Tokenizer) -> None:
    text = "a word " * 300 + "x" * 20_000 + " and words" * 300
    parts = list(streamed(any_tokenizer, pieces(text, 500), 2_000))
    assert 2 < len(parts) < 6
    assert np.array_equal(np.concatenate(parts), any_tokenizer.encode_batch([text])[0])


def test_a_longer_run_is_refused(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giants, "UNCUT", 8_000)
    with pytest.raises(BadRecordError, match="no place to cut"):
        list(streamed(load(tokenizer), pieces("y" * 20_000, 500), 2_000))


def test_long_documents_between_short_ones(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["first", mixed(1, 900), "second", mixed(2, 1_500), mixed(3, 800), "last"]
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(texts))
    whole = make(path, name="whole")
    monkeypatch.setattr("mtl_prep.encoding.encode.FEED", 5_000)
    monkeypatch.setattr(giants, "streamed", lambda t, p: streamed(t, p, 5_000))
    cut = make(path, name="cut")
    assert texts_of(cut) == texts
    assert cut.window(0, cut.tokens).tolist() == whole.window(0, whole.tokens).tolist()
    monkeypatch.setattr(giants, "UNCUT", 5_000)
    path.write_bytes(json_lines(["first", "z" * 30_000, "last"]))
    bins = make(path, name="refused")
    assert texts_of(bins) == ["first", "last"]
    assert bad_of(bins) == {giants.UNCUTTABLE: 1}


def test_every_character_is_counted_however_it_is_read(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["first", mixed(1, 900), "second", mixed(2, 1_500), "last"]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    monkeypatch.setattr("mtl_prep.encoding.encode.FEED", 20_000)
    monkeypatch.setattr("mtl_prep.running.tokenize.Reading", partial(Reading, giant=50_000))
    request = Request([tmp_path / "a.jsonl"], tokenizer, tmp_path / "bins", 1)
    assert tokenize(request).characters == sum(map(len, texts))
    assert texts_of(Bins(tmp_path / "bins")) == texts


def test_a_million_repeats_and_ten_million_letters(make: Make, tmp_path: Path) -> None:
    texts = [
        "before",
        "^" * 1_000_000,
        "between",
        "".join(random.Random(0).choices("abcdefgh", k=10_000_000)),
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([*texts, "after"]))
    bins = make(path)
    assert texts_of(bins) == [*texts, "after"]
