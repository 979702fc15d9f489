"""Tokenizers: one interface over tokenizer.json, BERT's vocab.txt, tiktoken ranks, sentencepiece and bytes.

Text is only ever text: a document or prompt that spells a special token gets the ordinary tokens of its
letters. Bulk encoding returns flat buffers, never lists of token objects, and goes through the fastest engine
that gives the ids of the reference library on a set of awkward strings; elsewhere through the reference.
Leaves out padding, cutting and templates that add tokens: whoever needs them adds them to plain ids.
"""

import importlib.util
import re
from pathlib import Path

from mtl_common.config import nearest
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers.engines import AUTO, ENGINES, QUICK, REFERENCE, TURBO
from mtl_common.tokenizers.flat import Flat, merged
from mtl_common.tokenizers.hugging_face import HuggingFace
from mtl_common.tokenizers.interface import Facts, Tokenizer
from mtl_common.tokenizers.plain_bytes import FILE, SPEC
from mtl_common.tokenizers.sentence_piece import SentencePiece
from mtl_common.tokenizers.tiktoken_ranks import Ranks

__all__ = [
    "AUTO",
    "ENGINES",
    "QUICK",
    "REFERENCE",
    "Facts",
    "Flat",
    "Tokenizer",
    "check_engine",
    "load",
    "merged",
]


KINDS = "a tokenizer.json, .tiktoken, .model or vocab.txt file"


def _find(spec: Path) -> Path:
    """The tokenizer file that a path names: itself, or the one in a directory."""
    if spec.is_file():
        return spec
    if str(spec) == SPEC and not spec.exists():
        return FILE
    if not spec.is_dir():
        raise DataError(f"no tokenizer at {spec}; give {KINDS}, the directory of one, or the word bytes")
    for pattern in ("tokenizer.json", "*.tiktoken", "*.model", "vocab.txt"):
        found = sorted(spec.glob(pattern))
        if len(found) > 1:
            raise DataError(f"{spec} holds several tokenizers: {', '.join(p.name for p in found)}; name one")
        if found:
            return found[0]
    raise DataError(f"{spec} holds no tokenizer.json, .tiktoken, .model or vocab.txt file")


def check_engine(name: str) -> None:
    """Raises UsageError for an engine that is unknown or not installed."""
    if name not in (*ENGINES, QUICK):
        raise UsageError(
            f"no --encoder is called {name}{nearest(name, ENGINES)}; there are {', '.join(ENGINES)}"
        )
    if name == TURBO and importlib.util.find_spec(TURBO) is None:
        raise UsageError("gigatoken is not installed; pip install 'mtl-prep[turbo]' brings it")


def load(spec: str | Path, *, engine: str = QUICK, one_thread: bool = False) -> Tokenizer:
    """Opens a tokenizer.json, tiktoken ranks, a sentencepiece model, a vocab.txt, or the directory of one.

    `bytes` names the tokenizer whose ids are bytes. The kind of a file is told from its content. `engine` is
    `auto` for the fastest engine that is installed and exact, `quick` for the fastest of those that start at
    once, or the name of one; `one_thread` keeps it to the asking thread. Raises DataError, naming the file,
    for what is not a tokenizer, and UsageError for an engine that is unknown, not installed or not exact.
    """
    check_engine(engine)
    path = _find(Path(spec))
    with path.open("rb") as file:
        start = file.read(4096)
    if re.search(rb"^\[(UNK|PAD)\]\r?$", start, re.MULTILINE):
        return HuggingFace(path, engine, one_thread, is_vocabulary=True)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return HuggingFace(path, engine, one_thread)
    if re.match(rb"[A-Za-z0-9+/=]+ \d+\r?\n", start):
        return Ranks(path, engine, one_thread)
    return SentencePiece(path, engine, one_thread)
