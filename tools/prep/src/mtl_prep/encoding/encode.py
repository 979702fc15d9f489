"""From texts to the flat ids of documents, the end-of-document id after each."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch
from mtl_common.errors import DataError
from mtl_common.tokenizers import Flat, Tokenizer
from mtl_prep.corpus.records import EMPTY, NOT_ENCODABLE, BadRecordError, Documents, Giant
from mtl_prep.encoding.engine import Watch
from mtl_prep.encoding.giants import FEED, long_document


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


def encoded(tokenizer: Tokenizer, texts: list[str]) -> tuple[Flat, list[int]]:
    """The ids of texts, and which of them the library cannot encode; those have no ids."""
    try:
        return tokenizer.encode_batch(texts), []
    except DataError:
        if len(texts) == 1:
            return (np.empty(0, np.uint32), np.zeros(2, np.int64)), [0]
    halves = (texts[: len(texts) // 2], texts[len(texts) // 2 :])
    (first, early), (second, late) = (encoded(tokenizer, half) for half in halves)
    ids = np.concatenate([first[0], second[0]])
    offsets = np.concatenate([first[1], second[1][1:] + first[1][-1]])
    return (ids, offsets), [*early, *(len(halves[0]) + i for i in late)]


def feeds(found: Documents) -> Iterator[slice]:
    """The texts in runs of up to FEED characters; a longer one is alone."""
    start = size = 0
    for i, text in enumerate(found.texts):
        if size + len(text) > FEED and i > start:
            yield slice(start, i)
            start, size = i, 0
        size += len(text)
    if found.texts:
        yield slice(start, len(found.texts))


def _together(watch: Watch, found: Documents, run: slice, eod: int, dtype: str) -> Batch:
    """Some documents as one batch."""
    places = found.places[run]
    watch.characters += sum(map(len, found.texts[run]))
    (ids, offsets), failed = encoded(watch.tokenizer, found.texts[run])
    if not failed:
        watch.look(found.texts[run], places, (ids, offsets))
    kept = np.diff(offsets) > 0
    for i in np.flatnonzero(~kept):
        found.refuse(*places[i], NOT_ENCODABLE if i in failed else EMPTY)
    # a dropped document is an empty span, so its end is the next one's start
    out, ended = with_ends((ids, np.concatenate([offsets[:1], offsets[1:][kept]])), eod, dtype)
    source, record = np.array(places, np.uint64).reshape(-1, 2)[kept].T
    return Batch(out, ended, source.astype(np.uint32), record)


def _long(
    watch: Watch, found: Documents, long: Giant, eod: int, dtype: str, directory: Path
) -> Iterator[Batch]:
    """One long document as a batch, or none when it is refused."""
    place = (long.source, long.record)
    try:
        pieces = watch.looking(long.pieces(), place)
        with long_document(watch.tokenizer, pieces, place, eod, dtype, directory) as batch:
            yield batch
    except BadRecordError as bad:
        found.refuse(*place, str(bad))


def batches(watch: Watch, found: Documents, eod: int, dtype: str, directory: Path) -> Iterator[Batch]:
    """The documents as ids, long ones kept in `directory` for now; what has no tokens is refused."""
    for run in feeds(found):
        text, place = found.texts[run.start], found.places[run.start]
        if len(text) <= FEED:
            yield _together(watch, found, run, eod, dtype)
        else:
            long = Giant(place[0], place[1], partial(iter, [text]))
            yield from _long(watch, found, long, eod, dtype, directory)
    if found.giant is not None:
        yield from _long(watch, found, found.giant, eod, dtype, directory)
