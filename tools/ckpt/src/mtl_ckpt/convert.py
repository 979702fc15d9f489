"""Models of other programs -> checkpoints, and back, one tensor at a time."""

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mtl_ckpt.architectures import suited
from mtl_ckpt.dtypes import CARRIERS, Array, cast
from mtl_ckpt.families import Source, sources
from mtl_ckpt.gguf import GGUFSource
from mtl_ckpt.hf import HuggingFaceSource, ShardedWriter, write_config
from mtl_ckpt.outputs import check_new
from mtl_ckpt.sources import ModelSource
from mtl_ckpt.transforms import join, split
from mtl_common import tokenizers
from mtl_common.boxes import Box
from mtl_common.checkpoint import Checkpoint, PartWriter, begin, commit
from mtl_common.config import validate
from mtl_common.errors import CheckpointError
from mtl_common.shapes import ModelShape
from mtl_common.tensorfile import ITEM_BYTES
from mtl_common.tensors import EMBEDDING, aliases, model_tensors

Advance = Callable[[int], None]


def _in_package(name: str) -> Path | None:
    """The .gguf file that an installed package holds, if it is installed and holds just one."""
    try:
        files = importlib.metadata.files(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return found[0] if len(found) == 1 else None


def open_source(name: str) -> ModelSource:
    """A Hugging Face directory, a .gguf file, or the name of an installed package that holds one.

    Raises CheckpointError when it is none of these.
    """
    path = Path(name)
    if path.is_dir():
        return HuggingFaceSource(path)
    if path.is_file():
        return GGUFSource(path)
    packaged = _in_package(name)
    if packaged is None:
        raise CheckpointError(
            f"{name} does not exist; name a directory saved by transformers, a .gguf file, "
            "or an installed package that holds one"
        )
    return GGUFSource(packaged)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_tied_copy(source: ModelSource, copies: list[str], original: str) -> None:
    """A file may hold a tied output layer twice, but then the same."""
    for name in copies:
        if not np.array_equal(source.read(name)[0], source.read(original)[0]):
            raise CheckpointError(
                f"{source.path} says that {name} is tied to {original}, but their values differ"
            )


def _check_names(source: ModelSource, wanted: list[Source]) -> None:
    """Every tensor of the model is there, and nothing else; raises CheckpointError with the names."""
    needed = {part for item in wanted for part in item.parts}
    names = set(source.names())
    if missing := sorted(needed - names):
        raise CheckpointError(
            f"{source.path} lacks {_some(missing)}; it is not a whole {source.family.name} model"
        )
    extra = sorted(name for name in names - needed if not name.endswith(source.family.ignored or ("\0",)))
    if source.shape.tied:
        outputs = {f"{module}.weight" for module in source.family.rules["output_layer"].modules}
        (embedding,) = (item.parts[0] for item in wanted if item.name == EMBEDDING)
        _check_tied_copy(source, [name for name in extra if name in outputs], embedding)
        extra = [name for name in extra if name not in outputs]
    if extra:
        raise CheckpointError(f"{source.path} has tensors that this model has no place for: {_some(extra)}")


def _joined(source: ModelSource, item: Source, dtype: str | None) -> tuple[Array, str]:
    read = [(name, *source.read(name)) for name in item.parts]
    target = dtype or read[0][2]
    return join(
        item.transforms, [cast(array, own, target, name) for name, array, own in read], source.shape
    ), target


def model_bytes(shape: ModelShape, dtype: str) -> int:
    """The size of a model's tensors in one dtype."""
    return sum(prod(tensor.shape) for tensor in model_tensors(shape).values()) * ITEM_BYTES[dtype]


def import_model(source: ModelSource, out: Path, dtype: str | None, advance: Advance) -> Path:
    """Writes a model as the checkpoint of step 0 in `out` and returns its directory.

    Values stay as they are unless `dtype` is given. Raises CheckpointError, naming the tensor, when the
    source is not exactly the model that its configuration describes.
    """
    check_new(out)
    wanted = list(sources(source.family, source.shape))
    _check_names(source, wanted)
    tensors = model_tensors(source.shape)
    staging = begin(out, 0)
    with PartWriter(staging, 0) as writer:
        for item in wanted:
            shape = tensors[item.name].shape
            array, stored = _joined(source, item, dtype)
            if array.shape != shape:
                raise CheckpointError(
                    f"{source.path}: {', '.join(item.parts)} make {array.shape}, not {shape}"
                )
            data = memoryview(np.ascontiguousarray(array).data)
            writer.write(f"model/{item.name}", stored, shape, [Box.full(shape)], 0, array.size, data)
            advance(data.nbytes)
    config = {
        "model": source.shape.model_dump(),
        "imported": {"family": source.family.name, "from": source.path.name},
    }
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) if source.save_tokenizer(Path(scratch)) else None
        return commit(
            staging, layout="tp1", config=config, state={}, aliases=aliases(source.shape), tokenizer=tokenizer
        )


