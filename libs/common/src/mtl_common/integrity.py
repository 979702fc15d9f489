"""Whether a checkpoint on the disk is what its manifest says: sizes, coverage, and every hash."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mtl_common import manifest
from mtl_common.errors import CheckpointError
from mtl_common.manifest import Chunk, FileInfo
from mtl_common.tensorfile import BLOCK, ITEM_BYTES, TensorFileReader, digest, file_digest


def damage(path: Path, what: str, position: int, length: int) -> str:
    """The sentence for bytes that do not match their hash."""
    return (
        f"{path} is damaged: bytes {position}:{position + length} ({what}) do not match their hash; "
        "restore the file or use another checkpoint"
    )


def _wrong_size(path: Path, info: FileInfo) -> str | None:
    try:
        size = path.stat().st_size
    except OSError:
        return f"{path} is missing"
    if size == info.size:
        return None
    return f"{path} is {'truncated' if size < info.size else 'too long'}: {size} bytes instead of {info.size}"


def _damaged_chunks(
    path: Path, chunks: Sequence[tuple[str, Chunk, int]], done: Callable[[int], None]
) -> Iterator[str]:
    scratch = memoryview(bytearray(BLOCK))
    with TensorFileReader(path) as file:
        for key, chunk, item in chunks:
            length = (chunk.stop - chunk.start) * item
            for number, start in enumerate(range(0, length, BLOCK)):
                block = scratch[: min(BLOCK, length - start)]
                file.read_into(chunk.offset + start, block)
                if digest(block) != chunk.hashes[number]:
                    yield damage(path, key, chunk.offset + start, len(block))
                done(len(block))


def _damaged_head(path: Path, info: FileInfo) -> str | None:
    if info.head == info.size:
        return None if file_digest(path) == info.hash else f"{path} is damaged: it does not match its hash"
    head = bytearray(info.head)
    with TensorFileReader(path) as file:
        file.read_into(0, memoryview(head))
    return None if digest(head) == info.hash else damage(path, "its header", 0, info.head)


def verify(path: Path, full: bool = True, done: Callable[[int], None] = lambda _: None) -> list[str]:
    """What is wrong with a checkpoint directory, one sentence each, naming the file or tensor; empty when
    nothing is.

    Always checks the manifest, the size of every file and that every tensor is full exactly once; `full`
    reads and hashes all files, and calls `done` with the number of bytes checked since the last call.
    """
    try:
        found = manifest.load(path)
    except CheckpointError as error:
        return [str(error)]
    problems = [p for name, info in found.files.items() if (p := _wrong_size(path / name, info))]
    by_file: dict[str, list[tuple[str, Chunk, int]]] = {}
    for key, tensor in found.tensors.items():
        if not tensor.alias and (problem := manifest.fault(tensor)):
            problems.append(f"{path / manifest.NAME} is wrong about {key}: {problem}")
        for chunk in tensor.chunks:
            by_file.setdefault(chunk.file, []).append((key, chunk, ITEM_BYTES[tensor.dtype]))
    problems += [
        f"{path / manifest.NAME} does not list {name}" for name in by_file.keys() - found.files.keys()
    ]
    if full and not problems:
        for name, info in found.files.items():
            if problem := _damaged_head(path / name, info):
                problems.append(problem)
            problems += _damaged_chunks(path / name, by_file.get(name, []), done)
    return problems
