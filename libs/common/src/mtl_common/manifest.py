"""The manifest of a checkpoint: which tensors exist, and which file holds which part of each, with its
hashes.

A chunk is a box of a full tensor, or a flat range of a box, standing in one file. `manifest.json` is

    {"format": "mtl checkpoint", "version": "1.0", "step": 100, "layout": "tp2",
    "config": {"model": {...}}, "state": {...},
    "aliases": {"output_layer.weight": "embedding.word_embeddings.weight"},
    "files": {"model/part00000-0.safetensors": {"size": 131072, "head": 65536, "hash": "..."}, ...},
    "tensors": {"model/decoder.final_layernorm.weight": {"dtype": "float32", "shape": [128], "chunks": [
        {"file": "model/part00000-0.safetensors", "offset": 65536, "box": [[0], [128]], "hashes": ["..."],
         "range": [0, 64]}, ...]}, ...},
    "digest": "..."}

A file's hash is of its first `head` bytes; a chunk has one hash for each MiB. A chunk without a range is all
of its box. The last line holds the digest (all are xxh3-128) of the bytes before it, so that a damaged
manifest is noticed before it is believed. While a checkpoint is being written, every writer has a part
manifest of its files and tensors; `merge` joins them and refuses a tensor that is not written fully and
exactly once.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from mtl_common.boxes import Box, placed
from mtl_common.errors import CheckpointError
from mtl_common.tensorfile import ITEM_BYTES, digest

FORMAT = "mtl checkpoint"
VERSION = "1.0"  # a reader refuses a newer first number
NAME = "manifest.json"


@dataclass(frozen=True)
class Chunk:
    """Elements `start:stop` of a box's row-major order, at byte `offset` of `file`; `hashes` has one of each
    BLOCK.
    """

    file: str
    offset: int
    box: Box
    start: int
    stop: int
    hashes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it holds all of its box."""
        return (self.start, self.stop) == (0, self.box.volume)


@dataclass(frozen=True)
class TensorInfo:
    """A full tensor of a checkpoint. `alias` is the key of the tensor that stands for this one, which has no
    chunks.
    """

    shape: tuple[int, ...]
    dtype: str
    alias: str | None = None
    chunks: tuple[Chunk, ...] = ()

    @property
    def bytes(self) -> int:
        """Its size when full."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class FileInfo:
    """A file of a checkpoint: its size, and the xxh3-128 of its first `head` bytes (the header, of a tensor
    file).
    """

    size: int
    head: int
    hash: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of a checkpoint; paths are relative to its directory."""

    step: int
    layout: str
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    aliases: Mapping[str, str]
    files: Mapping[str, FileInfo]
    tensors: Mapping[str, TensorInfo]


@dataclass
class Part:
    """What one writer wrote."""

    files: dict[str, FileInfo] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)


def _pack_chunk(chunk: Chunk) -> dict[str, Any]:
    record: dict[str, Any] = {
        "file": chunk.file,
        "offset": chunk.offset,
        "box": [chunk.box.offset, chunk.box.size],
        "hashes": chunk.hashes,
    }
    return record if chunk.whole else {**record, "range": [chunk.start, chunk.stop]}


def _unpack_chunk(record: Mapping[str, Any]) -> Chunk:
    offset, size = record["box"]
    box = Box(tuple(offset), tuple(size))
    start, stop = record.get("range", (0, box.volume))
    return Chunk(record["file"], record["offset"], box, start, stop, tuple(record["hashes"]))


def _pack_tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {
        key: {"dtype": info.dtype, "shape": info.shape, "chunks": [_pack_chunk(c) for c in info.chunks]}
        for key, info in tensors.items()
    }


def _unpack_tensors(records: Mapping[str, Any]) -> dict[str, TensorInfo]:
    return {
        key: TensorInfo(tuple(r["shape"]), r["dtype"], None, tuple(_unpack_chunk(c) for c in r["chunks"]))
        for key, r in records.items()
    }


def _pack_files(files: Mapping[str, FileInfo]) -> dict[str, Any]:
    return {name: {"size": f.size, "head": f.head, "hash": f.hash} for name, f in files.items()}


def _unpack_files(records: Mapping[str, Any]) -> dict[str, FileInfo]:
    for name in records:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(name)
    return {name: FileInfo(r["size"], r["head"], r["hash"]) for name, r in records.items()}


def pack_part(part: Part) -> bytes:
    """A part manifest as JSON."""
    return json.dumps({"files": _pack_files(part.files), "tensors": _pack_tensors(part.tensors)}).encode()


def unpack_part(data: bytes) -> Part:
    """The inverse of `pack_part`."""
    record = json.loads(data)
    return Part(_unpack_files(record["files"]), _unpack_tensors(record["tensors"]))


