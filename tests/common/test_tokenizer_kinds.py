"""Unusual tokenizer.json files: whichever engine encodes, ids are those of tokenizers, or it is refused."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from corpus import END, stdlib_texts, train_bpe
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import load

ENGINES = ("auto", "gigatoken", "fastokens")
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
SIZE = 1500
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
POOLS: list[list[str]] = [
    [chr(code) for code in range(32, 127)],
    [" ", "  ", "\n", "\t", "\r\n", "\x0b", "\x85", "\u00a0", "\u2028", "\u3000", "\u200b", "\x1c"],
    [chr(code) for code in (*range(0xA0, 0x180), *range(0x300, 0x340))],
    ["\u4f60", "\u597d", "\u3053", "\uac00", "\u0e2a", "\u0645", "\u05d0", "\U0001f600", "\u200d", "\ufe0f"],
    ["'s", "'LL", "n't", "\u0130", "\u1e9e", "\uff21", "\uff11", "\ufb01", "\u00b2", "\u0664", "12", "345"],
    ["foo", "Foo", "BAR", "<x>", "<x", "x>", "\n\n", "oo b", END, "<unk>", "\u2581", "##", "</w>", "[UNK]"],
    ["\x00", "\x04", "\x7f", "\ufeff", "\ufffd", "\u180e", "\u0295", "\ua7ce", "\U0010ffff"],
    ["def ", "return ", "self", ".", "(", ")", "import ", "the "],
]


def texts(count: int) -> list[str]:
    """Strings made to be awkward, the same ones every time."""
    draw = random.Random(11)

    def text() -> str:
        pools = draw.sample(POOLS, draw.randrange(1, 5))
        return "".join(draw.choice(draw.choice(pools)) for _ in range(draw.randrange(40)))

    return [text() for _ in range(count)]


TEXTS = texts(300)


def lines(count: int) -> list[str]:
    return [line for text in stdlib_texts(count) for line in text.splitlines()]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three trained vocabularies: of bytes as GPT-2's, of marked words as Llama's, of pieces as BERT's."""
    marked = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    marked.pre_tokenizer = pre_tokenizers.Metaspace()
    marked.decoder = decoders.Metaspace()
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=["<unk>", *alphabet], show_progress=False)
    marked.train_from_iterator(lines(4), trainer)
    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    pieces = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    words.train_from_iterator(lines(4), pieces)
    path = train_bpe(tmp_path_factory.mktemp("bpe") / "tokenizer.json", SIZE)
    found = {name: json.loads(library.to_str()) for name, library in (("marked", marked), ("words", words))}
    found["marked"]["added_tokens"] = found["marked"]["added_tokens"][:1]
    return {**found, "bytes": json.loads(path.read_text())}


Change = Callable[[Any], dict[str, Any]]


def keys(**changes: Any) -> Change:
    return lambda content: content | changes


def model(**changes: Any) -> Change:
    return lambda content: content | {"model": content["model"] | changes}


def added(*names: str, special: bool = False, **flags: bool) -> Change:
    tokens = [
        {"id": SIZE + n, "content": name, "special": special, **FLAGS, **flags}
        for n, name in enumerate(names)
    ]
    return lambda content: content | {"added_tokens": content["added_tokens"] + tokens}


def both(one: Change, other: Change) -> Change:
    return lambda content: other(one(content))


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def sequence(*parts: dict[str, Any]) -> Change:
    return keys(pre_tokenizer={"type": "Sequence", "pretokenizers": [*parts, BYTES]})


def without(*tokens: str) -> Change:
    def change(content: Any) -> dict[str, Any]:
        kept = {token: id for token, id in content["model"]["vocab"].items() if token not in tokens}
        return model(vocab=kept)(content)

    return change


