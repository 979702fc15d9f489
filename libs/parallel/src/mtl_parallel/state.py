"""Saving and loading a model and its optimizer, every rank its own part, at any layout.

A rank writes what it owns straight from flat memory, as a range over its boxes of the full tensor: nothing
is gathered. Of tp copies the first tp rank writes; the dp ranks divide all else among them, parameters
included; tied copies are aliases; padding is never written. A rank reads what it holds by the same boxes,
whatever layout wrote them.

Beside `model/NAME` in the model's dtype stand `master/NAME` where weights are updated in a wider dtype,
`exp_avg/NAME` and `exp_avg_sq/NAME`. A model of any precision starts from `master/NAME` where there is one.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtl_common import checkpoint
from mtl_common.checkpoint import Checkpoint, PartWriter
from mtl_common.errors import CheckpointError, MtlError
from mtl_parallel import collectives
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT
from mtl_parallel.optimizer import Optimizer, Shard
from mtl_parallel.sharding import Sharding, sharded_parameters

BLOCK = 4 << 20  # elements that are converted at a time
LONGEST_TEXT = 4096  # bytes of what a rank can tell the others

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _tell(text: str, mesh: Mesh) -> list[str]:
    """Every rank's text, by rank."""
    encoded = text.encode()[:LONGEST_TEXT].ljust(LONGEST_TEXT, b"\0")
    row = torch.frombuffer(bytearray(encoded), dtype=torch.uint8).to(mesh.device)
    rows = collectives.all_gather(row[None], mesh.world).cpu()
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _together(mesh: Mesh, what: str, work: Callable[[], Path | None]) -> Path:
    """Does `work` on every rank and returns what it gave on the first.

    When it fails anywhere, every rank raises the same CheckpointError, once all have tried.
    """
    try:
        said = f"+{work() or ''}"
    except (OSError, MtlError) as error:
        said = f"-{_reason(error)}"
    told = _tell(said, mesh)
    for rank, text in enumerate(told):
        if text.startswith("-"):
            who = f" (rank {rank})" if mesh.world.size > 1 else ""
            raise CheckpointError(f"{what}: {text[1:]}{who}")
    return Path(told[0][1:])


def _memory(x: Tensor) -> memoryview:
    """The bytes of a flat tensor, without a copy where they are in main memory."""
    return x.detach().cpu().view(torch.uint8).numpy().data


def _tensors(shard: Shard) -> Iterator[tuple[str, Tensor]]:
    yield "model", shard.parameter
    if shard.master.dtype != shard.parameter.dtype:
        yield "master", shard.master
    yield "exp_avg", shard.exp_avg
    yield "exp_avg_sq", shard.exp_avg_sq


def _write(staging: Path, optimizer: Optimizer, mesh: Mesh) -> None:
    with PartWriter(staging, mesh.world.rank) as writer:
        for shard in optimizer.shards:
            record = shard.record
            mine = shard.owned and not record.alias and (mesh.tp.first or not record.copies)
            start, stop = shard.start, min(shard.stop, record.volume)
            for kind, x in _tensors(shard) if mine and start < stop else ():
                data = _memory(x[: stop - start])
                key, dtype = f"{kind}/{shard.name}", _NAMES[x.dtype]
                writer.write(key, dtype, record.shape, record.boxes, start, stop, data)


def save(
    out: Path,
    step: int,
    model: GPT,
    optimizer: Optimizer,
    mesh: Mesh,
    *,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    tokenizer: Path | None = None,
) -> Path:
    """Writes a checkpoint of `step` into the directory `out`; every rank calls it and gets its path.

    Args:
        out: the directory of checkpoints, the same and shared by all ranks.
        step: optimizer steps done.
        model: this rank's stage.
        optimizer: of the model.
        mesh: of this rank.
        config: JSON; `config["model"]` is the model's shape.
        state: JSON that `load` hands back; the first rank's counts.
        tokenizer: a directory of tokenizer files to copy.

    Raises:
        CheckpointError: on every rank, when any rank fails. Nothing is left of the attempt, and older
            checkpoints are as they were.
    """
    first = mesh.world.first
    what = f"step {step} cannot be saved in {out}"
    counts = {"steps": optimizer.steps, "skipped": optimizer.skipped}
    commit = partial(
        checkpoint.commit,
        layout=str(mesh.layout),
        config=config,
        state={**state, "optimizer": counts},
        aliases=model.aliases,
        tokenizer=tokenizer,
    )
    staging = _together(mesh, what, lambda: checkpoint.begin(out, step) if first else None)
    try:
        _together(mesh, what, lambda: _write(staging, optimizer, mesh))
        return _together(mesh, what, lambda: commit(staging) if first else None)
    except CheckpointError:
        if first:
            shutil.rmtree(staging, ignore_errors=True)
        raise


