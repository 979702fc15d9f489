"""From documents composed of several pieces to flat ids: dialogues, pairs and questions, or sentences.

A piece is text that is encoded by itself, or a special token; the pieces of many documents are encoded in one
call. The end-of-document id is a piece like any other: the last one, unless a chat template has written it
there, and it counts if what stands before it does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch, Sentences
from mtl_common.dialogue import Piece
from mtl_common.tokenizers import Flat, Tokenizer, merged
from mtl_prep.corpus.records import EMPTY, NOT_ENCODABLE, BadRecordError, Documents, Giant
from mtl_prep.encoding.counted import Counted, Ids
from mtl_prep.encoding.encode import encoded, feeds
from mtl_prep.encoding.engine import Watch
from mtl_prep.encoding.giants import stored
from mtl_prep.encoding.sentences import grown

Bounds = NDArray[np.int64]


class Composer(Protocol):
    """Says what documents are composed of."""

    @property
    def sentences(self) -> bool:
        """Whether pieces are sentences; if not, they say what counts."""

    def pieces(self, text: str) -> Sequence[Piece]:
        """The pieces of one document, at least one; raises BadRecordError for what gives none."""


@dataclass
class _Run:
    """Some documents in pieces, those of document i being `pieces[firsts[i] : firsts[i + 1]]`."""

    pieces: list[Piece] = field(default_factory=list)
    firsts: list[int] = field(default_factory=lambda: [0])
    rows: list[int] = field(default_factory=list)  # which of the texts each document is
    places: list[tuple[int, int]] = field(default_factory=list)  # of each piece

    def add(self, row: int, place: tuple[int, int], pieces: Sequence[Piece], eod: int) -> None:
        """Takes a document in, and ends it."""
        last = pieces[-1]
        counts = last.counts or (bool(last.counted) and last.counted[-1][1] == len(last.text))
        end = [Piece("", eod, counts)] if last.special != eod else []
        self.pieces += [*pieces, *end]
        self.places += [place] * (len(pieces) + len(end))
        self.firsts.append(len(self.pieces))
        self.rows.append(row)


@dataclass(frozen=True)
class _Ids:
    """Pieces as ids: those of piece i are `ids[bounds[i] : bounds[i + 1]]`; some could not be encoded."""

    ids: Ids  # (tokens,)
    bounds: Bounds  # (pieces + 1,)
    failed: set[int]


def _texts(watch: Watch, run: _Run, chosen: Bounds) -> tuple[Flat, set[int]]:
    """The ids of some pieces of text, and which pieces could not be encoded."""
    texts = [run.pieces[i].text for i in chosen]
    flat, failed = encoded(watch.tokenizer, texts)
    if not failed:
        watch.look(texts, [run.places[i] for i in chosen], flat)
    return flat, {int(chosen[i]) for i in failed}


def _all_texts(watch: Watch, run: _Run, plain: Bounds) -> tuple[Flat, set[int]]:
    """The ids of all pieces of text; those inside of a text may begin otherwise than others."""
    inside = np.array([run.pieces[i].inside for i in plain], bool)
    if watch.tokenizer.inside is watch.tokenizer or not inside.any():
        return _texts(watch, run, plain)
    within = Watch(watch.tokenizer.inside)
    within.counts = watch.counts
    (one, failed), (other, also) = _texts(watch, run, plain[~inside]), _texts(within, run, plain[inside])
    return merged(~inside, one, other), failed | also


def _encode(watch: Watch, run: _Run) -> _Ids:
    special = np.array([-1 if piece.special is None else piece.special for piece in run.pieces], np.int64)
    plain, named = np.flatnonzero(special < 0), np.flatnonzero(special >= 0)
    watch.characters += sum(len(run.pieces[i].text) for i in plain)
    (ids, offsets), failed = _all_texts(watch, run, plain)
    lengths = np.ones(len(special), np.int64)
    lengths[plain] = np.diff(offsets)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    out, inner = np.empty(bounds[-1], np.uint32), np.ones(bounds[-1], bool)
    inner[bounds[named]] = False
    out[bounds[named]], out[inner] = special[named], ids
    return _Ids(out, bounds, failed)


def _sentences(bounds: Bounds, firsts: Bounds) -> Sentences:
    """Where the pieces of every document begin, its end left out, and pieces without ids."""
    ends = np.zeros(len(bounds) - 1, bool)
    ends[firsts[1:] - 1] = True
    kept = np.flatnonzero((np.diff(bounds) > 0) & ~ends)
    documents = np.searchsorted(firsts, kept, "right") - 1
    starts = bounds[kept] - bounds[firsts[documents]]
    counts = np.bincount(documents, minlength=len(firsts) - 1)
    return Sentences(starts.astype(np.uint32), np.concatenate([[0], np.cumsum(counts)]))


def _loss(counted: Counted, pieces: Sequence[Piece], made: _Ids) -> NDArray[np.uint8]:
    """Whether each id counts, (tokens,)."""
    whole = np.fromiter((piece.counts for piece in pieces), np.uint8, len(pieces))
    loss = np.repeat(whole, np.diff(made.bounds))
    for i, piece in enumerate(pieces):
        if piece.counted:
            span = slice(made.bounds[i], made.bounds[i + 1])
            loss[span] = counted.of(piece, made.ids[span])
    return loss


def _feed_ids(
    watch: Watch, feeds: Iterable[list[Piece]], place: tuple[int, int], starts: list[Bounds]
) -> Iterator[Ids]:
    """The ids of the sentences of one document; `starts` is told where they begin in it."""
    count = 0
    for pieces in feeds:
        made = _encode(watch, _Run(pieces, places=[place] * len(pieces)))
        if made.failed:
            raise BadRecordError(NOT_ENCODABLE)
        starts.append(made.bounds[:-1][np.diff(made.bounds) > 0] + count)
        count += len(made.ids)
        yield made.ids


def _refuse(found: Documents, row: int, reason: str) -> None:
    found.refuse(*found.places[row], reason, found.texts[row].encode())


class Composing:
    """Makes batches of composed documents for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, composer: Composer, eod: int, dtype: str) -> None:
        self._composer, self._eod, self._dtype = composer, eod, dtype
        self._counted = None if composer.sentences else Counted(tokenizer)

    def batches(self, watch: Watch, found: Documents, directory: Path) -> Iterator[Batch]:
        """The documents as ids, a long one kept in `directory` for now; what has no ids is refused."""
        for rows in feeds(found):
            run = self._run(found, rows)
            yield self._batch(found, run, _encode(watch, run))
        if found.giant is not None:
            yield from self._long(watch, found, found.giant, directory)

    def _long(self, watch: Watch, found: Documents, giant: Giant, directory: Path) -> Iterator[Batch]:
        """One long document, which can only be a text of sentences, or none when it is refused."""
        place, starts = (giant.source, giant.record), list[Bounds]()
        ids = _feed_ids(watch, grown(giant.pieces(), self._composer.pieces), place, starts)
        try:
            with stored(ids, place, self._eod, self._dtype, directory) as batch:
                begins = np.concatenate(starts).astype(np.uint32)
                yield replace(batch, sentences=Sentences(begins, np.array([0, len(begins)])))
        except BadRecordError as bad:
            found.refuse(*place, str(bad))

    def _run(self, found: Documents, rows: slice) -> _Run:
        run = _Run()
        for row in range(rows.start, rows.stop):
            try:
                pieces = self._composer.pieces(found.texts[row])
            except BadRecordError as bad:
                _refuse(found, row, str(bad))
            else:
                run.add(row, found.places[row], pieces, self._eod)
        return run

    def _batch(self, found: Documents, run: _Run, made: _Ids) -> Batch:
        firsts = np.array(run.firsts)
        places = np.array([found.places[row] for row in run.rows], np.uint64).reshape(-1, 2)
        batch = Batch(
            ids=made.ids.astype(self._dtype),
            offsets=made.bounds[firsts],
            source=places[:, 0].astype(np.uint32),
            record=places[:, 1],
            loss=_loss(self._counted, run.pieces, made) if self._counted else None,
            sentences=_sentences(made.bounds, firsts) if self._composer.sentences else None,
        )
        failed = set((np.searchsorted(firsts, sorted(made.failed), "right") - 1).tolist())
        empty = np.diff(batch.offsets) < 2  # nothing but the end
        for i in failed | set(np.flatnonzero(empty).tolist()):
            _refuse(found, run.rows[i], NOT_ENCODABLE if i in failed else EMPTY)
            empty[i] = True
        return batch.keep(~empty)
