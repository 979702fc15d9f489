"""Checkpoints -> directories that transformers opens, one tensor at a time."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mtl_ckpt.architectures import suited
from mtl_ckpt.dtypes import CARRIERS, Array, cast
from mtl_ckpt.families import Family, sources
from mtl_ckpt.hf import ShardedWriter, write_config
from mtl_ckpt.outputs import check_new, removed_on_error
from mtl_ckpt.shape import model_shape
from mtl_ckpt.transforms import split
from mtl_common import tokenizers
from mtl_common.checkpoint import Checkpoint
from mtl_common.tensors import model_tensors


def _full(checkpoint: Checkpoint, key: str, shape: tuple[int, ...]) -> tuple[Array, str]:
    info = checkpoint.info(key, shape)
    data = checkpoint.read_full(key)
    return np.frombuffer(data, CARRIERS[info.dtype]).reshape(info.shape), info.dtype


def _outgoing(checkpoint: Checkpoint, family: Family, dtype: str | None) -> Iterator[tuple[str, str, Array]]:
    """Name, dtype and values of every tensor of the family; master weights where wanted and kept."""
    shape = model_shape(checkpoint)
    tensors = model_tensors(shape)
    for item in sources(family, shape):
        exact = dtype == "float32" and f"master/{item.name}" in checkpoint.tensors
        key = f"{'master' if exact else 'model'}/{item.name}"
        full, own = _full(checkpoint, key, tensors[item.name].shape)
        target = dtype or own
        parts = split(item.transforms, cast(full, own, target, item.name), shape)
        yield from ((name, target, part) for name, part in zip(item.parts, parts, strict=True))


def _token_ids(tokenizer: Path) -> dict[str, int]:
    found = tokenizers.load(tokenizer)
    ids = {"bos_token_id": found.bos, "eos_token_id": found.eod}
    return {key: value for key, value in ids.items() if value is not None}


def _fill(
    checkpoint: Checkpoint, staging: Path, dtype: str | None, limit: int, advance: Callable[[int], None]
) -> list[str]:
    shape = model_shape(checkpoint)
    model_type, architecture = suited(shape)
    names = [part for item in sources(architecture.family, shape) for part in item.parts]
    writer = ShardedWriter(staging, limit, names)
    for name, stored, part in _outgoing(checkpoint, architecture.family, dtype):
        writer.write(name, stored, part)
        advance(part.nbytes)
    config: dict[str, Any] = {"architectures": [architecture.name], "model_type": model_type}
    config |= {**architecture.config(shape), "torch_dtype": stored}
    if checkpoint.tokenizer:
        config |= _token_ids(checkpoint.tokenizer)
        shutil.copytree(checkpoint.tokenizer, staging, dirs_exist_ok=True)
    write_config(staging, config)
    return writer.finish()


def export_model(
    checkpoint: Checkpoint, out: Path, dtype: str | None, limit: int, advance: Callable[[int], None]
) -> list[str]:
    """Writes a directory that transformers opens, and returns the names of its tensor files.

    Files hold at most `limit` bytes unless a tensor alone is larger; `advance` gets the bytes written since
    its last call. Raises ConfigError when no family of Hugging Face models can hold the shape.
    """
    check_new(out)
    suited(model_shape(checkpoint))
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    with removed_on_error(staging):
        files = _fill(checkpoint, staging, dtype, limit, advance)
    if out.exists():
        shutil.rmtree(out)  # it was checked to hold nothing
    os.rename(staging, out)
    return files
