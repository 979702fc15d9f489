"""What is wrong with one shard: its file, its hashes, its Arrow frame, and every rule its columns follow.

A shard is read piece by piece, so memory is the same whatever its size.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_common.bins import Manifest, Shard, ShardView, positions

PIECE = 1 << 20  # bytes, ids or rows looked at together: what fits a cache
ROWS = 1 << 16  # documents looked at together where each has several values
NAMED = 3  # documents of one shard that are named for one kind of damage

Done = Callable[[int], None]


@dataclass
class Seen:
    """What the shards so far held: documents of every source, and the place of the last one."""

    documents: NDArray[np.int64]  # (sources,)
    last: tuple[int, int] = (-1, -1)


def _starts(length: int) -> range:
    return range(0, length, PIECE)


def _named(documents: Iterable[int], count: int, what: str) -> str:
    """`documents 4, 7, 9 and 12 more: ...`."""
    first = [f"{document:,}" for document in documents][:NAMED]
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    return f"document{'s' if count > 1 else ''} {', '.join(first)}{more}: {what}"


def _size(path: Path, shard: Shard) -> str | None:
    if not path.is_file():
        return "it is missing"
    size = path.stat().st_size
    state = "cut off" if size < shard.size else "too long"
    return None if size == shard.size else f"it is {state}: {size:,} bytes instead of {shard.size:,}"


def _metadata(manifest: Manifest, shard: Shard) -> dict[str, str]:
    """What a shard says of itself."""
    hashes = {f"mtl.{name}": digest for name, digest in shard if name.startswith("xxh3_") and digest}
    return hashes | {
        "mtl.documents": str(shard.documents),
        "mtl.tokens": str(shard.tokens),
        "mtl.tokenizer": manifest.tokenizer.fingerprint,
        "mtl.dtype": manifest.dtype,
        "mtl.eod": str(manifest.tokenizer.eod),
    }


def _frame(path: Path, manifest: Manifest, shard: Shard) -> Iterator[str]:
    """Whether Arrow opens the file and finds what the manifest says."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            metadata = reader.schema.metadata or {}
            rows, batches = reader.get_batch(0).num_rows, reader.num_record_batches
        found = positions(path)
    except (pa.ArrowException, ValueError, OSError, KeyError) as error:
        yield f"Arrow cannot open it: {error}"
        return
    if (batches, rows) != (1, shard.documents):
        yield f"it has {batches} record batches and {rows:,} rows, not one of {shard.documents:,}"
    for name, at in found.items():
        if getattr(shard, name) != at:
            yield f"{name} is {at} in the file, {getattr(shard, name)} in the manifest"
    for name, value in _metadata(manifest, shard).items():
        said = metadata.get(name.encode(), b"nothing").decode("utf-8", "replace")
        if said != value:
            yield f"its schema says {said} of {name}, the manifest {value}"


def _file_hash(path: Path, done: Done) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            done(len(piece))
    return digest.hexdigest()


def _hash(column: NDArray[Any]) -> str:
    digest = xxhash.xxh3_128()
    for start in _starts(len(column)):
        digest.update(column[start : start + PIECE].view(np.uint8).data)
    return digest.hexdigest()


def _hashes(view: ShardView, shard: Shard, whole: str) -> Iterator[str]:
    named = {name: digest for name, digest in shard if name.startswith("xxh3_") and digest}
    wrong = [name[5:] for name, digest in named.items() if _hash(getattr(view, name[5:])) != digest]
    yield from (f"the hash of its {name.replace('_', ' ')} does not match" for name in wrong)
    if shard.xxh3 and whole != shard.xxh3 and not wrong:
        yield f"its hash does not match: it is damaged outside {', '.join(name[5:] for name in named)}"


def _offsets(offsets: NDArray[np.int64], tokens: int) -> Iterator[str]:
    """Whether documents begin at 0, follow one another, and end where the tokens do."""
    if offsets[0] != 0:
        yield f"its first document begins at token {offsets[0]:,}, not at 0"
    if offsets[-1] != tokens:
        yield f"its last document ends at token {offsets[-1]:,}, not at {tokens:,}"
    for start in _starts(len(offsets) - 1):
        wrong = np.flatnonzero(np.diff(offsets[start : start + PIECE + 1]) <= 0) + start
        if len(wrong):
            yield _named(wrong.tolist(), len(wrong), "no end after the beginning")
            return


