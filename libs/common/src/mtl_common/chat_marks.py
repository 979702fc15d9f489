"""Marks in the words of messages, by which it is seen where a chat template has put them, and what it lost.

A mark is a number in code points that Unicode keeps out of text. It stands inside of the white space around
words, which many templates strip.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtl_common.chat_template import Context, Messages, RefusedError

ANSWER = "assistant"
MARK, ZERO = "\ufdd3", 0xFDE0
MARKS = re.compile(f"{MARK}([\ufde0-\ufdef]+)")
WORDS = re.compile(r"(?s)\S(?:.*\S)?")
NAMES = frozenset({"id", "index", "type"})  # said by nobody, and looked at by templates
CONTENT, REASONING, CALLS, KINDS = 0, 1, 2, 3
KIND_OF = {
    "content": CONTENT,
    "reasoning_content": REASONING,
    "reasoning": REASONING,
    "thinking": REASONING,
    "tool_calls": CALLS,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A text without its marks, and where in it each was, by its number."""

    text: str
    places: Mapping[int, Sequence[int]]

    def of(self, message: int) -> list[int]:
        """Where the words of a message end, and those of the assistant begin."""
        numbers = range(message * KINDS, message * KINDS + KINDS)
        return [at for number in numbers for at in self.places.get(number, ())]


def unmarked(marked: str) -> Seen:
    """Takes the marks out of a text.

    >>> unmarked(f"ab{mark(17)}c{mark(0)}")
    Seen(text='abc', places={17: [2], 0: [3]})
    """
    places, size = dict[int, list[int]](), 0
    for found in MARKS.finditer(marked):
        number = int("".join(f"{ord(digit) - ZERO:x}" for digit in found[1]), 16)
        places.setdefault(number, []).append(found.start() - size)
        size += len(found[0])
    return Seen(MARKS.sub("", marked), places)


def mark(number: int) -> str:
    """The mark of a number."""
    return MARK + "".join(chr(ZERO + int(digit, 16)) for digit in f"{number:x}")


def _framed(value: Any, mark: str, before: str = "") -> Any:
    """The strings in a value with a mark behind their words, and one before them."""
    if isinstance(value, str):
        return WORDS.sub(lambda found: f"{before}{found[0]}{mark}", value, count=1)
    if isinstance(value, Mapping):
        return {k: v if k in NAMES else _framed(v, mark, before) for k, v in value.items()}
    return [_framed(item, mark, before) for item in value] if isinstance(value, list) else value


def _named(tool: Any, mark: str) -> Any:
    """The definition of a tool with a mark behind its name."""
    if not isinstance(tool, Mapping):
        return tool
    name = {"name": _framed(tool["name"], mark)} if "name" in tool else {}
    function = {"function": _named(tool["function"], mark)} if "function" in tool else {}
    return {**tool, **name, **function}


class Marking:
    """A dialogue with marks, and what is lost when one of them is.

    Attributes:
        messages: the messages; those of the assistant have marks before their words too.
        context: the context; the names of tools have marks.
    """

    def __init__(self, messages: Messages, context: Context) -> None:
        self._needed = dict[int, str]()
        self.messages = [self._message(n, message) for n, message in enumerate(messages)]
        self.context = context
        if context.tools:
            number = len(messages) * KINDS
            self.context = Context([_named(tool, mark(number)) for tool in context.tools], context.values)
            self._needed[number] = "the definitions of tools"

    def _message(self, n: int, message: Mapping[str, Any]) -> dict[str, Any]:
        out, is_answer = dict(message), message["role"] == ANSWER
        for key, kind in KIND_OF.items():
            if key in message and (is_answer or kind == CONTENT):
                sign = mark(n * KINDS + kind)
                out[key] = _framed(message[key], sign, sign if is_answer else "")
                if out[key] != message[key] and kind != REASONING:
                    what = "what calls tools" if kind == CALLS else f"words of role {message['role']}"
                    self._needed[n * KINDS + kind] = what
        return out

    def check(self, seen: Seen) -> None:
        """Raises RefusedError for words that are nowhere in a text; reasoning may be left out."""
        lost = next((what for number, what in self._needed.items() if number not in seen.places), None)
        if lost is not None:
            raise RefusedError(f"the chat template leaves out {lost}")
