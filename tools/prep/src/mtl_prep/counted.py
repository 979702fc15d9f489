"""Which ids of a piece of text count as labels, told from the characters that do."""

import numpy as np
from numpy.typing import NDArray

from mtl_common.dialogue import Piece
from mtl_common.tokenizers import Tokenizer

Ids = NDArray[np.uint32]


class Counted:
    """Finds the ids that hold a byte of what counts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        sizes = [len(tokenizer.piece(id)) for id in range(tokenizer.vocab_size)]
        self._sizes = np.array(sizes, np.int64)  # (V,) bytes of each token

    def of(self, piece: Piece, ids: Ids) -> NDArray[np.bool_]:
        """Whether each id of a piece of text counts by its characters, (n,)."""
        mask = np.zeros(len(ids), bool)
        for start, stop in piece.counted:
            mask[self._token(piece.text, ids, start) : self._token(piece.text, ids, stop, after=True)] = True
        return mask

    def _token(self, text: str, ids: Ids, at: int, after: bool = False) -> int:
        """The token that holds the first byte from `at` on; `after`: that follows the last byte before it."""
        if at in (0, len(text)):
            return len(ids) if at else 0
        ends, place = np.cumsum(self._sizes[ids]), len(text[:at].encode())
        if len(ids) and ends[-1] == len(text.encode()):
            if after:
                return int(np.searchsorted(ends, place, "left")) + 1
            return int(np.searchsorted(ends, place, "right"))
        # the tokenizer adds or changes characters: count the ids that the text before has alone, too
        before = self._tokenizer.encode_batch([text[:at]])[0]
        shared = min(len(before), len(ids))
        same = int(np.cumprod(before[:shared] == ids[:shared]).sum())
        return same + (after and same < len(before))
