"""From texts to the flat ids of documents, the end-of-document id after each."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch
from mtl_common.errors import DataError
from mtl_common.tokenizers import Flat, Tokenizer
from mtl_prep.records import EMPTY, NOT_ENCODABLE, Documents

FEED = 1 << 22  # characters encoded at a time; libraries are fastest from one to eight million


def with_ends(flat: Flat, eod: int, dtype: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Puts the end-of-document id after every document.

    (tokens,), (documents + 1,) -> (tokens + documents,), (documents + 1,)
    """
    ids, offsets = flat
    ended = offsets + np.arange(len(offsets))
    out = np.full(ended[-1], eod, dtype)
    inner = np.ones(len(out), bool)
    inner[ended[1:] - 1] = False
    out[inner] = ids
    return out, ended


def _encode(tokenizer: Tokenizer, texts: list[str]) -> tuple[Flat, list[int]]:
    """The ids of texts, and which of them the library cannot encode; those have no ids."""
    try:
        return tokenizer.encode_batch(texts), []
    except DataError:
        if len(texts) == 1:
            return (np.empty(0, np.uint32), np.zeros(2, np.int64)), [0]
    halves = (texts[: len(texts) // 2], texts[len(texts) // 2 :])
    (first, early), (second, late) = (_encode(tokenizer, half) for half in halves)
    ids = np.concatenate([first[0], second[0]])
    offsets = np.concatenate([first[1], second[1][1:] + first[1][-1]])
    return (ids, offsets), [*early, *(len(halves[0]) + i for i in late)]


def _feeds(found: Documents) -> Iterator[tuple[list[str], list[tuple[int, int]]]]:
    """The texts and their places in runs of about FEED characters; a giant goes alone or last."""
    start = size = 0
    for i, text in enumerate(found.texts, 1):
        size += len(text)
        if size >= FEED or i == len(found.texts):
            yield found.texts[start:i], found.places[start:i]
            start, size = i, 0


def batches(tokenizer: Tokenizer, found: Documents, eod: int, dtype: str) -> Iterator[Batch]:
    """The documents as ids; what gives no tokens goes to `found.bad`."""
    for texts, places in _feeds(found):
        (ids, offsets), failed = _encode(tokenizer, texts)
        kept = np.diff(offsets) > 0
        for i in np.flatnonzero(~kept):
            found.bad.append((*places[i], NOT_ENCODABLE if i in failed else EMPTY))
        # a dropped document is an empty span, so its end is the next one's start
        out, ended = with_ends((ids, np.concatenate([offsets[:1], offsets[1:][kept]])), eod, dtype)
        source, record = np.array(places, np.uint64).reshape(-1, 2)[kept].T
        yield Batch(out, ended, source.astype(np.uint32), record)
