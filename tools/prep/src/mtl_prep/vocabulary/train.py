"""Trains tokenizers and writes them as tokenizer.json, tiktoken ranks or a sentencepiece model.

All are read back through `mtl_common.tokenizers.load` before they are put in place, by one rename.
"""

import base64
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mtl_common.config import nearest
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus.find import Corpus, find
from mtl_prep.corpus.kinds import Split
from mtl_prep.corpus.units import Errors, Reading
from mtl_prep.running.stdin import taken_in
from mtl_prep.vocabulary import learning
from mtl_prep.vocabulary.compression import Compression, measured
from mtl_prep.vocabulary.drawn import Drawn
from mtl_prep.vocabulary.learning import BERT_SPECIALS, END

FILL_IN_THE_MIDDLE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>")
SENTENCE_PIECES = ("<unk>", "<s>", "</s>")
BYTES = 256
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
REPORT = "compression.json"
# What each kind of vocabulary can be written as, the usual form first.
FORMATS = {
    "bpe": ("json", "tiktoken", "sentencepiece"),
    "unigram": ("json", "sentencepiece"),
    "wordpiece": ("json",),
}
FILES = {"json": "tokenizer.json", "tiktoken": "ranks.tiktoken", "sentencepiece": "tokenizer.model"}
SAMPLE = {"bpe": "256MB", "unigram": "32MB", "wordpiece": "256MB"}  # sentencepiece holds all it learns from


@dataclass(frozen=True)
class Wish:
    """What the command line asked for."""

    corpus: Sequence[str | Path]
    vocab_size: int
    out: Path
    sample: str | None = None
    text_key: str = "text"
    split: Split = "file"
    errors: Errors = "bad"
    kind: str = "bpe"
    format: str = "json"
    special: Sequence[str] = ()
    fim: bool = False
    sentinels: int = 0

    @property
    def by_sentencepiece(self) -> bool:
        """Whether sentencepiece learns it."""
        return self.kind == "unigram" or self.format == "sentencepiece"

    @property
    def named(self) -> list[str]:
        """The special tokens that every vocabulary of the kind has."""
        if self.by_sentencepiece:
            return list(SENTENCE_PIECES)
        return list(BERT_SPECIALS) if self.kind == "wordpiece" else [END]

    @property
    def asked(self) -> list[str]:
        """The special tokens that were asked for."""
        middle = FILL_IN_THE_MIDDLE if self.fim else ()
        return [*self.special, *middle, *(f"<extra_id_{i}>" for i in range(self.sentinels))]

    @property
    def smallest(self) -> int:
        """Entries without which it is no vocabulary of the kind."""
        return len(self.named) + len(self.asked) + (0 if self.kind == "wordpiece" else BYTES)


@dataclass(frozen=True)
class Trained:
    """A new tokenizer: asked-for and true size, what it makes of its sample, and the most memory it took.

    `share` of the corpus is in the sample, whose documents and characters are told.
    """

    path: Path
    asked: int
    vocab_size: int
    share: float
    documents: int
    characters: int
    compression: Sequence[Compression]
    peak: int


