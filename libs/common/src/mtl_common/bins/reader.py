"""Reads bins: documents and windows of tokens as views of the memory-mapped shards."""

import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins.batch import Batch, Sentences
from mtl_common.bins.manifest import TOKENIZER, Shard, read_manifest
from mtl_common.bins.mapped import mapped
from mtl_common.errors import DataError

PIECE_TOKENS, PIECE_DOCUMENTS = 1 << 20, 1 << 14


class ShardView:
    """One shard file, mapped into memory: its columns as arrays over the map.

    `tokens` (tokens,) and `offsets` (documents + 1,): document i is `tokens[offsets[i] : offsets[i + 1]]`;
    `source`, `record` (documents,). `loss` (tokens,), `sentences` (sentences,) and `sentence_offsets`
    (documents + 1,) are None in a shard without them.
    """

    def __init__(self, path: Path, shard: Shard, dtype: str, *, shuffled: bool = True) -> None:
        memory = mapped(path, at_random=shuffled)

        def column(kind: str, count: int, at: int) -> NDArray[Any]:
            if not 0 <= at <= len(memory) - count * np.dtype(kind).itemsize:
                raise ValueError(f"{path.name} holds no {count:,} values of {kind} at byte {at:,}")
            return np.frombuffer(memory, kind, count, at) if count else np.empty(0, kind)

        self.tokens = column(dtype, shard.tokens, shard.tokens_at)
        self.offsets = column("int64", shard.documents + 1, shard.offsets_at)
        self.source = column("uint32", shard.documents, shard.source_at)
        self.record = column("uint64", shard.documents, shard.record_at)
        self.loss = None if shard.loss_at is None else column("uint8", shard.tokens, shard.loss_at)
        self.sentences = self.sentence_offsets = None
        if shard.sentences_at is not None and shard.sentence_offsets_at is not None:
            self.sentences = column("uint32", shard.sentences or 0, shard.sentences_at)
            self.sentence_offsets = column("int64", shard.documents + 1, shard.sentence_offsets_at)

    @property
    def whole(self) -> Batch:
        """All documents with all their columns, as a writer takes them; views, no copies."""
        sentences = None
        if self.sentences is not None and self.sentence_offsets is not None:
            sentences = Sentences(self.sentences, self.sentence_offsets)
        return Batch(self.tokens, self.offsets, self.source, self.record, self.loss, sentences)

    def batch(self, first: int, last: int) -> Batch:
        """The documents `first:last`; no ids are copied."""
        return self.whole.part(first, last)

    def pieces(self) -> Iterator[Batch]:
        """All documents in order, some at a time, so that copies of them stay small; a giant is alone."""
        whole, first = self.whole, 0
        while first < len(self.record):
            offsets = self.offsets[first : first + PIECE_DOCUMENTS + 1]
            last = first + max(1, int(np.searchsorted(offsets, offsets[0] + PIECE_TOKENS, "right")) - 1)
            yield whole.part(first, last)
            first = last


