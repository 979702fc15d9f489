"""From tokens to text, as it comes: bytes to characters, and stop strings that may end anywhere.

For any way of cutting the same bytes into tokens the joined text is the same; nothing is held back but the
bytes of an incomplete character and the longest end that may still become a stop string.
"""

import codecs
from collections.abc import Sequence


def held_back(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a proper start of `stop`.

    >>> held_back("say EN", "END")
    2
    """
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class StopMatcher:
    """Cuts a growing text before the first stop string to be complete; of two that end together, the longer
    one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched = ""

    def feed(self, text: str) -> str:
        """Takes new text and returns what may be shown of it; after a match `matched` names the stop
        string.
        """
        text = self._held + text
        found = [(at + len(s), -len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            end, length, self.matched = min(found)
            self._held = ""
            return text[: end + length]
        keep = len(text) - max((held_back(text, s) for s in self._stops), default=0)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text


class TextStream:
    """One answer's text: token pieces in, showable text out."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopMatcher(stops)
        self.text = ""

    @property
    def matched(self) -> str:
        """The stop string that ended the text, or nothing."""
        return self._stops.matched

    def feed(self, piece: bytes) -> str:
        """Takes the bytes of one token; returns the text that is now certain."""
        return self._show(self._stops.feed(self._decoder.decode(piece)))

    def finish(self) -> str:
        """Returns the rest; an incomplete character becomes U+FFFD. Nothing comes after a stop string."""
        if self.matched:
            return ""
        last = self._stops.feed(self._decoder.decode(b"", final=True))
        return self._show(last + ("" if self.matched else self._stops.flush()))

    def _show(self, text: str) -> str:
        self.text += text
        return text
