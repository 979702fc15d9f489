"""Makes finished bins of documents that come one after the other."""

from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins.batch import Batch
from mtl_common.bins.manifest import (
    TOKENIZER,
    Manifest,
    Source,
    TokenizerFacts,
    about,
    dtype_for,
    write_manifest,
)
from mtl_common.bins.shards import Shards
from mtl_common.bins.staged import staged
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import Tokenizer, load

FEED = 1 << 22  # characters or ids that wait to be written together; libraries encode fastest so
EMPTY = "empty"


class Writer:
    """Finished bins in the directory `out`, from texts and ids.

        with Writer("bins", "tokenizer") as writer:
            writer.add("A document as text")
            writer.add([17, 4, 256])

    The directory appears by one rename when the `with` ends well, and not at all otherwise. Raises UsageError
    when it exists, or when the tokenizer names no end of a document and `eod` gives none.
    """

    def __init__(
        self,
        out: str | Path,
        tokenizer: str | Path | Tokenizer,
        *,
        eod: int | None = None,
        shard_tokens: int = 1 << 27,
        source: str = "written",
    ) -> None:
        self._tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load(tokenizer)
        self._facts = self._described(eod)
        self._dtype = dtype_for(self._facts.vocab_size)
        self._source, self._shard_tokens = source, shard_tokens
        self._out = Path(out)
        self._texts: list[str] = []
        self._ids: list[NDArray[Any]] = []  # each with its end
        self._losses: list[NDArray[np.uint8]] = []
        self._waiting = self._records = self._documents = 0
        self._has_loss: bool | None = None

    def _described(self, eod: int | None) -> TokenizerFacts:
        tokenizer = self._tokenizer
        end = tokenizer.eod if eod is None else eod
        if end is None or not 0 <= end < tokenizer.vocab_size:
            raise UsageError(f"{tokenizer.path} has no end-of-document token {eod or ''}; give the id as eod")
        return TokenizerFacts(
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eod=end,
            engine=tokenizer.engine,
        )

    def add(
        self, document: str | Sequence[int] | NDArray[Any], loss: Sequence[int] | NDArray[Any] | None = None
    ) -> None:
        """Adds one document, its text or its ids (n,); the end is put after it unless it is there.

        `loss` (n,) is 1 where an id counts as a label, the end put after them too; either all documents have
        one or none. A document without any tokens is left out and counted. Raises DataError for ids outside
        the vocabulary, for an end inside a document without a loss, and for a `loss` that does not fit.
        """
        if self._has_loss not in (None, loss is not None):
            raise DataError("either all documents have a loss or none")
        self._has_loss = loss is not None
        if isinstance(document, str):
            if self._ids:
                self._flush()
            self._texts.append(document)
        else:
            if self._texts:
                self._flush()
            self._add_ids(np.asarray(document, np.int64), loss)
        self._waiting += len(document)
        if self._waiting >= FEED:
            self._flush()

    def _add_ids(self, ids: NDArray[np.int64], loss: Sequence[int] | NDArray[Any] | None) -> None:
        number, eod = self._records + len(self._ids), self._facts.eod
        if len(ids) and (ids.min() < 0 or ids.max() >= self._facts.vocab_size):
            raise DataError(
                f"document {number} holds ids outside the vocabulary of {self._facts.vocab_size:,}"
            )
        if loss is None and (ids[:-1] == eod).any():
            raise DataError(
                f"document {number} holds the end-of-document id {eod} inside; add its parts one by one"
            )
        if loss is not None and len(loss) != len(ids):
            raise DataError(f"document {number} has {len(ids):,} ids and a loss of {len(loss):,}")
        ended = len(ids) > 0 and ids[-1] == eod
        self._ids.append(ids if ended else np.append(ids, eod))
        if loss is not None:
            self._losses.append(np.asarray(loss if ended else [*loss, 1], np.uint8))

    def _encoded(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The waiting documents end to end, (tokens,), and where each begins, (documents + 1,)."""
        if not self._texts:
            offsets = np.cumsum([0, *map(len, self._ids)], dtype=np.int64)
            return np.concatenate([np.empty(0, np.int64), *self._ids]), offsets
        ids, offsets = self._tokenizer.encode_batch(self._texts)
        return np.insert(ids, offsets[1:], self._facts.eod), offsets + np.arange(len(offsets))

    def _flush(self) -> None:
        ids, offsets = self._encoded()
        count = len(offsets) - 1
        batch = Batch(
            ids=ids.astype(self._dtype),
            offsets=offsets,
            source=np.zeros(count, np.uint32),
            record=np.arange(self._records, self._records + count, dtype=np.uint64),
            loss=np.concatenate(self._losses) if self._losses else None,
        )
        kept = batch.keep(np.diff(offsets) > 1)  # more than their end
        self._shards.append(kept)
        self._records += count
        self._documents += len(kept.record)
        self._texts, self._ids, self._losses, self._waiting = [], [], [], 0

    def _finish(self) -> None:
        self._flush()
        if not self._documents:
            raise DataError("nothing was written: no document has any tokens")
        shards, empty = self._shards.finish(), self._records - self._documents
        source = Source(
            path=self._source,
            size=0,
            xxh3="",
            records=self._records,
            documents=self._documents,
            bad={EMPTY: empty} if empty else {},
            repaired={},
        )
        self._tokenizer.save(self._place / TOKENIZER)
        write_manifest(
            self._place,
            Manifest(
                tool=f"mtl-common {version('mtl-common')}",
                dtype=self._dtype,
                documents=self._documents,
                tokens=sum(shard.tokens for shard in shards),
                tokenizer=self._facts,
                options={"eod": self._facts.eod, "shard_tokens": self._shard_tokens},
                shards=shards,
                sources=(source,),
            ),
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._place = stack.enter_context(staged(self._out))
            names = about(self._facts.fingerprint, self._dtype, self._facts.eod)
            self._shards = stack.enter_context(Shards(self._place, self._dtype, names, self._shard_tokens))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            self._finish()
