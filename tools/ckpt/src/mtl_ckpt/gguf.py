"""GGUF files of Llama models (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), version 2 and 3.

The header is read here, in one pass: the gguf package takes seconds to wrap a vocabulary's strings one by
one. The package is used for what is intricate, the quantized formats.
"""

import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mtl_ckpt import tokenizer
from mtl_ckpt.dtypes import Array
from mtl_ckpt.families import GGUF_LLAMA
from mtl_ckpt.sources import ModelSource
from mtl_ckpt.tokenizer import Vocabulary
from mtl_common.config import validate
from mtl_common.errors import CheckpointError, MtlError, UsageError
from mtl_common.shapes import ModelShape

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file has it: `shape` in row-major order, `kind` of quantization, offset in the data."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Header:
    """A position that moves through the file's front."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, form: str) -> Any:
        """The next number, little-endian."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def text(self) -> str:
        """The next string."""
        length = self.take("Q")
        if self.position + length > len(self.data):
            raise struct.error("string past the end")
        self.position += length
        return self.data[self.position - length : self.position].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """The next value of a kind: a number, a string, or a list."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            number = self.take(_NUMBERS[kind])
            # A single-precision 1e-5 is the number that was meant, not its nearest double.
            return float(str(np.float32(number))) if kind == 6 else number
        inner, count = self.take("I"), self.take("Q")
        if inner in (_STRING, _ARRAY):
            return [self.value(inner) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{_NUMBERS[inner]}", self.data, self.position)
        self.position += struct.calcsize(f"<{count}{_NUMBERS[inner]}")
        return list(values)

    def tensor(self) -> tuple[str, StoredTensor]:
        """The next tensor's name and place; the file lists the fastest dim first."""
        name = self.text()
        dims = [self.take("Q") for _ in range(self.take("I"))]
        return name, StoredTensor(tuple(reversed(dims)), self.take("I"), self.take("Q"))


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, StoredTensor], int]:
    """Metadata, tensors, and where the tensors' data begins."""
    header = _Header(data)
    if data[:4] != b"GGUF" or len(data) < 24:
        raise ValueError("no GGUF")
    header.position = 4
    version = header.take("I")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    tensors, values = header.take("Q"), header.take("Q")
    metadata = {}
    for _ in range(values):
        key = header.text()
        metadata[key] = header.value(header.take("I"))
    found = dict(header.tensor() for _ in range(tensors))
    alignment = metadata.get("general.alignment", 32)
    return metadata, found, -(-header.position // alignment) * alignment


def _shape(metadata: Mapping[str, Any], tied: bool) -> ModelShape:
    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"llama.{key}", default)
        if found is None:
            raise CheckpointError(f"it has no llama.{key}")
        return found

    heads, hidden = value("attention.head_count"), value("embedding_length")
    head_dim = value("attention.key_length", hidden // heads)
    if value("rope.dimension_count", head_dim) != head_dim or value("rope.scaling.type", "none") != "none":
        raise CheckpointError("its rotary positions are scaled or partial, which cannot be imported")
    values = dict(
        hidden=hidden,
        layers=value("block_count"),
        heads=heads,
        kv_heads=value("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=value("feed_forward_length"),
        vocab=value("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())) or None),
        seq=value("context_length"),
        norm="rmsnorm",
        norm_eps=value("attention.layer_norm_rms_epsilon"),
        position="rope",
        rope_base=value("rope.freq_base", 10_000.0),
        activation="swiglu",
        bias=False,
        tied=tied,
    )
    return validate(ModelShape, values)


class GGUFSource(ModelSource):
    """A .gguf file of the llama architecture; tensors are de-quantized to float32 as they are read.

    Raises CheckpointError for anything else, naming the file, and UsageError without the gguf package.
    """

    family = GGUF_LLAMA
    dtype = "float32"

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError:
            raise UsageError('GGUF files need the gguf package: pip install "mtl-ckpt[gguf]"') from None
        self._library = gguf
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata, self._tensors, self._start = _parse(self._data)
        except (struct.error, ValueError, KeyError):
            raise CheckpointError(f"{path} is not a GGUF file of version 2 or 3, or is truncated") from None
        name = self.metadata.get("general.architecture")
        if name != "llama":
            raise CheckpointError(f'{path} has architecture "{name}"; only llama can be imported')
        try:
            self.shape = _shape(self.metadata, tied="output.weight" not in self._tensors)
        except MtlError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def names(self) -> Collection[str]:  # noqa: D102
        return self._tensors

    def read(self, name: str) -> tuple[Array, str]:  # noqa: D102
        stored = self._tensors[name]
        try:
            kind = self._library.GGMLQuantizationType(stored.kind)
            values = self._library.quants.dequantize(self._bytes(name, stored, kind), kind)
        except (ValueError, NotImplementedError):
            raise CheckpointError(
                f"{self.path}: {name} has format {stored.kind}, which gguf cannot de-quantize"
            ) from None
        return values.astype(np.float32, copy=False).reshape(stored.shape), "float32"

    def _bytes(self, name: str, stored: StoredTensor, kind: Any) -> Array:
        """The quantized rows of a tensor; raises CheckpointError when the file ends before them."""
        elements, size = self._library.GGML_QUANT_SIZES[kind]
        row = stored.shape[-1] // elements * size
        length = prod(stored.shape[:-1]) * row
        start = self._start + stored.offset
        if start + length > len(self._data):
            end = start + length
            raise CheckpointError(f"{self.path} is truncated: {name} ends at byte {end}; copy it again")
        return np.frombuffer(self._data, np.uint8, length, start).reshape(*stored.shape[:-1], row)

    def save_tokenizer(self, directory: Path) -> bool:  # noqa: D102
        kind = self.metadata.get("tokenizer.ggml.model")
        if kind is None:
            return False
        if kind != "gpt2":
            raise CheckpointError(
                f'{self.path} has a "{kind}" tokenizer; only byte-level BPE can be imported'
            )
        tokenizer.save(self._vocabulary(), directory)
        return True

    def _vocabulary(self) -> Vocabulary:
        facts = {key.removeprefix("tokenizer.ggml."): value for key, value in self.metadata.items()}
        tokens, kinds = facts["tokens"], facts["token_type"]
        settings: dict[str, Any] = {
            f"{role}_token": tokens[facts[f"{key}_token_id"]]
            for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if f"{key}_token_id" in facts
        }
        if template := self.metadata.get("tokenizer.chat_template"):
            settings["chat_template"] = template
        settings["model_max_length"] = self.shape.seq
        special = [i for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
        return Vocabulary(tokens, facts["merges"], special, facts.get("pre", "gpt-2"), settings)
