"""Texts as sentences, by the rules that sentencex has for a language.

Nothing of a text is lost: the white space between two sentences belongs to the second one, as byte-level
vocabularies have it, and a sentence of nothing but white space belongs to the next.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise

from mtl_common.config import nearest
from mtl_common.dialogue import Piece
from mtl_common.errors import UsageError
from mtl_prep.corpus.records import BadRecordError
from mtl_prep.encoding.giants import FEED, UNCUT, UNCUTTABLE

# Languages with rules of their own; others have those of a kindred one, or else of English.
RULED = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
ABBREVIATED = (
    "Mr. Smith z.B. Am 3. Mai. Hr. Dr. Sra. Av. \u0433. etc. op. bv. nr. fl. \u03ba. No. St. cap. r. M. Mme."
)


class Splitter:
    """Composes documents of their sentences."""

    sentences = True

    def __init__(self, language: str) -> None:
        """Raises UsageError for what is no code of a language, or without the library."""
        if not re.fullmatch("[a-z]{2,3}", language):
            raise UsageError(f"--sentences {language} is no code of a language, such as en or de")
        try:
            from sentencex import get_sentence_boundaries
        except ImportError:
            raise UsageError("--sentences needs sentencex; pip install 'mtl-prep[sentences]'") from None
        self._boundaries, self.language = get_sentence_boundaries, language

    def __str__(self) -> str:
        """The rules, as the options of bins name them."""
        return f"{self.language} by sentencex {version('sentencex')}"

    def warning(self) -> str:
        """What to say of a language that gets English rules for want of others; nothing of any other."""
        own, english = (self._boundaries(code, ABBREVIATED) for code in (self.language, "en"))
        if self.language == "en" or own != english:
            return ""
        return (
            f"--sentences {self.language}: sentencex has no rules for it and takes those for English"
            f"{nearest(self.language, RULED.split())}; it has rules for {RULED}"
        )

    def _ends(self, text: str) -> Iterator[int]:
        """Where sentences end, the white space after them left out; the last one's end may be missing."""
        begin = 0
        for found in self._boundaries(self.language, text):
            end = begin + len(text[begin : found["start_index"]].rstrip())
            if end > begin:
                yield end
                begin = end

    def split(self, text: str) -> list[str]:
        """The sentences of a text, which joined are the text.

        >>> Splitter("en").split("It is 3.5 p.m. now.  Really? ")
        ['It is 3.5 p.m. now.', '  Really? ']
        """
        cuts = [0, *self._ends(text), len(text)]
        parts = [text[a:b] for a, b in pairwise(cuts)]
        if len(parts) > 1 and not parts[-1].strip():
            parts[-2:] = ["".join(parts[-2:])]
        return parts

    def pieces(self, text: str) -> Sequence[Piece]:
        """The sentences of a text as pieces."""
        return list(map(Piece, self.split(text)))


def grown(
    pieces: Iterable[str], split: Callable[[str], Sequence[Piece]], feed: int = FEED
) -> Iterator[list[Piece]]:
    """The sentences of a text that comes in pieces, those of about `feed` characters at a time.

    Raises BadRecordError for a sentence of more than UNCUT characters.
    """
    waiting, wanted = "", feed
    for piece in pieces:
        waiting += piece
        if len(waiting) < wanted:
            continue
        *done, last = split(waiting)
        if done:
            yield done
            waiting, wanted = last.text, feed
        elif wanted >= UNCUT:
            raise BadRecordError(UNCUTTABLE)
        else:
            wanted *= 2
    if waiting:
        yield [*split(waiting)]
