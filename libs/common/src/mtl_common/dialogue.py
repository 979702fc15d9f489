"""From a dialogue to the pieces that are encoded one by one, and to what the assistant says in them.

Special tokens count only where the chat template writes them: what a person writes is text, so nobody can end
their own turn and speak as someone else. The names of special tokens inside messages are veiled while the
template is rendered, and unveiled when the text is cut into pieces.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mtl_common.chat_template import CLOSE, OPEN, ChatTemplate, Messages, RefusedError
from mtl_common.errors import UsageError
from mtl_common.tokenizers import Tokenizer

VEIL = "\ufdd0"
RESERVED = re.compile(f"[{VEIL}{OPEN}{CLOSE}]")
UNMARK = {ord(OPEN): None, ord(CLOSE): None}
ANSWER = "assistant"
PROBE = ({"role": "user", "content": "x"}, {"role": ANSWER, "content": "y"})

Span = tuple[int, int]  # start and stop of some characters


class NoTemplateError(UsageError):
    """A dialogue for a tokenizer that has no chat template."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is encoded by itself, or one special token, named by `text`.

    `counts` says that all of it is what a model is to learn to say; `counted` are characters that are.
    """

    text: str
    special: int | None = None
    counts: bool = False
    counted: tuple[Span, ...] = ()


def encode(pieces: Iterable[Piece], tokenizer: Tokenizer) -> list[int]:
    """The ids of all pieces."""
    ids: list[int] = []
    for piece in pieces:
        ids += tokenizer.encode(piece.text) if piece.special is None else [piece.special]
    return ids


def _unmarked(marked: str) -> tuple[str, list[Span]] | None:
    """A text without its marks and the spans between them; None when marks are out of order.

    >>> _unmarked(f"a{OPEN}bc{CLOSE}d")
    ('abcd', [(1, 3)])
    """
    found = list(re.finditer(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}", marked))
    if not marked.count(OPEN) == marked.count(CLOSE) == len(found):
        return None
    starts = [match.start() - 2 * n for n, match in enumerate(found)]
    spans = [(start, start + len(match[1])) for start, match in zip(starts, found, strict=True)]
    return marked.translate(UNMARK), spans


def _marked_messages(messages: Messages, inside: str) -> list[dict[str, Any]]:
    """The messages with marks around what in the assistant's contents matches `inside`."""
    marked = []
    for message in messages:
        content = message["content"]
        if message["role"] == ANSWER:
            content = re.sub(inside, lambda found: f"{OPEN}{found[0]}{CLOSE}", content, count=1)
        marked.append({**message, "content": content})
    return marked


class Dialogues:
    """Renders dialogues, lists of `{"role": ..., "content": ...}`, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, clock: bool = False) -> None:
        """`clock` lets a template ask for the date. Raises NoTemplateError, DataError for a bad one."""
        if tokenizer.chat_template is None:
            raise NoTemplateError(f"{tokenizer.path} has no chat template beside it")

        def name(id: int | None) -> str:
            return "" if id is None else tokenizer.piece(id, special=True).decode("utf-8", "replace")

        names = {"bos_token": name(tokenizer.bos), "eos_token": name(tokenizer.eod)}
        self._template = ChatTemplate(tokenizer.chat_template, names, clock)
        self._specials = {name(id): id for id in tokenizer.facts.specials if len(name(id)) > 1}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._ending = self._find_ending()

    def prompt(self, messages: Messages) -> list[Piece]:
        """The dialogue up to where the assistant's next words begin; raises RefusedError."""
        return list(self._pieces(self._template.render(self._veiled(messages), True).translate(UNMARK), []))

    def whole(self, messages: Messages) -> list[Piece]:
        """The dialogue to its end, with what counts: the assistant's contents and what ends these turns.

        A template with `{% generation %}` says itself what counts. Raises RefusedError for messages that the
        template refuses, or changes so much that the assistant's words cannot be found.
        """
        return list(self._pieces(*self._said(self._veiled(messages))))

    def _veiled(self, value: Any) -> Any:
        """Breaks the names of special tokens in all strings, so that the template's own can be told apart."""
        if isinstance(value, str):
            if RESERVED.search(value):
                raise RefusedError("a message holds U+FDD0, U+FDD1 or U+FDD2, which are no characters")
            return self._special.sub(lambda found: found[0][0] + VEIL + found[0][1:], value)
        if isinstance(value, dict):
            return {key: self._veiled(item) for key, item in value.items()}
        return [self._veiled(item) for item in value] if isinstance(value, list | tuple) else value

    def _find_ending(self) -> str:
        """What the template writes after an answer: up to its last special token, or all without one."""
        try:
            rendered = self._template.render(_marked_messages(PROBE, ".*"), False)
        except RefusedError:
            return ""
        tail = rendered[rendered.rfind(CLOSE) + 1 :]
        ends = [found.end() for found in self._special.finditer(tail)]
        return tail[: ends[-1]] if ends else tail

    def _said(self, messages: Messages) -> tuple[str, list[Span]]:
        """The text of a dialogue, still veiled, and the spans of it that count."""
        plain = self._template.render(messages, False)
        if OPEN in plain:  # the template says it itself
            found = _unmarked(plain)
            if found is None:
                raise RefusedError("the chat template has one {% generation %} in another")
            return found
        answers = sum(message["role"] == ANSWER for message in messages)
        # many templates strip contents, which marks outside of the white space would prevent
        for inside in (r"(?s).+", r"(?s)\S(?:.*\S)?"):
            found = _unmarked(self._template.render(_marked_messages(messages, inside), False))
            if found and found[0] == plain and len(found[1]) == answers:
                return plain, [self._with_ending(plain, span) for span in found[1]]
        return plain, list(self._turns(messages, plain))

    def _with_ending(self, text: str, span: Span) -> Span:
        start, stop = span
        return start, stop + len(self._ending) if text.startswith(self._ending, stop) else stop

    def _turns(self, messages: Messages, text: str) -> Iterator[Span]:
        """From where the prompt ends to where the turn does, for templates that take answers apart."""
        for n, message in enumerate(messages):
            if message["role"] == ANSWER:
                start = len(self._shared(text, messages[:n], prompt=True))
                if self._special.search(self._ending):  # messages cannot spell it: it is the template's
                    stop = text.find(self._ending, start) + len(self._ending)
                else:
                    stop = len(self._shared(text, messages[: n + 1], prompt=False))
                yield start, stop

    def _shared(self, text: str, messages: Messages, prompt: bool) -> str:
        """What the first messages are rendered to; raises RefusedError if the whole does not begin so."""
        beginning = self._template.render(messages, prompt)
        if not text.startswith(beginning):
            raise RefusedError("the chat template changes the assistant's words")
        return beginning

    def _pieces(self, text: str, counted: list[Span]) -> Iterator[Piece]:
        """Cuts a veiled text at its special tokens, and unveils it."""
        cuts = [at for found in self._special.finditer(text) for at in found.span()]
        for start, stop in pairwise([0, *cuts, len(text)]):
            shared = ((max(first, start), min(last, stop)) for first, last in counted)
            inside = [(first, last) for first, last in shared if first < last]
            part = text[start:stop]
            if part in self._specials:
                yield Piece(part, self._specials[part], counts=bool(inside))
            elif part:
                spans = tuple(_local(text, start, span) for span in inside)
                yield Piece(part.replace(VEIL, ""), counted=spans)


def _local(text: str, start: int, span: Span) -> Span:
    """A span of a text as one of what begins at `start`, without veils."""
    first, last = (at - start - text.count(VEIL, start, at) for at in span)
    return first, last
