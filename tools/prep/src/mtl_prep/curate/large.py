"""Documents too large to be judged, which a recipe may keep: what looks at them, and how they are written.

Those that are equal are told apart, and personal data is taken out line by line, in which it stands; no other
step looks at them. Texts go from the corpus to the disk in pieces.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.corpus.records import Giant
from mtl_prep.curate.batch import Batch
from mtl_prep.curate.chunk import Chunk
from mtl_prep.curate.facts import Edit
from mtl_prep.curate.judged import Judged
from mtl_prep.curate.pii import Pii
from mtl_prep.curate.signatures import COMPARED
from mtl_prep.curate.step import GlobalStep, Judge, Step
from mtl_prep.curate.writing import json_line_in_pieces

TOO_LARGE = "too large to curate"
PIECE = 1 << 20  # characters edited at a time, up to the end of a line
LONGEST = 1 << 24  # characters of a line, after which it is cut

Steps = list[tuple[int, Step, Judge]]


def signed(giant: Giant, step: GlobalStep, record: dict[str, Any], source: str) -> dict[str, NDArray[Any]]:
    """(rows, 1) the signatures of a large document; `compared` tells whether it has any."""
    found = step.sign_pieces(giant.pieces()) if step.wants(record, source) else None
    arrays = found or {name: np.zeros_like(array) for name, array in step.sign(Batch([" "])).items()}
    return {COMPARED: np.array([[found is not None]]), **arrays}


def lines_together(pieces: Iterator[str]) -> Iterator[str]:
    """A text in pieces that end where lines do, but for very long ones."""
    held = ""
    for piece in pieces:
        held += piece
        end = held.rfind("\n") + 1 or (len(held) if len(held) > LONGEST else 0)
        if len(held) >= PIECE and end:
            yield held[:end]
            held = held[end:]
    yield held


@dataclass
class Passage:
    """A large document that may stay, on its way to the disk; `steps` with numbers, those that edit.

    When it is through, `edits` tells what was changed, and `read` and `written` its characters.
    """

    giant: Giant
    source: str
    steps: Steps
    edits: Counter[Edit] = field(default_factory=Counter)
    read: int = 0
    written: int = 0
    record: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.record = self.giant.whole()
        self._edited("")  # keys are masked before the first piece

    def _edited(self, text: str) -> str:
        chunk = Chunk(0, [text or " "], [self.record], [self.source])
        for number, step, judge in self.steps:
            if isinstance(step, Pii):
                chunk.judge(number, step, judge)
        self.edits.update(chunk.edits.get(0, {}))
        self.record = chunk.records[0]
        return chunk.texts[0] if text else ""

    def line(self, key: Judged) -> Iterator[bytes]:
        """The document as a line of JSON, in pieces."""
        yield from json_line_in_pieces(self.record, key, self._text())

    def _text(self) -> Iterator[str]:
        for piece in lines_together(self.giant.pieces()):
            text = self._edited(piece)
            self.read, self.written = self.read + len(piece), self.written + len(text)
            yield text
