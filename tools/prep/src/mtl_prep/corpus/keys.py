"""Where the text of a record stands: a key, a path such as `data.0.body`, or several, of which one is there.

A key that is spelled like a path goes before the path.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from mtl_common.config import nearest
from mtl_prep.corpus.records import NO_TEXT, NOT_OBJECT, NOT_STRING, BadRecordError

ABSENT = object()


def _step(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, ABSENT)
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return ABSENT


def value_at(record: Mapping[str, Any], key: str) -> Any:
    """What stands at a key or path, or ABSENT."""
    if key in record or "." not in key:
        return record.get(key, ABSENT)
    value: Any = record
    for part in key.split("."):
        value = _step(value, part)
    return value


def _put(value: Any, path: Sequence[str], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, list):
        place = int(path[0])
        return [*value[:place], _put(value[place], path[1:], new), *value[place + 1 :]]
    return {**value, path[0]: _put(value[path[0]], path[1:], new)}


def put_at(record: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A record with another value where `value_at` finds one; under the key where it finds none.

    >>> put_at({"n": 1, "a": [{"b": "old"}]}, "a.0.b", "new")
    {'n': 1, 'a': [{'b': 'new'}]}
    """
    if key in record or value_at(record, key) is ABSENT:
        return {**record, key: value}
    return dict(_put(record, key.split("."), value))


class Key(Protocol):
    """Where what matters of a record stands."""

    @property
    def plain(self) -> str | None:
        """The one key under which it is, as a string; None when there is more to it."""

    def of(self, record: Any) -> str:
        """What matters of a record; raises BadRecordError, whose message is the reason, for none."""

    @property
    def absences(self) -> frozenset[str]:
        """The reasons that say that there is nothing under a key."""

    def columns(self, names: Sequence[str]) -> list[str]:
        """The columns of a table that hold it."""

    def instead(self, names: Iterable[str]) -> str:
        """What there is instead of it, for a person."""


class TextKey:
    """The places of the text in a record, as `--text-key` names them: `a.b`, or `text,content`."""

    def __init__(self, spelled: str) -> None:
        self.keys = spelled.split(",")
        self._plain = spelled if len(self.keys) == 1 and "." not in spelled else None

    @property
    def plain(self) -> str | None:
        """The one key, if it is no path."""
        return self._plain

    def of(self, record: Any) -> str:
        """The text of a record; raises BadRecordError when there is none."""
        if not isinstance(record, dict):
            raise BadRecordError(NOT_OBJECT)
        found = [value for key in self.keys if (value := value_at(record, key)) is not ABSENT]
        if not found:
            raise BadRecordError(NO_TEXT)
        text = next((value for value in found if isinstance(value, str)), None)
        if text is None:
            raise BadRecordError(NOT_STRING)
        return text

    @property
    def absences(self) -> frozenset[str]:
        """The reason that says that there is no text."""
        return frozenset({NO_TEXT})

    def columns(self, names: Sequence[str]) -> list[str]:
        """The column of a table that holds the text: a key, or else the start of a path."""
        wanted = [name for key in self.keys for name in (key, key.partition(".")[0])]
        return [name for name in wanted if name in names][:1]

    def __str__(self) -> str:
        return ",".join(self.keys)

    def instead(self, names: Iterable[str]) -> str:
        """What there is instead of the keys, for a person: `the keys are a, b (did you mean "b"?)`."""
        names = list(names)
        return f"the keys are {', '.join(names)}{nearest(self.keys[0], names)}: name one with --text-key"