def _read(source: Checkpoint, key: str, record: Sharding, start: int, into: Tensor) -> None:
    """Fills the flat `into` with a local tensor's elements from `start` on, in its own dtype."""
    count = max(0, min(len(into), record.volume - start))
    into[count:].zero_()  # padding
    dtype = _DTYPES[source.info(key, record.shape).dtype]
    if dtype == into.dtype and not into.is_cuda:
        source.read(key, record.boxes, start, start + count, _memory(into[:count]))
        return
    for at in range(0, count, BLOCK):
        block = torch.empty(min(BLOCK, count - at), dtype=dtype)
        source.read(key, record.boxes, start + at, start + at + len(block), _memory(block))
        into[at : at + len(block)].copy_(block)


def _check_names(source: Checkpoint, model: GPT, mesh: Mesh) -> None:
    """Raises CheckpointError, naming a tensor that no stage has, or that is tied in one of the two only."""
    mine = {record.alias or name for name, _, record in sharded_parameters(model)}
    stored = sorted(
        key.removeprefix("model/")
        for key, info in source.tensors.items()
        if key.startswith("model/") and not info.alias
    )
    held = torch.tensor([name in mine for name in stored], dtype=torch.uint8, device=mesh.device)
    held = collectives.all_reduce(held, mesh.pp, "max")
    for name, known in zip(stored, held.tolist(), strict=True):
        if not known:
            raise CheckpointError(f"{source.path} has the tensor {name}, which the model has not")
    for name in mine & source.aliases.keys():
        target = source.aliases[name]
        raise CheckpointError(f"{name} is tied to {target} in {source.path}, the model's own is not")


def _read_model(source: Checkpoint, model: GPT) -> None:
    for name, parameter, record in sharded_parameters(model):
        _read(source, f"model/{record.alias or name}", record, 0, parameter.detach().view(-1))


def _read_optimizer(source: Checkpoint, optimizer: Optimizer) -> None:
    counts = source.state.get("optimizer")
    for shard in optimizer.shards:
        name = shard.record.alias or shard.name
        weights = f"master/{name}" if f"master/{name}" in source.tensors else f"model/{name}"
        _read(source, weights, shard.record, shard.start, shard.master)
        for kind, moment in (("exp_avg", shard.exp_avg), ("exp_avg_sq", shard.exp_avg_sq)):
            if counts is None:
                moment.zero_()
            else:
                _read(source, f"{kind}/{name}", shard.record, shard.start, moment)
    optimizer.steps, optimizer.skipped = (counts["steps"], counts["skipped"]) if counts else (0, 0)


def load(path: Path, model: GPT, optimizer: Optimizer | None, mesh: Mesh) -> tuple[int, dict[str, Any]]:
    """Fills model and optimizer from a checkpoint written at any layout and precision.

    Without an optimizer only the model is read (serving). A checkpoint of weights alone, as an import makes
    it, leaves the optimizer as new; one that was saved with an optimizer must hold all of its state.

    Args:
        path: a step directory, a directory of checkpoints or a run directory, seen by every rank.
        model: this rank's stage.
        optimizer: of the model, or None.
        mesh: of this rank.

    Returns:
        The step, and the state that `save` was given.

    Raises:
        CheckpointError: on every rank, when a tensor is missing, has another shape or is not of the model,
        and
            when a file is missing or damaged; the name is in the message.
    """
    found = _together(mesh, f"{path} cannot be loaded", lambda: checkpoint.resolve(path))
    source = Checkpoint(found)

    def read() -> None:
        _check_names(source, model, mesh)
        if optimizer is None:
            _read_model(source, model)
        else:
            _read_optimizer(source, optimizer)

    _together(mesh, f"{found} cannot be loaded", read)
    if optimizer is not None:
        optimizer.publish()
    return source.step, {key: value for key, value in source.state.items() if key != "optimizer"}
