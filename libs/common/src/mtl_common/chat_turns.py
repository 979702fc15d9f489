"""Where the assistant's turns stand in what a chat template writes.

A turn is all that a model has to say by itself: from the end of the prompt for it to the last special token
that the template writes behind its words. Marks in the words show where that is; a template that is misled by
marks is given the beginnings of the dialogue instead.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mtl_common.chat_marks import ANSWER, Marking, Seen, unmarked
from mtl_common.chat_template import CLOSE, NOTHING, OPEN, ChatTemplate, Context, Messages, RefusedError

Span = tuple[int, int]  # start and stop of some characters

PROBE = ({"role": "user", "content": "x"}, {"role": ANSWER, "content": "y"})
VARIANTS = 16  # of values beside the messages, whose habits are remembered
CHANGED = "the chat template changes the assistant's words"


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template writes before an answer when asked for one, and behind one; empty if that varies."""

    opening: str
    ending: str


def by_template(text: str, silent: Sequence[int] = ()) -> tuple[str, list[Span]]:
    """A text without OPEN and CLOSE, and the spans between them that hold none of the `silent` places.

    >>> by_template(f"a{OPEN}bc{CLOSE}d{OPEN}e{CLOSE}", [7])
    ('abcde', [(1, 3)])
    """
    found = list(re.finditer(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}", text))
    if not text.count(OPEN) == text.count(CLOSE) == len(found):
        raise RefusedError("the chat template has one {% generation %} in another")
    spans = [
        (match.start() - 2 * n, match.start() - 2 * n + len(match[1]))
        for n, match in enumerate(found)
        if not any(match.start() < place < match.end() for place in silent)
    ]
    return text.translate({ord(OPEN): None, ord(CLOSE): None}), spans


def _behind(text: str, part: str, floor: int, limit: int) -> int | None:
    """Where the last such part of a text ends between two places, if it is there and not empty."""
    at = text.rfind(part, floor, limit) if part else -1
    return None if at < 0 else at + len(part)


class _Turns:
    """The turns in one rendered dialogue, by its marks."""

    def __init__(self, turns: "Turns", marking: Marking, seen: Seen) -> None:
        self._turns, self._marking, self._seen = turns, marking, seen
        self._habits = turns.habits(json.dumps(marking.context.values, sort_keys=True))

    def __iter__(self) -> Iterator[tuple[int, Span]]:
        """Each answer's number among the messages, and where it is."""
        stop = 0
        for n, message in enumerate(self._marking.messages):
            if message["role"] == ANSWER:
                start, stop = self._start(n, stop), self._stop(n)
                yield n, (start, stop)

    def _start(self, n: int, floor: int) -> int:
        """Behind the prompt, which stands right before the answer or follows the message before it.

        Values may ask for a prompt that a template writes before the last answer only.
        """
        text, first = self._seen.text, min(self._seen.of(n))
        found = _behind(text, self._habits.opening, floor, first)
        if found is not None and not text[found:first].strip():
            return found
        if n and (after := self._after(n - 1, self._turns.seen(self._marking, n, True))) is not None:
            return after
        for opening in (self._habits.opening, self._turns.habits("{}").opening):
            found = _behind(text, opening, floor, first)
            if found is not None and self._turns.special.search(opening):  # which messages cannot spell
                return found
        return first

    def _after(self, n: int, beginning: Seen | None) -> int | None:
        """Where in the text ends what, in its beginning, follows the words of message n."""
        if beginning is None or not beginning.of(n) or not self._seen.of(n):
            return None
        tail, last = beginning.text[max(beginning.of(n)) :], max(self._seen.of(n))
        return last + len(tail) if self._seen.text.startswith(tail, last) else None

    def _stop(self, n: int) -> int:
        """Behind the last special token after an answer that the next message has no part in."""
        text, last, ending = self._seen.text, max(self._seen.of(n)), self._habits.ending
        if ending and (found := re.compile(rf"\s*?{re.escape(ending)}").match(text, last)):
            return found.end()
        whole = n + 1 == len(self._marking.messages)
        beginning = self._seen if whole else self._turns.seen(self._marking, n + 1, False)
        if beginning is None or not beginning.of(n):
            return last
        tail = beginning.text[max(beginning.of(n)) :]
        ends = [found.end() for found in self._turns.special.finditer(tail)] or [len(tail)]
        return next((last + end for end in reversed(ends) if text.startswith(tail[:end], last)), last)


class Turns:
    """Finds what the assistant says in dialogues; `special` matches the names of special tokens."""

    def __init__(self, template: ChatTemplate, special: re.Pattern[str]) -> None:
        self.template, self.special = template, special
        self.habits = lru_cache(VARIANTS)(self._habits)

    def said(self, messages: Messages, context: Context = NOTHING) -> tuple[str, list[Span]]:
        """The text of a dialogue, and the spans of it that the assistant says in messages not of weight 0.

        A template with `{% generation %}` says itself what they are. Raises RefusedError for messages that
        the template refuses or leaves out, or changes so much that the assistant's words cannot be found.
        """
        plain = self.template.render(messages, False, context)
        marking = Marking(messages, context)
        seen = self.seen(marking, len(messages), False)
        if seen is None or seen.text != plain:  # marks mislead it
            seen = None
        else:
            marking.check(seen)
        silent = {n for n, message in enumerate(messages) if message.get("weight") == 0}
        if OPEN in plain:
            if silent and seen is None:
                raise RefusedError(CHANGED)
            return by_template(plain, [at for n in silent if seen for at in seen.of(n)])
        answers = [n for n, message in enumerate(messages) if message["role"] == ANSWER]
        if seen and all(map(seen.of, answers)):
            found = iter(_Turns(self, marking, seen))
        else:
            found = self._by_beginnings(messages, context, plain)
        return plain, [span for n, span in found if n not in silent]

    def seen(self, marking: Marking, count: int, prompt: bool) -> Seen | None:
        """How the first messages are rendered; None when the template refuses them."""
        try:
            return unmarked(self.template.render(marking.messages[:count], prompt, marking.context))
        except RefusedError:
            return None

    def _habits(self, values: str) -> Habits:
        """What is usual with some values, given as JSON."""
        marking = Marking(PROBE, Context(None, json.loads(values)))
        asked, prompted, answered = (self.seen(marking, *how) for how in ((1, False), (1, True), (2, False)))
        if asked is None or prompted is None or answered is None or not answered.of(1):
            return Habits("", "")
        opening = prompted.text[len(asked.text) :] if prompted.text.startswith(asked.text) else ""
        tail = answered.text[max(answered.of(1)) :]
        ends = [found.end() for found in self.special.finditer(tail)]
        return Habits(opening, tail[: ends[-1]] if ends else "")

    def _by_beginnings(self, messages: Messages, context: Context, text: str) -> Iterator[tuple[int, Span]]:
        """The turns of a text that begins as those of its first messages do."""
        for n, message in enumerate(messages):
            if message["role"] == ANSWER:
                start = self._shared(text, messages[:n], True, context)
                stop = self._shared(text, messages[: n + 1], False, context)
                ends = [found.end() for found in self.special.finditer(text, start, stop)]
                yield n, (start, ends[-1] if ends else stop)

    def _shared(self, text: str, messages: Messages, prompt: bool, context: Context) -> int:
        """How long the first messages are when rendered; raises RefusedError if the text begins otherwise."""
        beginning = self.template.render(messages, prompt, context)
        if not text.startswith(beginning):
            raise RefusedError(CHANGED)
        return len(beginning)