def model_shape(checkpoint: Checkpoint) -> ModelShape:
    """The shape of a checkpoint's model; raises CheckpointError when it does not say."""
    values = checkpoint.config.get("model")
    if not isinstance(values, dict):
        raise CheckpointError(f"{checkpoint.path} does not say what its model is")
    return validate(ModelShape, values)


def _full(checkpoint: Checkpoint, key: str, shape: tuple[int, ...]) -> tuple[Array, str]:
    info = checkpoint.info(key, shape)
    data = checkpoint.read_full(key)
    return np.frombuffer(data, CARRIERS[info.dtype]).reshape(info.shape), info.dtype


def _outgoing(
    checkpoint: Checkpoint, items: list[Source], shape: ModelShape, dtype: str | None
) -> Iterator[Any]:
    """Name, dtype and values of every tensor for the family; master weights where wanted and kept."""
    tensors = model_tensors(shape)
    for item in items:
        exact = dtype == "float32" and f"master/{item.name}" in checkpoint.tensors
        key = f"{'master' if exact else 'model'}/{item.name}"
        full, own = _full(checkpoint, key, tensors[item.name].shape)
        target = dtype or own
        parts = split(item.transforms, cast(full, own, target, item.name), shape)
        for name, part in zip(item.parts, parts, strict=True):
            yield name, target, part


def _token_ids(checkpoint: Checkpoint) -> dict[str, int]:
    if checkpoint.tokenizer is None:
        return {}
    tokenizer = tokenizers.load(checkpoint.tokenizer)
    ids = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eod}
    return {key: value for key, value in ids.items() if value is not None}


def export_model(
    checkpoint: Checkpoint, out: Path, dtype: str | None, limit: int, advance: Advance
) -> list[str]:
    """Writes a directory that transformers opens, and returns the names of its tensor files.

    Files hold at most `limit` bytes unless a tensor alone is larger. Raises ConfigError when no family of
    Hugging Face models can hold the shape.
    """
    check_new(out)
    shape = model_shape(checkpoint)
    model_type, architecture = suited(shape)
    items = list(sources(architecture.family, shape))
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    writer = ShardedWriter(staging, limit, [part for item in items for part in item.parts])
    stored = dtype or "float32"
    for name, stored, part in _outgoing(checkpoint, items, shape, dtype):
        writer.write(name, stored, part)
        advance(part.nbytes)
    files = writer.finish()
    head = {"architectures": [architecture.name], "model_type": model_type}
    tail = {"torch_dtype": stored, **_token_ids(checkpoint)}
    for path in checkpoint.tokenizer.iterdir() if checkpoint.tokenizer else ():
        shutil.copyfile(path, staging / path.name)
    write_config(staging, {**head, **architecture.config(shape), **tail})
    if out.exists():
        out.rmdir()  # empty: it was checked to be new
    os.rename(staging, out)
    return files
