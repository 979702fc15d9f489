"""One optimizer step over a pipeline schedule, and the loss without one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mtl_parallel import pipeline
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.pipeline import MicroBatch
from mtl_parallel.schedule import SCHEDULES


@dataclass(frozen=True)
class Trainer:
    """A model with all that a step of it needs; `schedule` names the order of work in the pipeline."""

    model: GPT
    optimizer: Optimizer
    mesh: Mesh
    schedule: str

    def step(self, batches: Sequence[MicroBatch], lr: float) -> tuple[float, float, bool]:
        """Trains on this rank's micro-batches of one step; the same answer on every rank.

        Returns the mean loss of the global batch before the update, the gradient norm, and whether the
        update was left out because the norm is not finite.
        """
        actions = SCHEDULES[self.schedule](self.mesh.pp.size, len(batches))[self.mesh.pp.rank]
        valid = pipeline.valid_tokens(batches, self.mesh)
        self.optimizer.zero_grad(len(batches))
        loss = pipeline.run(self.model, self.mesh, actions, batches, 1 / max(valid, 1.0))
        self.optimizer.reduce()
        norm = self.optimizer.step(lr)
        return pipeline.total(loss, self.mesh) / max(valid, 1.0), norm, not math.isfinite(norm)

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """The mean loss of a global batch, the same on every rank."""
        valid = pipeline.valid_tokens(batches, self.mesh)
        loss = pipeline.evaluate(self.model, self.mesh, batches)
        return pipeline.total(loss, self.mesh) / max(valid, 1.0)
