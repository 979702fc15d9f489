"""What documents are composed of: texts as they are, texts as sentences, or records of a shape."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mtl_common.chat_template import Context, RefusedError
from mtl_common.dialogue import Dialogues, Piece, encode
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import Tokenizer
from mtl_prep.corpus.records import BadRecordError
from mtl_prep.corpus.source import Source
from mtl_prep.encoding.composed import Composing
from mtl_prep.encoding.sentences import Splitter
from mtl_prep.encoding.shapes import Shape, parse_shape

PROBE = tuple(  # white space and words where tokenizers are known to treat the text beside special tokens
    {"role": role, "content": content}
    for role, content in (
        ("user", "Hi "),
        ("assistant", "Yes.\n"),
        ("user", " So\n "),
        ("assistant", " 12 ways"),
    )
)


class Records:
    """Records of a shape: dialogues by the tokenizer's chat template, pairs, questions with answers."""

    sentences = False

    def __init__(self, shape: Shape, tokenizer: Tokenizer) -> None:
        """Raises NoTemplateError for dialogues without a template."""
        self._shape = shape
        self._dialogues = Dialogues(tokenizer) if shape.name == "chat" else None

    def pieces(self, text: str) -> Sequence[Piece]:
        """The pieces of a record in the form of `Shape.of`; raises BadRecordError for refused dialogues."""
        if self._dialogues is None:
            return self._shape.pieces(text)
        found = orjson.loads(text)
        try:
            pieces = self._dialogues.whole(
                found["messages"], Context(found["tools"] or None, found["values"])
            )
        except RefusedError as error:
            raise BadRecordError(str(error)) from None
        if not any(piece.counts or piece.counted for piece in pieces):
            raise BadRecordError("no answer in what the chat template writes")
        return pieces


def _check_pieces(dialogues: Dialogues, tokenizer: Tokenizer) -> None:
    """Raises DataError when a dialogue in pieces has other ids than as a whole."""
    if tokenizer.facts.words_alone:
        raise DataError(
            f"{tokenizer.path} has special tokens that count only as words of their own (single_word); "
            "--shape chat needs another tokenizer"
        )
    try:
        pieces, whole = dialogues.whole(PROBE), dialogues.text(PROBE)
    except RefusedError:
        return
    ids = tokenizer.with_specials(whole)
    if ids is not None and ids != encode(pieces, tokenizer):
        raise DataError(
            f"{tokenizer.path} lets special tokens change the text beside them, so dialogues would not get "
            "its model's ids; --shape chat needs another tokenizer"
        )


@dataclass(frozen=True)
class Composition:
    """What the options of a run say of its documents: `language` is that of sentences to be told apart."""

    shape: Shape | None = None
    language: str | None = None

    def options(self) -> dict[str, Any]:
        """What decides the bytes of bins; nothing for texts as they are."""
        if self.language is not None:
            return {"sentences": str(Splitter(self.language))}
        if self.shape is None:
            return {}
        separator = {"separator": self.shape.separator} if self.shape.name == "pair" else {}
        return {"shape": self.shape.name, "keys": ",".join(self.shape.keys)} | separator

    def check(self, sources: Sequence[Source], tokenizer: Tokenizer) -> None:
        """Raises UsageError for sources without records or dialogues without a chat template, DataError for a
        tokenizer that does not encode dialogues piece by piece.
        """
        if self.language is not None and sources and (warning := Splitter(self.language).warning()):
            print(f"warning: {warning}", file=sys.stderr)
        if self.shape is None:
            return
        self.shape.check(sources)
        if self.shape.name == "chat":
            _check_pieces(Dialogues(tokenizer), tokenizer)

    def composing(self, tokenizer: Tokenizer, eod: int, dtype: str) -> Composing | None:
        """The means to compose documents; None for texts as they are."""
        if self.language is not None:
            return Composing(tokenizer, Splitter(self.language), eod, dtype)
        return Composing(tokenizer, Records(self.shape, tokenizer), eod, dtype) if self.shape else None


def parse_composition(shape: str, keys: str | None, separator: str, sentences: str | None) -> Composition:
    r"""What options ask for; `\n` and `\t` of the separator are a line end and a tab.

    Raises UsageError for what is none, or does not go together.
    """
    found = parse_shape(shape, keys, separator.replace(r"\n", "\n").replace(r"\t", "\t"))
    if sentences is None:
        return Composition(found)
    if found is not None:
        raise UsageError(f"--sentences is for texts, not for --shape {shape}")
    return Composition(None, Splitter(sentences).language)
