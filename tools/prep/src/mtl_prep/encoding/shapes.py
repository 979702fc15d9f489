"""What a record is: a text, a dialogue, a pair of source and target, or a question with its answer.

    text   {"text": "..."}                                            every token counts
    chat   {"messages": [{"role": "user", "content": "..."}, ...]}    what the assistant says counts
    pair   {"source": "...", "target": "..."}                         the target counts
    qa     {"question": "...", "answer": "...", "context": "..."}     the answer counts

A shape other than text stands where a text key does: what it finds in a record is JSON of the part that
matters, and whoever encodes the documents makes pieces of it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mtl_common.config import nearest
from mtl_common.dialogue import Piece
from mtl_common.errors import UsageError
from mtl_prep.corpus.keys import put_at, value_at
from mtl_prep.corpus.records import NOT_OBJECT, BadRecordError
from mtl_prep.corpus.source import Source
from mtl_prep.encoding import chats

KEYS = {
    "chat": ("messages",),
    "pair": ("source", "target"),
    "qa": ("question", "answer", "context"),
}
TEXT = "text"
OPTIONAL = "context"
RECORDS = frozenset({"lines", "json", "csv", "parquet", "arrow"})  # kinds of sources that hold some


def _written(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # half a surrogate pair, which whoever reads the record mends in this text
        return json.dumps(value, ensure_ascii=False)


def pair_pieces(source: str, target: str, separator: str) -> tuple[Piece, ...]:
    """The source with the separator, encoded together, then the target, encoded by itself."""
    return Piece(source + separator), Piece(target, counts=True)


def question_pieces(question: str, answer: str, context: str) -> tuple[Piece, ...]:
    r"""One text; the answer counts with the space before it.

    >>> question_pieces("Why?", "Because.", "")[0].text
    'Question: Why?\nAnswer: Because.'
    """
    given = f"{context}\n\n" if context else ""
    asked = f"{given}Question: {question}\nAnswer:"
    text = f"{asked} {answer}"
    return (Piece(text, counted=((len(asked), len(text)),)),)


@dataclass(frozen=True)
class Shape:
    """One of the shapes but text, the keys of its parts, and what stands between source and target."""

    name: str
    keys: tuple[str, ...]
    separator: str = "\n"

    @property
    def plain(self) -> None:
        """There is more to it than one key."""

    @property
    def absences(self) -> frozenset[str]:
        """The reasons that say that there is nothing under a key."""
        return frozenset(f"no {name}" for name in KEYS[self.name])

    def of(self, record: Any) -> str:
        """What matters of a record, as JSON; raises BadRecordError, whose message is the reason, for none."""
        if not isinstance(record, Mapping):
            raise BadRecordError(NOT_OBJECT)
        if self.name == "chat":
            return _written(chats.dialogue(record, self.keys[0]))
        found = ((value_at(record, key), name) for key, name in zip(self.keys, KEYS[self.name], strict=True))
        return _written([chats.string(value, name, name != OPTIONAL) for value, name in found])

    def texts(self, record: Mapping[str, Any]) -> list[str]:
        """The texts of a good record in order, roles and calls of tools left out."""
        if self.name == "chat":
            return chats.texts(record, self.keys[0])
        found = (value_at(record, key) for key in self.keys)
        return [text for text in found if isinstance(text, str)]

    def with_texts(self, record: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
        """A good record with others in the place of its texts."""
        if self.name == "chat":
            return chats.with_texts(record, self.keys[0], texts)
        keys = [key for key in self.keys if isinstance(value_at(record, key), str)]
        new = dict(record)
        for key, text in zip(keys, texts, strict=True):
            new = put_at(new, key, text)
        return new

    def check(self, sources: Iterable[Source]) -> None:
        """Raises UsageError for sources without records."""
        for source in sources:
            if source.kind not in RECORDS:
                raise UsageError(
                    f"{source.name} is text without records; --shape {self.name} takes JSON and tables"
                )

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The pieces of a pair or question that `of` found."""
        parts: list[str] = orjson.loads(text)
        if self.name == "qa":
            question, answer, context = parts
            return question_pieces(question, answer, context)
        source, target = parts
        return pair_pieces(source, target, self.separator)

    def columns(self, names: Sequence[str]) -> list[str]:
        """The columns of a table that hold the parts: their keys, or else the start of their paths."""
        keys = chats.ALL if self.keys == KEYS["chat"] else self.keys
        wanted = [key if key in names else key.partition(".")[0] for key in keys]
        return [name for name in dict.fromkeys(wanted) if name in names]

    def __str__(self) -> str:
        return ",".join(self.keys)

    def instead(self, names: Iterable[str]) -> str:
        """What there is instead of the keys, for a person."""
        names = list(names)
        missing = next((key for key in self.keys if key not in names), self.keys[0])
        return f"the keys are {', '.join(names)}{nearest(missing, names)}: name them with --keys"


def keys_asked(shape: str, keys: str | None, text_key: str) -> str | None:
    """The keys of a shape as options name them: `--text-key` may name that of dialogues."""
    return text_key if shape == "chat" and keys is None and text_key != TEXT else keys


def parse_shape(name: str, keys: str | None, separator: str) -> Shape | None:
    """The shape that options ask for, None for text; `keys` are joined by commas, None for the usual ones.

    Raises UsageError for an unknown name, or another number of keys.
    """
    names = (TEXT, *KEYS)
    if name not in names:
        raise UsageError(f"--shape {name} is none of {', '.join(names)}{nearest(name, names)}")
    if name == TEXT:
        if keys is not None:
            raise UsageError(
                "--keys is for --shape chat, pair and qa; name the key of a text with --text-key"
            )
        return None
    usual = KEYS[name]
    if keys is None:
        return Shape(name, usual, separator)
    given = tuple(key.strip() for key in keys.split(","))
    needed = len(usual) - (OPTIONAL in usual)
    if not needed <= len(given) <= len(usual) or not all(given):
        raise UsageError(f"--keys {keys} does not name the {', '.join(usual)} of a {name} record")
    return Shape(name, given + usual[len(given) :], separator)
