"""Tiny training runs for tests: shapes, batches, a plain reference, sharded runs and their tensors in full.

The reference shares nothing with `mtl_parallel` but the model's forward on one rank: plain autograd over
the whole global batch, torch's cross entropy, torch's AdamW and `clip_grad_norm_`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mtl_common.boxes import Box, placed
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape
from mtl_parallel import pipeline
from mtl_parallel.launch import start
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.pipeline import MicroBatch
from mtl_parallel.randomness import initialise
from mtl_parallel.schedule import SCHEDULES
from mtl_parallel.settings import OptimizerSettings
from mtl_parallel.sharding import sharded_parameters

GPT2 = ModelShape(hidden=24, layers=4, heads=4, kv_heads=2, head_dim=6, ffn=20, vocab=101, seq=10)
LLAMA = GPT2.model_copy(
    update={"norm": "rmsnorm", "position": "rope", "activation": "swiglu", "bias": False, "head_dim": 8}
)
SHAPES = {"gpt2": GPT2, "llama": LLAMA}
SAMPLES = 8
LR = 0.01
SETTINGS = OptimizerSettings(clip=0.5, bucket=1000)  # clips every step, and fills several buckets


@dataclass(frozen=True)
class Case:
    """One way to train: everything that must not change the result, and what may."""

    layout: str
    family: str = "gpt2"
    tied: bool = True
    zero: Literal[0, 1] = 0
    schedule: str = "1f1b"
    micro: int = 4
    steps: int = 2
    dtype: torch.dtype = torch.float64
    settings: OptimizerSettings = SETTINGS
    overlap: bool = True

    @property
    def shape(self) -> ModelShape:
        return SHAPES[self.family].model_copy(update={"tied": self.tied})

    def __str__(self) -> str:
        tied = "tied" if self.tied else "untied"
        return f"{self.layout} {self.family} {tied} zero{self.zero} {self.schedule}"


@dataclass
class Outcome:
    """Losses and norms by step, gradients of the last step and final parameters by name, in full."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    parameters: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


@dataclass
class Slice:
    """A run of a local tensor's memory, as a rank sends it home."""

    name: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    start: int
    values: np.ndarray[Any, Any]


def global_batch(shape: ModelShape, step: int) -> MicroBatch:
    """The samples of a step. Masks are uneven: the first sample counts for nothing, the next for one
    token.
    """
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, shape.vocab, (SAMPLES, shape.seq + 1), generator=generator)
    mask = (torch.rand(SAMPLES, shape.seq, generator=generator) < 0.6).float()
    mask[0] = 0
    mask[1] = 0
    mask[1, 3] = 1
    mask[2] = 1
    return MicroBatch(ids[:, :-1], ids[:, 1:], mask)


def micro_batches(batch: MicroBatch, mesh: Mesh, micro: int) -> list[MicroBatch]:
    """What this dp rank sees of a step, in `micro` micro-batches."""
    mine = (x.chunk(mesh.dp.size)[mesh.dp.rank] for x in (batch.tokens, batch.labels, batch.mask))
    return [MicroBatch(*parts) for parts in zip(*(x.chunk(micro) for x in mine), strict=True)]


def build(shape: ModelShape, mesh: Mesh, dtype: torch.dtype, seed: int = 5) -> GPT:
    """This rank's stage with initial values."""
    model = stage(shape, mesh, dtype)
    initialise(model, seed)
    return model