def parse_size(text: str) -> int:
    """`"256MB"` -> 256_000_000; raises UsageError for what is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.strip().upper())
    if not found or not float(found[1]):
        raise UsageError(f"--sample {text} is no size; write it like 256MB")
    return round(float(found[1]) * UNITS[found[2]])


def _check(wish: Wish) -> None:
    """Raises UsageError for what cannot be made."""
    if wish.kind not in FORMATS:
        raise UsageError(
            f"--kind {wish.kind} is none{nearest(wish.kind, FORMATS)}; choose {', '.join(FORMATS)}"
        )
    formats = FORMATS[wish.kind]
    if wish.format not in formats:
        raise UsageError(
            f"--format {wish.format} is none for --kind {wish.kind}{nearest(wish.format, formats)}; "
            f"choose {', '.join(formats)}"
        )
    if wish.format == "tiktoken" and wish.asked and wish.out.suffix == ".tiktoken":
        raise UsageError("a file of ranks cannot name special tokens; choose a directory for --out")
    tokens = [*wish.named, *wish.asked]
    twice = next((token for token in tokens if tokens.count(token) > 1 or not token), None)
    if twice is not None:
        raise UsageError(f"the special token {twice!r} is there already, or empty; name each once")
    word = next(
        (t for t in wish.asked if not wish.by_sentencepiece and learning.spellable(t, wish.kind)), None
    )
    if word is not None:
        raise UsageError(
            f"--special {word!r} could be a word of text; write it like <|{word.strip() or 'x'}|>"
        )
    if wish.vocab_size < wish.smallest:
        what = "" if wish.kind == "wordpiece" else f"{BYTES} bytes and "
        specials = tokens[0] if len(tokens) == 1 else f"{len(tokens)} special tokens"
        least = f"{what}{specials} are {wish.smallest} entries"
        raise UsageError(f"--vocab-size {wish.vocab_size} is too small: {least}")


def _place(wish: Wish) -> Path:
    """The file to write; raises UsageError when it is there already."""
    name = FILES[wish.format]
    path = wish.out if wish.out.suffix == Path(name).suffix else wish.out / name
    if path.exists():
        raise UsageError(f"{path} exists; choose another --out or remove it")
    return path


def _config(wish: Wish) -> dict[str, Any]:
    """The tokenizer_config.json, with which transformers opens the directory too."""
    if wish.by_sentencepiece:
        roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    elif wish.kind == "wordpiece":
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        roles = dict(zip(names, BERT_SPECIALS, strict=True)) | {"eos_token": "[SEP]"}
    else:
        roles = {"eos_token": END, "bos_token": END}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **roles}


def _ranks(content: dict[str, Any], specials: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """A byte-level tokenizer.json as tiktoken ranks, and the ids of special tokens, which follow them."""
    from mtl_common.tokenizers.pieces import byte_characters

    table, vocabulary = byte_characters(), content["model"]["vocab"]
    ordered = [token for token in sorted(vocabulary, key=vocabulary.__getitem__) if token not in specials]
    raw = [bytes(table[character] for character in token) for token in ordered]
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(raw))
    return b"".join(lines), {token: len(raw) + i for i, token in enumerate(specials)}


def _learn(wish: Wish, texts: Drawn) -> tuple[bytes, dict[str, Any]]:
    """The content of the tokenizer's file and of its tokenizer_config.json."""
    config, specials = _config(wish), [*wish.named, *wish.asked]
    if wish.by_sentencepiece:
        model = learning.sentence_piece(texts, wish.kind, wish.vocab_size, wish.asked)
        return (
            model if wish.format == "sentencepiece" else _dumped(learning.as_tokenizer_json(model))
        ), config
    learn = learning.word_piece if wish.kind == "wordpiece" else learning.byte_level
    content = learn(texts, wish.vocab_size, specials)
    if wish.format == "json":
        return _dumped(content), config
    ranks, ids = _ranks(content, specials)
    added = {str(id): {"content": token, "special": True} for token, id in ids.items()}
    return ranks, config | {"added_tokens_decoder": added}


def _learn_from_some(wish: Wish, texts: Drawn) -> tuple[bytes, dict[str, Any]]:
    """What `_learn` gives; raises DataError for no documents, of which libraries say something else."""
    files = None
    try:
        files = _learn(wish, texts)
    except DataError:
        if texts.documents:
            raise
    if files is None or not texts.documents:
        raise DataError("no documents in the corpus, or none in so small a sample; see --sample")
    return files


def _dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"


def _peak() -> int:
    """The most memory that this process has held, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _put(staged: Path, path: Path, wish: Wish) -> None:
    """Moves the files of a tokenizer to their place, the tokenizer itself last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    alone = path == wish.out
    report = path.with_suffix(f".{REPORT}") if alone else path.parent / REPORT
    moves = [
        (REPORT, report),
        *([] if alone else [("tokenizer_config.json", path.parent / "tokenizer_config.json")]),
    ]
    for name, place in [*moves, (FILES[wish.format], path)]:
        part = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        shutil.copyfile(staged / name, part)
        os.replace(part, place)


def _opened(staged: Path, wish: Wish, files: tuple[bytes, dict[str, Any]]) -> Tokenizer:
    content, config = files
    (staged / FILES[wish.format]).write_bytes(content)
    (staged / "tokenizer_config.json").write_bytes(_dumped(config))
    return load(staged)


def _train(wish: Wish, corpus: Corpus) -> Trained:
    path, size = (
        _place(wish),
        parse_size(wish.sample or SAMPLE["unigram" if wish.by_sentencepiece else wish.kind]),
    )
    texts = Drawn(Reading(corpus.sources, wish.text_key, 1 << 24, wish.errors), size)
    files = _learn_from_some(wish, texts)
    with TemporaryDirectory() as folder:
        tokenizer = _opened(Path(folder), wish, files)
        rows = measured(tokenizer, texts.kept)
        sample = {
            "share": round(texts.share, 4),
            "documents": texts.documents,
            "characters": texts.characters,
        }
        kinds = [row.written() for row in rows]
        report = {"vocab_size": tokenizer.vocab_size, "sample": sample, "kinds": kinds}
        (Path(folder) / REPORT).write_bytes(_dumped(report))
        _put(Path(folder), path, wish)
    found = (wish.vocab_size, tokenizer.vocab_size, texts.share, texts.documents, texts.characters)
    return Trained(path, *found, rows, _peak())


def train(wish: Wish) -> Trained:
    """Trains a tokenizer and writes it to `out`, a file or a directory, with a report beside it.

    Raises UsageError for what cannot be made or an existing `out`, DataError for a corpus not to be read.
    """
    _check(wish)
    with TemporaryDirectory() as folder:
        stdin = taken_in(wish.corpus, Path(folder))
        return _train(wish, find(wish.corpus, wish.split, stdin))