LLAMA = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
DIGITS = {"type": "Digits", "individual_digits": True}
KINDS: dict[str, tuple[str, Change]] = {
    **{
        f"normalizer {name}": ("bytes", keys(normalizer={"type": name}))
        for name in ("NFC", "NFKC", "Lowercase")
    },
    "a prepended letter": ("bytes", keys(normalizer={"type": "Prepend", "prepend": "x"})),
    "a space before": ("bytes", keys(pre_tokenizer={**BYTES, "use_regex": True, "add_prefix_space": True})),
    "no cutting": ("bytes", keys(pre_tokenizer=BYTES)),
    "digits alone": ("bytes", sequence(DIGITS, split(CL100K))),
    "cl100k": ("bytes", both(sequence(split(CL100K)), model(ignore_merges=True))),
    "merged with the next": ("bytes", sequence(split(r"\s", "MergedWithNext"))),
    "another order of merges": ("bytes", lambda c: model(merges=c["model"]["merges"][::-1])(c)),
    "a token without a merge": ("bytes", lambda c: model(vocab={**c["model"]["vocab"], "qzqz": SIZE})(c)),
    "the same, taken whole": (
        "bytes",
        lambda c: model(vocab={**c["model"]["vocab"], "qzqz": SIZE}, ignore_merges=True)(c),
    ),
    "dropout and cutting": (
        "bytes",
        both(
            model(dropout=0.5),
            keys(truncation={"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}),
        ),
    ),
    "fused unknown": ("bytes", model(unk_token="e", fuse_unk=True)),
    "byte fallback of bytes": ("bytes", model(byte_fallback=True)),
    "end of word": ("bytes", model(end_of_word_suffix="</w>")),
    "lost bytes": ("bytes", without("\u0126", "\u0127")),
    "added": ("bytes", added("foo", "oo b", "\n\n", "  ", "<x")),
    **{
        f"added, {flag}": ("bytes", added("foo", "\n\n", "<x>", **{flag: True}))
        for flag in ("single_word", "lstrip", "rstrip", "normalized")
    },
    "added, all at once": ("bytes", added("foo", "\n\n", "<x>", **dict.fromkeys(FLAGS, True))),
    "added, small letters": (
        "bytes",
        both(keys(normalizer={"type": "Lowercase"}), added("Foo", "BAR", normalized=True)),
    ),
    "special, all at once": ("bytes", added("foo", "<x>", special=True, **dict.fromkeys(FLAGS, True))),
    "marked": ("marked", keys()),
    "marked at the first word": (
        "marked",
        keys(
            pre_tokenizer={
                "type": "Metaspace",
                "replacement": "\u2581",
                "prepend_scheme": "first",
                "split": False,
            }
        ),
    ),
    "as Llama 2": ("marked", keys(normalizer=LLAMA, pre_tokenizer=None)),
    "no fallback": ("marked", model(byte_fallback=False, fuse_unk=False)),
    "a fallback lacks a byte": ("marked", without("<0xC3>", "<0x0A>")),
    "marked, added": ("marked", added("foo", "\u2581\u2581", "<x>")),
    "words": ("words", keys()),
    "words with case": ("words", lambda c: keys(normalizer={**c["normalizer"], "lowercase": False})(c)),
    "short words": ("words", model(max_input_chars_per_word=5)),
    "words, added": ("words", added("foo", "[x y]")),
    "words, special": ("words", added("foo", "[x y]", special=True)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_engine_gives_the_ids_of_tokenizers(bases: dict[str, Any], tmp_path: Path, name: str) -> None:
    base, change = KINDS[name]
    content = change(bases[base])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    content["model"].pop("dropout", None)
    library = tokenizers.Tokenizer.from_str(json.dumps(content | {"truncation": None, "padding": None}))
    library.encode_special_tokens = True
    expected = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    refused = []
    for engine in ENGINES:
        try:
            tokenizer = load(tmp_path, engine=engine)
        except UsageError:
            refused.append(engine)
            continue
        ids, offsets = tokenizer.encode_batch(TEXTS)
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert "auto" not in refused


def test_a_file_on_which_the_library_gives_up_is_one_sentence(bases: dict[str, Any], tmp_path: Path) -> None:
    content = model(continuing_subword_prefix="##")(bases["bytes"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer\.json that tokenizers can read"):
        load(tmp_path)
