"""Checkpoints: find, read and verify them. What a checkpoint is stands in `manifest`, how it is written in
`staging`.

    checkpoint = Checkpoint(newest(out))
    checkpoint.read("model/NAME", boxes, start, stop, into=memory)

A checkpoint has no layout: any list of boxes, or flat range of one, is read by intersecting it with what was
written. Every byte that is read is checked against its hash. Bytes only: no torch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from mtl_common import manifest
from mtl_common.boxes import Box, Placed, placed
from mtl_common.errors import CheckpointError, ConfigError
from mtl_common.integrity import damage, verify
from mtl_common.manifest import Chunk, FileInfo, Manifest, TensorInfo
from mtl_common.staging import REPLACED, PartWriter, begin, commit, discard, step_of
from mtl_common.tensorfile import BLOCK, ITEM_BYTES, TensorFileReader, digest

__all__ = [
    "Checkpoint",
    "PartWriter",
    "TensorInfo",
    "begin",
    "commit",
    "newest",
    "resolve",
    "retain",
    "verify",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Copy:
    """What a source box and a target box have in common."""

    box: Box
    source: Placed
    target: Placed


def _copies(sources: Sequence[Placed], targets: Sequence[Placed]) -> list[_Copy]:
    pairs = ((source.box.intersect(target.box), source, target) for source in sources for target in targets)
    return [_Copy(box, source, target) for box, source, target in pairs if box]


def _shift(copies: Sequence[_Copy], length: int) -> int | None:
    """Where all `length` source elements stand in the target's memory, when they are one run there, else
    None.
    """
    shifts = set()
    for copy in copies:
        run = copy.box.run(copy.target.box)
        if run is None or copy.box != copy.source.box:
            return None
        shifts.add(copy.target.position + run - copy.source.position)
    complete = sum(copy.box.volume for copy in copies) == length
    return shifts.pop() if complete and len(shifts) == 1 else None


def _array(memory: memoryview, at: Placed, item: int) -> NDArray[Any]:
    dtype = np.dtype(f"u{item}")
    return np.frombuffer(memory, dtype, at.box.volume, at.position * item).reshape(at.box.size)


def _apply(copy: _Copy, source: memoryview, target: memoryview, item: int) -> None:
    read, written = _array(source, copy.source, item), _array(target, copy.target, item)
    written[copy.box.slices(copy.target.box)] = read[copy.box.slices(copy.source.box)]


class Checkpoint:
    """A committed checkpoint, opened by its manifest; tensors are read when asked for.

    Raises CheckpointError when the directory holds no undamaged manifest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest: Manifest = manifest.load(path)

    @property
    def step(self) -> int:
        """The training step it was saved after; 0 for an imported model."""
        return self._manifest.step

    @property
    def layout(self) -> str:
        """The layout it was written at; it can be read at any."""
        return self._manifest.layout

    @property
    def config(self) -> Mapping[str, Any]:
        """What the model is: `config["model"]` are the values of a ModelShape."""
        return self._manifest.config

    @property
    def state(self) -> Mapping[str, Any]:
        """What training goes on from, besides tensors."""
        return self._manifest.state

    @property
    def aliases(self) -> Mapping[str, str]:
        """Name of each tied tensor -> the name it is stored under."""
        return self._manifest.aliases

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Key ("model/NAME", "exp_avg/NAME", ...) -> full shape, dtype and alias."""
        return self._manifest.tensors

    @property
    def files(self) -> Mapping[str, FileInfo]:
        """Relative path -> size and hash of each file."""
        return self._manifest.files

    @property
    def tokenizer(self) -> Path | None:
        """The directory of the tokenizer's files, if it carries one."""
        path = self.path / "tokenizer"
        return path if path.is_dir() else None

    def info(self, key: str, shape: Sequence[int] | None = None, dtype: str | None = None) -> TensorInfo:
        """The tensor's record; raises CheckpointError when it is missing, or not of this shape or dtype."""
        found = self.tensors.get(key)
        if found is None:
            raise CheckpointError(f"{self.path} has no tensor {key}; the model is another one")
        if shape is not None and tuple(shape) != found.shape:
            raise CheckpointError(f"{key} is {found.shape} in {self.path}, the model wants {tuple(shape)}")
        if dtype is not None and dtype != found.dtype:
            raise CheckpointError(f"{key} is {found.dtype} in {self.path}, the model wants {dtype}")
        return found

    def read(
        self,
        key: str,
        boxes: Sequence[Box],
        start: int,
        stop: int,
        into: Buffer,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Fills writable memory with elements `start:stop` of the boxes laid end to end, of the full tensor
        `key`.

        Reads nothing else than the hashed blocks that hold these elements, and straight into place where they
        are one run. Extra memory: one block. Raises CheckpointError naming the tensor when it is missing or
        not of the stated shape or dtype, and naming the file when that is missing, truncated or damaged.
        """
        info = self.info(key, shape, dtype)
        outside = [box for box in boxes if any(e > s for e, s in zip(box.end, info.shape, strict=True))]
        if outside:
            raise CheckpointError(f"{key} is {info.shape} in {self.path}; there is no box {outside[0]} in it")
        chunks = self.tensors[info.alias].chunks if info.alias else info.chunks
        item = ITEM_BYTES[info.dtype]
        if start == stop:
            return
        memory = memoryview(into).cast("B")
        assert len(memory) == (stop - start) * item, (key, len(memory), start, stop, item)
        targets = placed(boxes, start, stop)
        copied = sum(self._read_chunk(key, chunk, targets, memory, item) for chunk in chunks)
        assert copied == stop - start, (key, copied, start, stop)  # the manifest was checked for coverage

    def read_full(self, key: str) -> bytearray:
        """The bytes of a full tensor, row-major."""
        info = self.info(key)
        memory = bytearray(info.bytes)
        self.read(key, [Box.full(info.shape)], 0, prod(info.shape), memory)
        return memory

    def _read_chunk(
        self, key: str, chunk: Chunk, targets: Sequence[Placed], memory: memoryview, item: int
    ) -> int:
        """Copies what the chunk and the targets have in common; returns how many elements that was."""
        if not any(chunk.box.intersect(target.box) for target in targets):
            return 0
        step, copied = BLOCK // item, 0
        scratch = memoryview(bytearray(min(step, chunk.stop - chunk.start) * item))
        with TensorFileReader(self.path / chunk.file) as file:
            for number, first in enumerate(range(chunk.start, chunk.stop, step)):
                length = min(step, chunk.stop - first)
                copies = _copies(placed([chunk.box], first, first + length), targets)
                if not copies:
                    continue
                shift = _shift(copies, length)
                block = scratch[: length * item] if shift is None else memory[shift * item :][: length * item]
                position = chunk.offset + (first - chunk.start) * item
                file.read_into(position, block)
                if digest(block) != chunk.hashes[number]:
                    raise CheckpointError(damage(file.path, key, position, len(block)))
                for copy in copies if shift is None else ():
                    _apply(copy, block, memory, item)
                copied += sum(copy.box.volume for copy in copies)
        return copied


def _steps(out: Path) -> list[Path]:
    """Committed directories, the newest first."""
    found = [
        (step_of(path.name), not path.name.startswith(REPLACED), path)
        for path in out.iterdir()
        if path.is_dir()
    ]
    return [
        path
        for step, _, path in sorted(found, key=lambda f: (f[0] or 0, f[1]), reverse=True)
        if step is not None
    ]


def newest(out: Path) -> Path:
    """The newest step in `out` whose manifest and file sizes are right; each newer one is skipped with a
    warning.

    Raises CheckpointError when there is none.
    """
    if not out.is_dir():
        raise CheckpointError(f"{out} does not exist; name a directory of checkpoints")
    for path in _steps(out):
        problems = verify(path, full=False)
        if not problems:
            return path
        logger.warning("%s is skipped: %s", path, problems[0])
    raise CheckpointError(f"{out} holds no complete checkpoint")


def resolve(path: Path) -> Path:
    """The step directory that is meant by a step directory, a directory of checkpoints, or a run directory.

    Raises CheckpointError when the path does not exist or is none of these.
    """
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist; name a checkpoint, a directory of checkpoints or a run directory"
        )
    if (path / manifest.NAME).exists() or (path.is_dir() and step_of(path.name) is not None):
        manifest.load(path)
        return path
    for out in (path / "checkpoints", path):
        if out.is_dir() and _steps(out):
            return newest(out)
    raise CheckpointError(f"{path} is not a checkpoint: it has no {manifest.NAME} and no iter_* directories")


def retain(out: Path, keep_last: int) -> None:
    """Removes all but the `keep_last` newest complete checkpoints; call it after a commit only.

    What is damaged is not counted, and is removed once it is older than the ones kept.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last is {keep_last}; at least 1 checkpoint must be kept")
    kept = 0
    for path in _steps(out):
        if kept == keep_last:
            discard(path)
        elif not verify(path, full=False):
            kept += 1
