"""Models of other programs -> checkpoints of step 0, one tensor at a time."""

import importlib.metadata
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mtl_ckpt.dtypes import Array, cast
from mtl_ckpt.families import Source, sources
from mtl_ckpt.gguf import GGUFSource
from mtl_ckpt.hf import HuggingFaceSource
from mtl_ckpt.outputs import new_checkpoint
from mtl_ckpt.sources import ModelSource
from mtl_ckpt.transforms import join
from mtl_common.boxes import Box
from mtl_common.checkpoint import PartWriter, commit
from mtl_common.errors import CheckpointError
from mtl_common.tensors import EMBEDDING, aliases, model_tensors


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


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _without_tied_copies(source: ModelSource, wanted: Sequence[Source], extra: Sequence[str]) -> list[str]:
    """Names less those of a tied output layer, which a file may hold twice, but then the same."""
    outputs = [f"{module}.weight" for module in source.family.rules["output_layer"].modules]
    (embedding,) = (item.parts[0] for item in wanted if item.name == EMBEDDING)
    for name in set(outputs) & set(extra):
        if not np.array_equal(source.read(name)[0], source.read(embedding)[0]):
            raise CheckpointError(
                f"{source.path} says that {name} is tied to {embedding}, but their values differ"
            )
    return [name for name in extra if name not in outputs]


def _check_names(source: ModelSource, wanted: Sequence[Source]) -> None:
    """Every tensor of the model is there, and nothing else; raises CheckpointError with the names."""
    needed = {part for item in wanted for part in item.parts}
    names = set(source.names())
    if missing := sorted(needed - names):
        raise CheckpointError(
            f"{source.path} lacks {_some(missing)}; it is not a whole {source.family.name} model"
        )
    extra = [name for name in sorted(names - needed) if not source.family.ignores(name)]
    if source.shape.tied:
        extra = _without_tied_copies(source, wanted, extra)
    if extra:
        raise CheckpointError(f"{source.path} has tensors that this model has no place for: {_some(extra)}")


def _joined(
    source: ModelSource, item: Source, shape: tuple[int, ...], dtype: str | None
) -> tuple[Array, str]:
    """One of our tensors and its dtype; raises CheckpointError when its parts do not make this shape."""
    read = [(name, *source.read(name)) for name in item.parts]
    target = dtype or read[0][2]
    parts = [cast(array, own, target, name) for name, array, own in read]
    try:
        full = join(item.transforms, parts, source.shape)
        fits = full.shape == shape
    except ValueError:  # numpy's, when arrays cannot be cut or joined
        fits = False
    if not fits:
        sizes = " and ".join(str(part.shape) for part in parts)
        raise CheckpointError(
            f"{source.path}: {_some(item.parts)} of {sizes} do not make {item.name} of {shape}"
        )
    return np.ascontiguousarray(full), target


def import_model(source: ModelSource, out: Path, dtype: str | None, advance: Callable[[int], None]) -> Path:
    """Writes a model as the checkpoint of step 0 in `out` and returns its directory.

    Values stay as they are unless `dtype` is given; `advance` gets the bytes written since its last call.
    Raises CheckpointError, naming the tensor, when the source is not exactly the model it says it is.
    """
    shape = source.shape
    tensors = model_tensors(shape)
    wanted = list(sources(source.family, shape))
    _check_names(source, wanted)
    config = {
        "model": shape.model_dump(),
        "imported": {"family": source.family.name, "from": source.path.name},
    }
    with new_checkpoint(out, 0) as staging, tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) if source.save_tokenizer(Path(scratch)) else None
        with PartWriter(staging, 0) as writer:
            for item in wanted:
                full = tensors[item.name].shape
                array, stored = _joined(source, item, full, dtype)
                writer.write(f"model/{item.name}", stored, full, [Box.full(full)], 0, array.size, array.data)
                advance(array.nbytes)
        return commit(
            staging, layout="tp1", config=config, state={}, aliases=aliases(shape), tokenizer=tokenizer
        )
