"""Writing a checkpoint: a staging directory, one part a writer, one rename.

    staging = begin(out, step)                      one process
    with PartWriter(staging, part) as writer:       every process, its own part number
        writer.write("model/NAME", "float32", shape, boxes, start, stop, data)
    commit(staging, layout="tp2", config={...}, state={...})    one process, after all parts are closed

Nothing is visible before the rename at the end, and nothing old is removed before it: a kill at any moment
leaves the older checkpoints as they were. Bytes only: no torch.
"""

import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typing_extensions import Buffer

from mtl_common import manifest
from mtl_common.boxes import Box, Piece, pieces
from mtl_common.errors import CheckpointError
from mtl_common.manifest import Chunk, FileInfo, Manifest, Part, TensorInfo
from mtl_common.tensorfile import (
    BLOCK,
    HEADER,
    ITEM_BYTES,
    Entry,
    TensorFileWriter,
    digest,
    flush_directory,
    write_durably,
)

STAGED = ".tmp-"
REPLACED = ".old-"  # a step that is being written anew; complete, and used until the new one stands
_TRASH = ".trash-"
_LARGEST_FILE = 4 << 30

logger = logging.getLogger(__name__)


def step_name(step: int) -> str:
    """The directory name of a step.

    >>> step_name(100)
    'iter_0000100'
    """
    return f"iter_{step:07d}"


def step_of(name: str) -> int | None:
    """The step of a committed directory's name, or None when it is not one."""
    match = re.fullmatch(rf"(?:{re.escape(REPLACED)})?iter_(\d{{7,}})", name)
    return int(match[1]) if match else None


def discard(directory: Path) -> None:
    """Removes a directory so that no half-removed one can pass for a checkpoint."""
    trash = directory.with_name(_TRASH + directory.name.lstrip("."))
    shutil.rmtree(trash, ignore_errors=True)
    directory.rename(trash)
    shutil.rmtree(trash)


def begin(out: Path, step: int) -> Path:
    """Makes the staging directory of a step inside `out`, and sweeps what killed processes left there."""
    out.mkdir(parents=True, exist_ok=True)
    for leftover in (*out.glob(f"{STAGED}*"), *out.glob(f"{_TRASH}*")):
        shutil.rmtree(leftover)
    staging = out / (STAGED + step_name(step))
    for folder in ("model", "optim", "parts"):
        (staging / folder).mkdir(parents=True)
    return staging


@dataclass
class _Growing:
    """A chunk that may still grow: a flat range that continues it is appended to it."""

    key: str
    box: Box
    start: int
    stop: int
    offset: int
    hashes: list[str]


@dataclass
class _OpenFile:
    name: str
    writer: TensorFileWriter
    chunks: list[_Growing] = field(default_factory=list)
    header: int = 100  # an upper bound on the bytes of the header so far

    def full(self, entry: int) -> bool:
        """Whether a chunk whose header entry takes `entry` bytes belongs into the next file."""
        return self.header + entry > HEADER or self.writer.position - HEADER >= _LARGEST_FILE

    def continues(self, key: str, piece: Piece, item: int) -> bool:
        """Whether the piece goes on where the last chunk ended, at a hash's boundary."""
        if not self.chunks:
            return False
        last = self.chunks[-1]
        whole_blocks = (last.stop - last.start) * item % BLOCK == 0
        return whole_blocks and (last.key, last.box, last.stop) == (key, piece.box, piece.start)


