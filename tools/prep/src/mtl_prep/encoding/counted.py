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
        self._bytes = [tokenizer.piece(id) for id in range(tokenizer.vocab_size)]
        self._sizes = np.array([len(piece) for piece in self._bytes], np.int64)  # (V,)

    def of(self, piece: Piece, ids: Ids) -> NDArray[np.bool_]:
        """Whether each id of a piece of text counts by its characters, (n,)."""
        mask = np.zeros(len(ids), bool)
        spelled = b"".join([self._bytes[id] for id in ids.tolist()]) == piece.text.encode()
        find = self._by_bytes if spelled else self._by_ids
        for start, stop in piece.counted:  # none of them empty
            mask[find(piece.text, ids, start, False) : find(piece.text, ids, stop, True)] = True
        return mask

    def _by_bytes(self, text: str, ids: Ids, at: int, after: bool) -> int:
        """The token that holds the first byte from `at` on; `after`: that follows the last byte before it."""
        ends, place = np.cumsum(self._sizes[ids]), len(text[:at].encode())
        if after:
            return int(np.searchsorted(ends, place, "left")) + 1
        return int(np.searchsorted(ends, place, "right"))

    def _by_ids(self, text: str, ids: Ids, at: int, after: bool) -> int:
        """The same where characters were added or changed: after the ids that the text before has alone."""
        if at in (0, len(text)):
            return len(ids) if at else 0
        before = self._tokenizer.encode_batch([text[:at]])[0]
        shared = min(len(before), len(ids))
        same = int(np.cumprod(before[:shared] == ids[:shared]).sum())
        return same + (after and same < len(before))
