"""Training tokenizers: kinds, forms, special tokens; always the same, and as their libraries read them."""

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import EMOJI, END, stdlib_texts
from mtl_common.errors import UsageError
from mtl_common.tokenizers import load
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
    ],
)
def test_what_cannot_be_made_is_told(corpus: Path, tmp_path: Path, wish: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        train(Wish(**{"corpus": [corpus], "vocab_size": 700, "out": tmp_path / "t", **wish}))
    assert not (tmp_path / "t").exists()