class Bins:
    """Finished token bins: `len()` documents in the order of the corpus, their tokens one stream.

        bins = Bins("bins")
        bins.document(7)           # (n,) uint16 or uint32, the ids of a document
        bins.loss(7)               # (n,) uint8, 1 where the id counts as a label
        bins.window(1000, 2049)    # (2049,) ids of the stream, whatever documents they belong to

    Pickles as its path. Raises DataError when the directory holds no finished bins or lacks part of a shard.
    """

    def __init__(self, path: str | Path, *, shuffled: bool = True) -> None:
        self.path, self._place, self._shuffled = Path(path), os.fspath(path), shuffled
        self.manifest = read_manifest(self.path)
        self.dtype = np.dtype(self.manifest.dtype)
        self.tokens = self.manifest.tokens  # end-of-document ids included
        shards = self.manifest.shards
        self.has_loss = all(shard.loss_at is not None for shard in shards)  # if not, every token counts
        self.has_sentences = all(shard.sentences_at is not None for shard in shards)
        for shard in shards:
            self._check(shard)
        self._views: list[ShardView | None] = [None] * len(shards)
        self._first_token = [0, *accumulate(shard.tokens for shard in shards)]
        self._first_document = [0, *accumulate(shard.documents for shard in shards)]

    def _check(self, shard: Shard) -> None:
        file = os.path.join(self._place, shard.file)  # a Path costs more than the look at the disk
        try:
            found = os.stat(file).st_size
        except FileNotFoundError:
            raise DataError(f"{file} is missing; restore it or make the bins again") from None
        if found != shard.size:
            state = "cut off" if found < shard.size else "too long"
            sizes = f"{found:,} bytes instead of {shard.size:,}"
            raise DataError(f"{file} is {state}: {sizes}; restore it or make the bins again")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self._shuffled)

    def __len__(self) -> int:
        return self.manifest.documents

    @property
    def vocab_size(self) -> int:
        """The largest possible id plus one."""
        return self.manifest.tokenizer.vocab_size

    @property
    def eod(self) -> int:
        """The id that ends every document."""
        return self.manifest.tokenizer.eod

    @property
    def tokenizer(self) -> Path:
        """The directory of the tokenizer's own files."""
        return self.path / TOKENIZER

    def shard(self, index: int) -> ShardView:
        """One shard, mapped on first use."""
        view = self._views[index]
        if view is None:
            shard = self.manifest.shards[index]
            view = ShardView(self.path / shard.file, shard, self.manifest.dtype, shuffled=self._shuffled)
            self._views[index] = view
        return view

    def _locate(self, document: int) -> tuple[ShardView, int, int]:
        """A document's shard, its row there, and the shard's first token."""
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        index = bisect_right(self._first_document, document) - 1
        return self.shard(index), document - self._first_document[index], self._first_token[index]

    def document(self, index: int) -> NDArray[Any]:
        """The ids of one document, (n,) of `dtype`, the end-of-document id last; a view."""
        view, row, _ = self._locate(index)
        return view.tokens[view.offsets[row] : view.offsets[row + 1]]

    def loss(self, index: int) -> NDArray[np.uint8]:
        """Which ids of one document count as labels, (n,): 1 or 0, all 1 where the bins do not say.

        In a document of a source and a target, the target begins at the first 1.
        """
        view, row, _ = self._locate(index)
        start, stop = view.offsets[row], view.offsets[row + 1]
        return np.ones(stop - start, np.uint8) if view.loss is None else view.loss[start:stop]

    def sentences(self, index: int) -> NDArray[np.uint32]:
        """The positions in one document at which its sentences begin, (sentences,), the first is 0.

        The last sentence ends before the end-of-document id. Raises DataError for bins that do not keep them.
        """
        view, row, _ = self._locate(index)
        if view.sentences is None or view.sentence_offsets is None:
            raise DataError(
                f"{self.path} does not say where sentences begin; make it with mtl-prep tokenize --sentences"
            )
        return view.sentences[view.sentence_offsets[row] : view.sentence_offsets[row + 1]]

    def origin(self, index: int) -> tuple[str, int]:
        """The input file of a document, and its line (or record) there, from 0."""
        view, row, _ = self._locate(index)
        return self.manifest.sources[int(view.source[row])].path, int(view.record[row])

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """The token positions, start and stop, of the documents `first:last`."""
        return self._position(first), self._position(last)

    def _position(self, document: int) -> int:
        if document == len(self):
            return self.tokens
        view, row, before = self._locate(document)
        return before + int(view.offsets[row])

    def window(self, start: int, n: int) -> NDArray[Any]:
        """The `n` ids from token position `start` on, (n,): a view inside a shard, a copy across shards."""
        return self._window("tokens", start, n)

    def window_loss(self, start: int, n: int) -> NDArray[np.uint8]:
        """Which of the `n` ids from token position `start` on count as labels, (n,); see `loss`."""
        return self._window("loss", start, n) if self.has_loss else np.ones(n, np.uint8)

    def _window(self, column: str, start: int, n: int) -> NDArray[Any]:
        if start < 0 or n < 0 or start + n > self.tokens:
            raise IndexError(f"tokens {start}:{start + n} of {self.tokens}")
        index = bisect_right(self._first_token, start, hi=len(self._views)) - 1
        at = start - self._first_token[index]
        values: NDArray[Any] = getattr(self.shard(index), column)
        if start + n <= self._first_token[index + 1]:
            return values[at : at + n]
        parts, left = [values[at:]], n - len(values) + at
        while left > 0:
            index += 1
            parts.append(getattr(self.shard(index), column)[:left])
            left -= len(parts[-1])
        return np.concatenate(parts)


def _reopen(path: Path, shuffled: bool) -> Bins:
    return Bins(path, shuffled=shuffled)