class PartWriter:
    """Writes one writer's chunks into files of its own; `part` is unique among the writers of a checkpoint.

    Extra memory: one buffer of 16 MiB for model/* and one for the optimizer's tensors.
    """

    def __init__(self, staging: Path, part: int) -> None:
        self._staging = staging
        self._part = part
        self._open: dict[str, _OpenFile] = {}
        self._done = Part()
        self._shapes: dict[str, TensorInfo] = {}

    def write(
        self,
        key: str,
        dtype: str,
        shape: Sequence[int],
        boxes: Sequence[Box],
        start: int,
        stop: int,
        data: Buffer,
    ) -> None:
        """Writes elements `start:stop` of the boxes laid end to end, of the full tensor `key`.

        Key is "model/NAME", or another kind ("exp_avg/NAME") for what belongs to the optimizer. Nothing is
        kept of `data`. An empty range still states that the tensor exists. Raises CheckpointError when the
        tensor was written before with another shape or dtype.
        """
        info = self._shapes.setdefault(key, TensorInfo(tuple(shape), dtype))
        if (info.shape, info.dtype) != (tuple(shape), dtype):
            raise CheckpointError(
                f"{key} was written as {info.dtype} {info.shape}, now as {dtype} {tuple(shape)}"
            )
        item = ITEM_BYTES[dtype]
        if start == stop:
            return
        view = memoryview(data).cast("B")
        assert len(view) == (stop - start) * item, (key, len(view), start, stop, item)
        for piece in pieces(boxes, start, stop):
            self._append(key, piece, item, view[piece.position * item :][: (piece.stop - piece.start) * item])

    def close(self) -> None:
        """Finishes the files and states what this part holds."""
        for folder in list(self._open):
            self._finish(folder)
        for key, info in self._shapes.items():
            self._done.tensors.setdefault(key, info)
        write_durably(self._staging / "parts" / f"part{self._part:05d}.json", manifest.pack_part(self._done))

    def _append(self, key: str, piece: Piece, item: int, data: memoryview) -> None:
        file = self._file(key, piece, item)
        offset = file.writer.position
        hashes = file.writer.write(data)
        if file.continues(key, piece, item):
            file.chunks[-1].stop = piece.stop
            file.chunks[-1].hashes += hashes
        else:
            file.chunks.append(_Growing(key, piece.box, piece.start, piece.stop, offset, hashes))
            file.header += _entry_bytes(key, piece)

    def _file(self, key: str, piece: Piece, item: int) -> _OpenFile:
        folder = "model" if key.startswith("model/") else "optim"
        file = self._open.get(folder)
        if file and not file.continues(key, piece, item) and file.full(_entry_bytes(key, piece)):
            self._finish(folder)
        if folder not in self._open:
            count = sum(name.startswith(f"{folder}/") for name in self._done.files)
            name = f"{folder}/part{self._part:05d}-{count}.safetensors"
            self._open[folder] = _OpenFile(name, TensorFileWriter(self._staging / name))
        return self._open[folder]

    def _finish(self, folder: str) -> None:
        file = self._open.pop(folder)
        entries = {}
        for number, grown in enumerate(file.chunks):
            info = self._done.tensors.get(grown.key, self._shapes[grown.key])
            chunk = Chunk(file.name, grown.offset, grown.box, grown.start, grown.stop, tuple(grown.hashes))
            self._done.tensors[grown.key] = TensorInfo(info.shape, info.dtype, None, (*info.chunks, chunk))
            name, entry = _entry(grown.key, number, chunk, info)
            entries[name] = entry
        hashed = file.writer.finish(entries)
        self._done.files[file.name] = FileInfo(file.writer.position, HEADER, hashed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        for file in self._open.values():
            file.writer.close()


def _entry_bytes(key: str, piece: Piece) -> int:
    return len(key.encode("unicode_escape")) + 110 + 14 * max(1, len(piece.box.size))


def _entry(key: str, number: int, chunk: Chunk, info: TensorInfo) -> tuple[str, Entry]:
    """The chunk as a tensor of a plain safetensors file: under its key when it is the full tensor, else
    `key@number`.
    """
    full = chunk.whole and chunk.box.size == info.shape
    shape = chunk.box.size if chunk.whole else (chunk.stop - chunk.start,)
    length = (chunk.stop - chunk.start) * ITEM_BYTES[info.dtype]
    return key if full else f"{key}@{number}", Entry(info.dtype, shape, chunk.offset, chunk.offset + length)


def _copy_tokenizer(source: Path, staging: Path) -> dict[str, FileInfo]:
    copied = {}
    for path in sorted(p for p in source.iterdir() if p.is_file()):
        data = path.read_bytes()
        name = f"tokenizer/{path.name}"
        (staging / "tokenizer").mkdir(exist_ok=True)
        write_durably(staging / name, data)
        copied[name] = FileInfo(len(data), len(data), digest(data))
    return copied


def commit(
    staging: Path,
    *,
    layout: str,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    aliases: Mapping[str, str] | None = None,
    tokenizer: Path | None = None,
) -> Path:
    """Makes the staged parts a checkpoint and returns its directory; `config` and `state` are JSON.

    `aliases` maps the name of a tied tensor to the name it is stored under. `tokenizer` is a directory to
    copy. Raises CheckpointError, naming the tensor, when one is not full exactly once; nothing is committed
    then.
    """
    parts = [manifest.unpack_part(path.read_bytes()) for path in sorted((staging / "parts").glob("*.json"))]
    joined = manifest.merge(parts)
    if not joined.tensors:
        raise CheckpointError(f"{staging} holds no tensors; there is nothing to save")
    files = {**joined.files, **(_copy_tokenizer(tokenizer, staging) if tokenizer else {})}
    step = step_of(staging.name.removeprefix(STAGED))
    assert step is not None, staging
    shutil.rmtree(staging / "parts")
    for path in (staging / name for name in ("model", "optim", "tokenizer")):
        if path.exists():
            flush_directory(path)
    whole = Manifest(step, layout, config, state, aliases or {}, files, joined.tensors)
    write_durably(staging / manifest.NAME, manifest.pack(whole))
    flush_directory(staging)
    return _publish(staging, staging.with_name(step_name(step)))


def _publish(staging: Path, final: Path) -> Path:
    old = final.with_name(REPLACED + final.name)
    if final.exists():
        if old.exists():
            discard(old)
        final.rename(old)
    staging.rename(final)
    flush_directory(final.parent)
    hint = final.with_name(".latest")
    write_durably(hint, f"{final.name}\n".encode())
    os.replace(hint, final.with_name("latest"))
    flush_directory(final.parent)
    if old.exists():
        discard(old)
    return final
