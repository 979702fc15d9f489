"""Training tokenizers: kinds, forms, special tokens; always the same, and as their libraries read them."""

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import EMOJI, END, stdlib_texts
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import load
from mtl_prep.corpus.find import find
from mtl_prep.corpus.units import Reading
from mtl_prep.vocabulary.drawn import MEASURED, Drawn
from mtl_prep.vocabulary.train import Wish, train
from preparing import json_lines, prep

TEXTS = [text[:20_000] for text in stdlib_texts(6)]
SPELLED = f"a  b\n {END} <s>x</s> <|fim_prefix|> <extra_id_0> {EMOJI}"
FORMS = [
    ("bpe", "json", "tokenizer.json"),
    ("bpe", "tiktoken", "ranks.tiktoken"),
    ("bpe", "sentencepiece", "tokenizer.model"),
    ("unigram", "json", "tokenizer.json"),
    ("unigram", "sentencepiece", "tokenizer.model"),
    ("wordpiece", "json", "tokenizer.json"),
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    records = [{"text": text, "lang": "python"} for text in TEXTS]
    path.write_bytes(json_lines([*records, {"text": "Gr\u00fc\u00dfe aus K\u00f6ln. " * 40, "lang": "de"}]))
    return path


def trained(corpus: Path, out: Path, **wish: Any) -> Path:
    train(Wish(corpus=[corpus], vocab_size=700, out=out, **wish))
    return out


def reference(path: Path, form: str) -> Any:
    """The library that owns a form, from text to ids; special text is text."""
    if form == "sentencepiece":
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
    if form == "tiktoken":
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
        ranks = load_tiktoken_bpe(str(path))
        return tiktoken.Encoding(
            "own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        ).encode_ordinary
    from transformers import PreTrainedTokenizerFast

    library: Any = PreTrainedTokenizerFast(tokenizer_file=str(path))  # type: ignore[no-untyped-call]
    return lambda text: library(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("kind", "form", "file"), FORMS)
def test_ids_are_those_of_the_library_that_owns_the_form(
    corpus: Path, tmp_path: Path, kind: str, form: str, file: str
) -> None:
    out = trained(corpus, tmp_path / "t", kind=kind, format=form, fim=True, sentinels=2, special=["<|x|>"])
    tokenizer, encode = load(out), reference(out / file, form)
    for text in [*TEXTS, SPELLED, " ", "\n", " a"]:
        assert tokenizer.encode(text) == encode(text)
    assert tokenizer.vocab_size <= 700
    assert tokenizer.eod in tokenizer.facts.specials
    for token in ("<|x|>", "<|fim_prefix|>", "<|fim_suffix|>", "<extra_id_0>", "<extra_id_1>"):
        assert tokenizer.token_id(token) in tokenizer.facts.specials
        assert tokenizer.token_id(token) not in tokenizer.encode(f"a {token} b")
    if kind != "wordpiece":
        assert tokenizer.decode(tokenizer.encode(SPELLED)) == SPELLED


@pytest.mark.parametrize(("kind", "form", "file"), FORMS)
def test_the_same_corpus_gives_the_same_vocabulary(
    corpus: Path, tmp_path: Path, kind: str, form: str, file: str
) -> None:
    one = trained(corpus, tmp_path / "one", kind=kind, format=form)
    done = prep(
        *("train-tokenizer", corpus, "--vocab-size", 700, "--kind", kind, "--format", form),
        *("--out", tmp_path / "two"),
    )  # in another process, where hash tables lie elsewhere
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / file).read_bytes() == (one / file).read_bytes()


def test_kinds_of_text_are_measured_apart(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(TEXTS[0])
    result = train(Wish(corpus=[corpus, tmp_path / "b.py"], vocab_size=600, out=tmp_path / "t"))
    report = json.loads((tmp_path / "t" / "compression.json").read_text())
    rows = {row["kind"]: row for row in report["kinds"]}
    assert set(rows) == {"python", "de", "Python", "all"}
    assert rows["all"]["documents"] == len(TEXTS) + 2
    sums = {
        name: sum(rows[kind][name] for kind in ("python", "de", "Python"))
        for name in ("size", "tokens", "words")
    }
    assert sums == {name: rows["all"][name] for name in sums}
    tokenizer = load(tmp_path / "t")
    tokens, words = len(tokenizer.encode(TEXTS[0])), len(TEXTS[0].split())
    assert (rows["Python"]["tokens"], rows["Python"]["words"]) == (tokens, words)
    assert rows["Python"]["bytes_per_token"] == round(len(TEXTS[0].encode()) / tokens, 4)
    assert result.peak > 1 << 20


def test_a_sample_is_part_of_the_corpus(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(json_lines([f"document {i} of many" for i in range(20_000)]))
    share = 100_000 / path.stat().st_size
    result = train(Wish(corpus=[path], vocab_size=300, out=tmp_path / "t", sample="100KB"))
    assert abs(result.documents / 20_000 - share) < 0.03


def test_text_to_measure_on_comes_from_all_over_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(json_lines([f"{i:06d} " + "x" * 20_000 for i in range(400)]))
    reading = Reading(find([path], "file").sources, "text", 1 << 24, "bad")
    drawn = Drawn(reading, 1 << 40)
    assert sum(map(len, drawn)) == drawn.characters == 400 * 20_007
    (kept,) = drawn.kept.values()
    numbers = sorted(int(text[:6]) for text in kept)
    assert MEASURED <= sum(map(len, kept)) < MEASURED + 20_007
    assert len(set(numbers)) == len(numbers) == MEASURED // 20_007 + 1
    assert (min(numbers) < 40, max(numbers) > 360) == (True, True)


def test_unigram_as_json_has_the_ids_of_the_model(corpus: Path, tmp_path: Path) -> None:
    """Runs of white space are pieces, which code needs."""
    one = load(trained(corpus, tmp_path / "json", kind="unigram"))
    other = load(trained(corpus, tmp_path / "model", kind="unigram", format="sentencepiece"))
    assert one.token_id("\u2581" * 4) == other.token_id("\u2581" * 4)
    assert one.token_id("\u2581" * 4) is not None
    for text in [*TEXTS, SPELLED, "", " ", "      x   y  ", "\u2581a \u2581", "a\t\t b\u00a0 c"]:
        assert one.encode(text) == other.encode(text)


def test_a_small_vocabulary_of_pieces_is_not_all_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(["".join(map(chr, range(0x4E00, 0x5200))), "hello there " * 200]))
    out = trained(path, tmp_path / "t", kind="wordpiece")
    assert load(out).vocab_size <= 700
    assert load(out).token_id("hello") is not None


@pytest.mark.parametrize(
    ("wish", "part"),
    [
        (
            {"vocab_size": 265, "format": "sentencepiece"},
            "265 entries are too few for this sample: its characters",
        ),
        ({"sample": "1B", "kind": "unigram"}, "none in so small a sample"),
        ({"sample": "1B"}, "none in so small a sample"),
    ],
)
def test_a_sample_that_does_not_do_is_told(
    corpus: Path, tmp_path: Path, wish: dict[str, Any], part: str
) -> None:
    with pytest.raises(DataError, match=part):
        train(Wish(**{"corpus": [corpus], "vocab_size": 700, "out": tmp_path / "t", **wish}))
    assert not (tmp_path / "t").exists()


def test_transformers_opens_what_was_trained(corpus: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for kind in ("bpe", "unigram", "wordpiece"):
        out = trained(corpus, tmp_path / kind, kind=kind, fim=True)
        library, ours = AutoTokenizer.from_pretrained(str(out)), load(out)
        assert library.eos_token_id == ours.eod
        assert library("def f(x):", add_special_tokens=False)["input_ids"] == ours.encode("def f(x):")


@pytest.mark.parametrize(
    ("wish", "part"),
    [
        ({"kind": "wordpeice"}, 'did you mean "wordpiece"'),
        ({"kind": "unigram", "format": "tiktoken"}, "choose json, sentencepiece"),
        ({"special": ["<|a|>", "<|a|>"]}, "is there already"),
        ({"special": [END]}, "is there already"),
        ({"vocab_size": 256}, "257 entries"),
        ({"vocab_size": 260, "fim": True}, "5 special tokens are 261 entries"),
        ({"sample": "much"}, "is no size"),
        ({"special": ["the"]}, r"'the' could be a word of text; write it like <\|the\|>"),
        ({"special": ["a"]}, "could be a word of text"),
        ({"special": [" "]}, r"write it like <\|x\|>"),
        ({"kind": "wordpiece", "special": ["the"]}, "could be a word of text"),
    ],
)
def test_what_cannot_be_made_is_told(corpus: Path, tmp_path: Path, wish: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        train(Wish(**{"corpus": [corpus], "vocab_size": 700, "out": tmp_path / "t", **wish}))
    assert not (tmp_path / "t").exists()