def reference(case: Case) -> Outcome:
    """The same training by plain torch in one process."""
    model = build(case.shape, Mesh.single(), case.dtype)
    named = dict(model.named_parameters())
    s = case.settings
    plain = [p for n, p in named.items() if n.endswith("bias") or "norm" in n]
    decayed = [p for p in named.values() if not any(p is q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": s.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=LR, betas=(s.beta1, s.beta2), eps=s.eps, foreach=False,
    )  # fmt: skip
    outcome = Outcome()
    for step in range(case.steps):
        batch = global_batch(case.shape, step)
        logits = model(batch.tokens)[..., : case.shape.vocab]
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        loss = (losses * batch.mask.flatten()).sum() / batch.mask.sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        outcome.gradients = {n: _full(p.grad, case.shape, n) for n, p in named.items()}
        outcome.losses.append(loss.item())
        outcome.norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip).item())
        optimizer.step()
    outcome.parameters = {n: _full(p, case.shape, n) for n, p in named.items()}
    return outcome


def _full(x: Tensor | None, shape: ModelShape, name: str) -> np.ndarray[Any, Any]:
    assert x is not None
    values = x.detach().clone().numpy()
    return values[: shape.vocab] if "word_embeddings" in name or "output_layer" in name else values


def train_step(model: GPT, mesh: Mesh, optimizer: Optimizer, case: Case, step: int) -> tuple[float, float]:
    """One step up to the reduced gradients; returns the mean loss and the number of valid tokens."""
    batches = micro_batches(global_batch(case.shape, step), mesh, case.micro)
    actions = SCHEDULES[case.schedule](mesh.pp.size, len(batches))[mesh.pp.rank]
    valid = pipeline.valid_tokens(batches, mesh)
    optimizer.zero_grad(len(batches) if case.overlap else 0)
    loss = pipeline.run(model, mesh, actions, batches, 1 / valid)
    optimizer.reduce()
    return pipeline.total(loss, mesh) / valid, valid


def sharded(case: Case) -> tuple[list[float], list[float], list[Slice], list[Slice]]:
    """One rank's part of a run; call it on every rank."""
    mesh = start(Layout.parse(case.layout), "cpu")
    model = build(case.shape, mesh, case.dtype)
    optimizer = Optimizer(model, mesh, case.settings, case.zero)
    losses, norms, gradients = [], [], []
    for step in range(case.steps):
        losses.append(train_step(model, mesh, optimizer, case, step)[0])
        gradients = [
            Slice(s.name, s.record.shape, s.record.boxes, s.start, s.gradient.clone().double().numpy())
            for s in optimizer.shards
        ]
        norms.append(optimizer.step(LR))
    parameters = [
        Slice(n, r.shape, r.boxes, 0, p.detach().flatten().clone().double().numpy())
        for n, p, r in sharded_parameters(model)
    ]
    return losses, norms, gradients, parameters


def assemble(slices: Iterable[Slice]) -> dict[str, np.ndarray[Any, Any]]:
    """Full tensors by name. Copies must agree to the bit, padding must be zero, nothing may be missing."""
    full: dict[str, np.ndarray[Any, Any]] = {}
    for piece in slices:
        target = full.setdefault(piece.name, np.full(piece.shape, np.nan))
        volume = sum(box.volume for box in piece.boxes)
        stop = min(piece.start + len(piece.values), volume)
        for part in placed(piece.boxes, piece.start, stop):
            values = piece.values[part.position :][: part.box.volume].reshape(part.box.size)
            place = part.box.slices(Box.full(piece.shape))
            assert (np.isnan(target[place]) | (target[place] == values)).all(), (
                f"copies of {piece.name} differ"
            )
            target[place] = values
        assert not piece.values[max(0, stop - piece.start) :].any(), f"padding of {piece.name} is not zero"
    for name, target in full.items():
        assert not np.isnan(target).any(), f"{name} is not complete"
    return full


def join(results: Sequence[tuple[list[float], list[float], list[Slice], list[Slice]]]) -> Outcome:
    """One outcome of all ranks' parts; every rank must report the same losses and norms."""
    losses, norms, _, _ = results[0]
    assert all(r[:2] == (losses, norms) for r in results), [r[:2] for r in results]
    gradients = assemble(piece for r in results for piece in r[2])
    parameters = assemble(piece for r in results for piece in r[3])
    return Outcome(losses, norms, gradients, parameters)
