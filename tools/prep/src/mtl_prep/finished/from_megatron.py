"""Megatron's .bin and .idx to bins: the same tokens in the same documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import (
    TOKENIZER,
    Batch,
    Manifest,
    Sentences,
    Shard,
    Shards,
    Sizes,
    Source,
    TokenizerFacts,
    about,
    dtype_for,
    staged,
    write_manifest,
)
from mtl_common.bins.megatron import Pair
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus.places import content_hash
from mtl_prep.corpus.records import EMPTY
from mtl_prep.running.beginning import end_of_document


@dataclass(frozen=True)
class Request:
    """A pair of files by its prefix, and what its ids mean."""

    prefix: Path
    tokenizer: Path
    out: Path
    eod: str | None = None
    add_eod: bool = False  # put the end after documents that lack it, instead of refusing them
    shard_tokens: int = 1 << 27


@dataclass
class Imported:
    """What was made; documents of several sequences keep their inner bounds as beginnings of sentences."""

    manifest: Manifest
    ended: int  # documents that got an end
    several: int  # documents of several sequences
    empty_sequences: int
    has_modes: bool


class _Reading:
    """The documents of a pair as batches, and what was met on the way."""

    def __init__(self, pair: Pair, facts: TokenizerFacts, add_eod: bool) -> None:
        self._pair, self._facts, self._add_eod = pair, facts, add_eod
        self._dtype = dtype_for(facts.vocab_size)
        self.ended = self.several = self.documents = self.empty_sequences = 0
        self._in_sequences = pair.in_sequences

    def sizes(self, limit: int) -> Sizes:
        """How large shards of at most `limit` tokens will be; reads only the last id of documents."""
        sizes = Sizes(limit)
        for first, last in self._pair.parts():
            batch = self._batch(first, last)
            lengths = np.diff(batch.offsets)
            filled, ends = lengths > 0, batch.offsets[1:]
            endless = batch.ids[ends[filled] - 1] != self._facts.eod
            inner = None if batch.sentences is None else np.diff(batch.sentences.offsets)[filled]
            sizes.add(lengths[filled] + endless, inner)
        return sizes

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """The documents with any tokens, and how many tokens of the files each batch stands for."""
        for first, last in self._pair.parts():
            batch = self._batch(first, last)
            self._check_ids(batch)
            self.empty_sequences += self._empty(first, last)
            if batch.sentences is not None:
                self.several += int((np.diff(batch.sentences.offsets) > 1).sum())
            kept = self._with_ends(batch.keep(np.diff(batch.offsets) > 0))
            self.documents += len(kept.record)
            yield kept, len(batch.ids)

    def _batch(self, first: int, last: int) -> Batch:
        """The documents `first:last` as they are in the files."""
        sequences = np.asarray(self._pair.documents[first : last + 1])
        tokens = self._pair.first_token(sequences)
        offsets, count = tokens - tokens[0], last - first
        return Batch(
            ids=self._pair.ids[tokens[0] : tokens[-1]],
            offsets=offsets,
            source=np.zeros(count, np.uint32),
            record=np.arange(first, last, dtype=np.uint64),
            sentences=self._sentences(sequences, tokens) if self._in_sequences else None,
        )

    def _empty(self, first: int, last: int) -> int:
        """How many sequences of the documents `first:last` have no tokens."""
        lengths = self._pair.lengths[self._pair.documents[first] : self._pair.documents[last]]
        return int((lengths == 0).sum())

    def _sentences(self, sequences: NDArray[np.int64], tokens: NDArray[np.int64]) -> Sentences:
        """Where the sequences with any tokens begin in their documents."""
        starts = self._pair.first_token(np.arange(sequences[0], sequences[-1] + 1))
        document = np.repeat(np.arange(len(sequences) - 1), np.diff(sequences))
        filled = np.diff(starts) > 0
        counts = np.bincount(document[filled], minlength=len(sequences) - 1)
        inside = (starts[:-1] - tokens[document])[filled]
        return Sentences(inside.astype(np.uint32), np.concatenate([[0], np.cumsum(counts)]))

    def _check_ids(self, batch: Batch) -> None:
        wrong = np.flatnonzero((batch.ids < 0) | (batch.ids >= self._facts.vocab_size))
        if len(wrong):
            document = batch.record[np.searchsorted(batch.offsets, wrong[0], "right") - 1]
            raise DataError(
                f"document {document} of {self._pair.bin} holds the id {batch.ids[wrong[0]]}, none of the "
                f"{self._facts.vocab_size:,} of the vocabulary; give the --tokenizer that made the files"
            )

    def _with_ends(self, batch: Batch) -> Batch:
        """The documents as bins hold them: of the right type, and ended."""
        ids, eod = batch.ids.astype(self._dtype), self._facts.eod
        endless = ids[batch.offsets[1:] - 1] != eod
        if not endless.any():
            return Batch(ids, batch.offsets, batch.source, batch.record, None, batch.sentences)
        if not self._add_eod:
            first = batch.record[np.flatnonzero(endless)[0]]
            raise DataError(
                f"document {first} of {self._pair.bin} does not end with the end-of-document id {eod}; "
                "put it after each that lacks it with --add-eod, or name another one with --eod"
            )
        self.ended += int(endless.sum())
        offsets = batch.offsets + np.concatenate([[0], np.cumsum(endless)])
        ids = np.insert(ids, batch.offsets[1:][endless], eod)
        return Batch(ids, offsets, batch.source, batch.record, None, batch.sentences)


def _facts(tokenizer: Tokenizer, eod: str | None) -> TokenizerFacts:
    return TokenizerFacts(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eod=end_of_document(tokenizer, eod),
        engine="megatron",
    )


def _manifest(request: Request, pair: Pair, facts: TokenizerFacts, shards: tuple[Shard, ...]) -> Manifest:
    documents = sum(shard.documents for shard in shards)
    empty = len(pair) - documents
    source = Source(
        path=str(pair.bin),
        size=pair.bin.stat().st_size,
        xxh3=content_hash(pair.bin),
        records=len(pair),
        documents=documents,
        bad={EMPTY: empty} if empty else {},
        repaired={},
    )
    return Manifest(
        tool=f"mtl-prep {version('mtl-prep')}",
        dtype=dtype_for(facts.vocab_size),
        documents=documents,
        tokens=sum(shard.tokens for shard in shards),
        tokenizer=facts,
        options={"made_from": "megatron", "eod": facts.eod, "shard_tokens": request.shard_tokens},
        shards=shards,
        sources=(source,),
    )


def from_megatron(request: Request) -> Imported:
    """Makes bins of a pair of files; raises DataError when the ids are not those of the tokenizer, when a
    document has no end (see `add_eod`), or when the files are damaged.
    """
    pair, tokenizer = Pair(request.prefix), load(request.tokenizer)
    facts = _facts(tokenizer, request.eod)
    reading, dtype = _Reading(pair, facts, request.add_eod), dtype_for(facts.vocab_size)
    names, sizes = about(facts.fingerprint, dtype, facts.eod), reading.sizes(request.shard_tokens)
    with staged(request.out) as place:
        with (
            progress("convert", len(pair.ids), "tokens") as shown,
            Shards(place, dtype, names, request.shard_tokens, sizes.shards) as shards,
        ):
            for batch, tokens in reading.batches():
                shards.append(batch)
                shown.advance(tokens)
            if not reading.documents:
                raise DataError(f"{pair.bin} holds no tokens; there is nothing to convert")
            made = shards.finish()
        tokenizer.save(place / TOKENIZER)
        manifest = _manifest(request, pair, facts, made)
        write_manifest(place, manifest)
    return Imported(manifest, reading.ended, reading.several, reading.empty_sequences, pair.modes is not None)