def _lines(table: Mapping[str, Any]) -> str:
    """A JSON object with one key a line."""
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in table.items())
        + "\n}"
    )


def pack(manifest: Manifest) -> bytes:
    """The manifest as JSON, one tensor a line; its last line holds the digest of all lines before it."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "step": manifest.step,
        "layout": manifest.layout,
        "config": dict(manifest.config),
        "state": dict(manifest.state),
        "aliases": dict(manifest.aliases),
    }
    body = _lines(head).removesuffix("\n}")
    body += ',\n"files":' + _lines(_pack_files(manifest.files))
    body += ',\n"tensors":' + _lines(_pack_tensors(manifest.tensors)) + ",\n"
    return f'{body}"digest":"{digest(body.encode())}"}}\n'.encode()


def _with_aliases(tensors: dict[str, TensorInfo], aliases: Mapping[str, str]) -> dict[str, TensorInfo]:
    found = dict(tensors)
    for key, info in tensors.items():
        kind, _, name = key.partition("/")
        for alias, target in aliases.items():
            if target == name:
                found[f"{kind}/{alias}"] = TensorInfo(info.shape, info.dtype, key)
    return found


def unpack(data: bytes, path: Path) -> Manifest:
    """The inverse of `pack`; `path` is for the messages.

    Raises CheckpointError when the bytes are not a manifest, are damaged, or come from a newer major version.
    """
    body, _, last = data.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    try:
        record = json.loads(data)
        if record["format"] != FORMAT:
            raise ValueError(record["format"])
        version = str(record["version"])
        if int(version.partition(".")[0]) > int(VERSION.partition(".")[0]):
            raise CheckpointError(
                f"{path} has format version {version}, this program reads {VERSION}; update it"
            )
        if last != f'"digest":"{digest(body)}"}}'.encode():
            raise ValueError("digest")
        tensors = _with_aliases(_unpack_tensors(record["tensors"]), record["aliases"])
        files = _unpack_files(record["files"])
        values = {key: record[key] for key in ("step", "layout", "config", "state", "aliases")}
        return Manifest(**values, files=files, tensors=tensors)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is damaged or not a manifest; use another checkpoint") from None


def load(directory: Path) -> Manifest:
    """The manifest of a checkpoint directory; raises CheckpointError when it has none or it is damaged."""
    path = directory / NAME
    try:
        return unpack(path.read_bytes(), path)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{directory} is not a checkpoint: it has no {NAME}") from None


def _overlap(a: Sequence[Chunk], b: Sequence[Chunk]) -> bool:
    left = [p.box for c in a for p in placed([c.box], c.start, c.stop)]
    right = [p.box for c in b for p in placed([c.box], c.start, c.stop)]
    return any(x.intersect(y) for x in left for y in right)


def fault(info: TensorInfo) -> str | None:
    """Why the chunks are not the full tensor exactly once ("written twice", "12 of 20 elements are missing"),
    or None.
    """
    total = prod(info.shape)
    written = sum(chunk.stop - chunk.start for chunk in info.chunks)
    by_box: dict[Box, list[Chunk]] = defaultdict(list)
    for chunk in info.chunks:
        by_box[chunk.box].append(chunk)
    for box, chunks in by_box.items():
        if Box.full(info.shape).intersect(box) != box:
            return f"a box {box.offset} + {box.size} is outside its shape {info.shape}"
        chunks.sort(key=lambda chunk: chunk.start)
        if any(after.start < before.stop for before, after in pairwise(chunks)):
            return "some elements are written twice"
    boxes = sorted(by_box, key=lambda box: box.offset)
    for i, box in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if other.offset[:1] >= box.end[:1]:
                break  # this one and all after it begin below the box
            if box.intersect(other) and _overlap(by_box[box], by_box[other]):
                return "some elements are written twice"
    return f"{total - written} of {total} elements are missing" if written < total else None


def merge(parts: Iterable[Part]) -> Part:
    """All parts as one; raises CheckpointError naming a tensor that parts disagree on, or is not full exactly
    once.
    """
    joined = Part()
    for part in parts:
        joined.files.update(part.files)
        for key, info in part.tensors.items():
            known = joined.tensors.get(key, TensorInfo(info.shape, info.dtype))
            if (known.shape, known.dtype) != (info.shape, info.dtype):
                one, other = f"{known.dtype} {known.shape}", f"{info.dtype} {info.shape}"
                raise CheckpointError(f"{key} is {one} in one writer and {other} in another")
            joined.tensors[key] = TensorInfo(info.shape, info.dtype, None, known.chunks + info.chunks)
    for key, info in joined.tensors.items():
        if problem := fault(info):
            raise CheckpointError(f"{key} cannot be saved: {problem}")
    return joined