class _Ends:
    """The documents of a shard that break the rule of the end-of-document id.

    A chat template may write that id inside, and so may other tools, so where labels are marked, and in bins
    made from others' files, it only has to be last.
    """

    def __init__(self, view: ShardView, eod: int, *, is_ours: bool = True) -> None:
        self._view, self._eod, self._alone = view, eod, is_ours and view.loss is None
        self.endless: list[int] = []
        self.broken: list[int] = []

    def look(self, start: int, ids: NDArray[Any]) -> None:
        """Takes in the ids from token `start` on."""
        offsets = self._view.offsets
        first, last = np.searchsorted(offsets, [start, start + len(ids)], "right")
        expected = np.zeros(len(ids), bool)
        expected[offsets[first:last] - 1 - start] = True
        wrong = np.flatnonzero((ids == self._eod) != expected)
        documents = np.searchsorted(offsets, wrong + start, "right") - 1
        self.endless += documents[expected[wrong]].tolist()
        self.broken += np.unique(documents[~expected[wrong]]).tolist()

    def problems(self) -> Iterator[str]:
        """One sentence for each of the two kinds."""
        if self.endless:
            yield _named(self.endless, len(self.endless), f"not ended by the end-of-document id {self._eod}")
        if self.broken and self._alone:
            yield _named(
                self.broken, len(self.broken), f"with the end-of-document id {self._eod} before the end"
            )


def _ids(view: ShardView, shard: Shard, manifest: Manifest) -> Iterator[str]:
    """Whether ids are of the vocabulary, and the end-of-document id stands where it may."""
    ends = _Ends(view, manifest.tokenizer.eod, is_ours="made_from" not in manifest.options)
    largest = 0
    for start in _starts(len(view.tokens)):
        ids = view.tokens[start : start + PIECE]
        largest = max(largest, int(ids.max()))
        ends.look(start, ids)
    if largest >= manifest.tokenizer.vocab_size:
        yield f"its largest id is {largest:,}, of a vocabulary of {manifest.tokenizer.vocab_size:,}"
    if largest != shard.largest_id:
        yield f"its largest id is {largest:,}, the manifest says {shard.largest_id:,}"
    yield from ends.problems()


def _loss(view: ShardView, shard: Shard) -> Iterator[str]:
    """Whether the marks of the tokens that count are 0 and 1, as many as the manifest says."""
    if view.loss is None:
        return
    counting = largest = 0
    for start in _starts(len(view.loss)):
        marks = view.loss[start : start + PIECE]
        counting, largest = counting + int(marks.sum(dtype=np.int64)), max(largest, int(marks.max()))
    if largest > 1 or counting != shard.loss_tokens:
        yield f"its loss has marks up to {largest}, their sum is {counting:,}, not {shard.loss_tokens or 0:,}"


def _sentences(view: ShardView) -> Iterator[str]:
    """Whether sentences begin with their document, one after the other, and before its end."""
    starts, bounds = view.sentences, view.sentence_offsets
    if starts is None or bounds is None:
        return
    if broken := list(_offsets(bounds, len(starts))):
        yield from (f"in its sentences, {problem}" for problem in broken)
        return
    for first in range(0, len(bounds) - 1, ROWS):
        rows = bounds[first : first + ROWS + 1]
        inside = starts[rows[0] : rows[-1]].astype(np.int64)
        step = np.diff(inside, append=0)
        last = rows[1:] - rows[0] - 1
        step[last] = (
            np.diff(view.offsets[first : first + ROWS + 1]) - inside[last]
        )  # up to the document's end
        wrong = (np.minimum.reduceat(step, rows[:-1] - rows[0]) <= 0) | (inside[rows[:-1] - rows[0]] != 0)
        if wrong.any():
            documents = np.flatnonzero(wrong) + first
            yield _named(documents.tolist(), len(documents), "no rising beginnings of sentences from 0 on")
            return


def _places(view: ShardView, seen: Seen, shuffled: bool) -> Iterator[str]:
    """Whether documents come from listed sources, and unless shuffled from later and later places in them."""
    for start in _starts(len(view.source)):
        source = view.source[start : start + PIECE].astype(np.int64)
        record = view.record[start : start + PIECE].astype(np.int64)
        outside = np.flatnonzero(source >= len(seen.documents)) + start
        if len(outside):
            yield _named(outside.tolist(), len(outside), "from a source that is not listed")
            return
        seen.documents += np.bincount(source, minlength=len(seen.documents))
        step = np.diff(source, prepend=seen.last[0])
        back = (step < 0) | ((step == 0) & (np.diff(record, prepend=seen.last[1]) <= 0))
        seen.last = (int(source[-1]), int(record[-1]))
        if back.any() and not shuffled:
            rows = np.flatnonzero(back) + start
            yield _named(
                rows.tolist(), len(rows), "not after the one before in the order of sources and records"
            )
            return


def shard_problems(path: Path, manifest: Manifest, shard: Shard, seen: Seen, done: Done) -> Iterator[str]:
    """All that is wrong with one shard; stops where the rest could not be told from its consequences."""
    if problem := _size(path, shard):
        yield problem
        return
    try:
        view = ShardView(path, shard, manifest.dtype, shuffled=False)
    except ValueError:
        yield "the manifest places its columns outside the file"
        return
    whole = _file_hash(path, done)
    yield from _hashes(view, shard, whole)
    if shard.xxh3 in ("", whole):  # what Arrow makes of damaged files is not worth telling
        yield from _frame(path, manifest, shard)
    broken = list(_offsets(view.offsets, shard.tokens))
    yield from broken or [*_ids(view, shard, manifest), *_sentences(view)]
    yield from _loss(view, shard)
    yield from _places(view, seen, manifest.shuffled)
