"""From a dialogue to the pieces that are encoded one by one, and to what the assistant says in them.

Special tokens count only where the chat template writes them: what a person writes is text, so nobody can end
their own turn and speak as someone else. The names of special tokens inside messages are veiled while the
template is rendered, and unveiled when the text is cut into pieces.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtl_common.chat_marks import Marking
from mtl_common.chat_template import (
    CLOSE,
    NO_CHARACTERS,
    NOTHING,
    OPEN,
    ChatTemplate,
    Context,
    Messages,
    RefusedError,
)
from mtl_common.chat_turns import PROBE, Span, Turns
from mtl_common.errors import UsageError
from mtl_common.tokenizers import Tokenizer

VEIL = "\ufdd0"
RESERVED = re.compile(f"[{NO_CHARACTERS}]")
UNMARK = {ord(OPEN): None, ord(CLOSE): None}
WHITE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
REASONING = ("reasoning_content", "thinking", "reasoning")  # names that templates know it by
TOOL_USE, DEFAULT = "tool_use", "default"


class NoTemplateError(UsageError):
    """A dialogue for a tokenizer that has no chat template."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is encoded by itself, or one special token, named by `text`.

    `counts` says that all of it is what a model is to learn to say; `counted` are characters that are. What
    is `inside` of a text has its ids there, which may be others than at the beginning of one.
    """

    text: str
    special: int | None = None
    counts: bool = False
    counted: tuple[Span, ...] = ()
    inside: bool = False


def encode(pieces: Iterable[Piece], tokenizer: Tokenizer) -> list[int]:
    """The ids of all pieces."""
    ids: list[int] = []
    for piece in pieces:
        library = tokenizer.inside if piece.inside else tokenizer
        ids += library.encode(piece.text) if piece.special is None else [piece.special]
    return ids


def _in_full(message: Mapping[str, Any], in_parts: bool) -> dict[str, Any]:
    """A message as templates know it: nothing is null, reasoning has all its names."""
    there = {key: value for key, value in message.items() if value is not None}
    reasoning = next((there[key] for key in REASONING if key in there), None)
    if reasoning is not None:
        there = {"thinking": reasoning, **there, "reasoning_content": reasoning}
    if in_parts and isinstance(there.get("content"), str):
        there["content"] = [{"type": "text", "text": there["content"]}]
    return there


class Dialogues:
    """Renders dialogues, lists of `{"role": ..., "content": ...}`, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, clock: bool = False) -> None:
        """`clock` lets a template ask for the date. Raises NoTemplateError, DataError for a bad one."""

        def name(id: int | None) -> str:
            return "" if id is None else tokenizer.piece(id, special=True).decode("utf-8", "replace")

        templates, self._facts = tokenizer.chat_templates, tokenizer.facts
        if DEFAULT not in templates:
            raise NoTemplateError(f"{tokenizer.path} has no chat template beside it")
        self._specials = {name(id): id for id in self._facts.specials if len(name(id)) > 1}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        names = {"bos_token": name(tokenizer.bos), "eos_token": name(tokenizer.eod), **tokenizer.token_names}
        self._turns = {
            use: Turns(ChatTemplate(templates[use], names, clock), self._special)
            for use in (DEFAULT, TOOL_USE)
            if use in templates
        }
        self._in_parts = False
        if not self._writes(PROBE):
            self._in_parts = True
            self._in_parts = self._writes(PROBE)

    def prompt(self, messages: Messages, context: Context = NOTHING) -> list[Piece]:
        """The dialogue up to where the assistant's next words begin; raises RefusedError."""
        full, context = self._veiled(self._in_full(messages)), self._veiled_context(context)
        text = self._turns_for(context).template.render(full, True, context)
        return list(self._pieces(text.translate(UNMARK), []))

    def whole(self, messages: Messages, context: Context = NOTHING) -> list[Piece]:
        """The dialogue to its end, with what counts: the assistant's turns, but for those of `weight` 0.

        A template with `{% generation %}` says itself what counts. Raises RefusedError for messages that the
        template refuses or leaves out, or changes so much that the assistant's words cannot be found.
        """
        return list(self._pieces(*self._said(messages, context)))

    def text(self, messages: Messages, context: Context = NOTHING) -> str:
        """What the template writes; raises RefusedError."""
        return self._said(messages, context)[0].replace(VEIL, "")

    def _said(self, messages: Messages, context: Context) -> tuple[str, list[Span]]:
        """The text of a dialogue, still veiled, and the spans of it that count."""
        full, context = self._veiled(self._in_full(messages)), self._veiled_context(context)
        return self._turns_for(context).said(full, context)

    def _turns_for(self, context: Context) -> Turns:
        use = DEFAULT if context.tools is None else TOOL_USE
        return self._turns.get(use, self._turns[DEFAULT])

    def _writes(self, messages: Messages) -> bool:
        """Whether contents in the form of now come out of the template."""
        marking = Marking(self._in_full(messages), NOTHING)
        seen = self._turns[DEFAULT].seen(marking, len(messages), False)
        return seen is not None and all(map(seen.of, range(len(messages))))

    def _in_full(self, messages: Messages) -> list[dict[str, Any]]:
        """Messages as templates know them: nothing is null, reasoning has all its names."""
        return [_in_full(message, self._in_parts) for message in messages]

    def _veiled_context(self, context: Context) -> Context:
        return Context(self._veiled(context.tools), self._veiled(context.values))

    def _veiled(self, value: Any) -> Any:
        """Breaks the names of special tokens in all strings, so that the template's own can be told apart."""
        if isinstance(value, str):
            if RESERVED.search(value):
                raise RefusedError("a message holds one of U+FDD0 to U+FDEF, which are no characters")
            return self._special.sub(lambda found: found[0][0] + VEIL + found[0][1:], value)
        if isinstance(value, Mapping):
            return {self._veiled(key): self._veiled(item) for key, item in value.items()}
        return [self._veiled(item) for item in value] if isinstance(value, list | tuple) else value

    def _pieces(self, text: str, counted: list[Span]) -> Iterator[Piece]:
        """Cuts a veiled text at its special tokens, which may swallow white space, and unveils it."""
        at, last = 0, -1
        for found in (*self._special.finditer(text), None):
            id, stop = (self._specials[found[0]], found.start()) if found else (-1, len(text))
            start = stop - len(text[at:stop].lstrip(WHITE)) if last in self._facts.strips_after else at
            if id in self._facts.strips_before:
                stop = start + len(text[start:stop].rstrip(WHITE))
            if start < stop:
                yield _piece(text, (start, stop), counted)
            if found:
                yield Piece(found[0], id, counts=bool(_shared(found.span(), counted)))
                at, last = found.end(), id


def _shared(span: Span, counted: list[Span]) -> list[Span]:
    """The parts of a span that count."""
    parts = ((max(span[0], first), min(span[1], last)) for first, last in counted)
    return [(first, last) for first, last in parts if first < last]


def _piece(text: str, span: Span, counted: list[Span]) -> Piece:
    """A span of a veiled text, without veils."""
    start, stop = span
    counted = [_local(text, start, part) for part in _shared(span, counted)]
    return Piece(text[start:stop].replace(VEIL, ""), counted=tuple(counted), inside=start > 0)


def _local(text: str, start: int, span: Span) -> Span:
    """A span of a text as one of what begins at `start`, without veils."""
    first, last = (at - start - text.count(VEIL, start, at) for at in span)
    return first, last
