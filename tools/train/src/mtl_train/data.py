"""This rank's micro-batches of a step. Every rank maps the bins itself; nothing is handed round.

Which samples a step has is arithmetic on the number of consumed samples, and does not depend on the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mtl_common.bins import Bins
from mtl_parallel.mesh import Axis
from mtl_parallel.pipeline import MicroBatch
from mtl_train.order import Order


def shares(consumed: int, global_batch: int, micro_batch: int, dp: Axis) -> list[range]:
    """The samples of each of this dp rank's micro-batches, of the step that follows `consumed` samples.

    The dp ranks take micro-batches in turn: with 2 ranks and micro-batches of 2, rank 1 of step 0 has samples
    2, 3, then 6, 7.
    """
    ends = range(consumed + dp.rank * micro_batch, consumed + global_batch, dp.size * micro_batch)
    return [range(first, first + micro_batch) for first in ends]


@dataclass(frozen=True)
class Loader:
    """Reads micro-batches from bins.

    Args:
        bins: the tokens.
        order: which window is which sample.
        global_batch: samples a step.
        micro_batch: samples a forward pass.
        dp: the axis that shares them out.
        device: where tensors are wanted.
        eod: do not ask the model what follows this token; None asks everything.
    """

    bins: Bins
    order: Order
    global_batch: int
    micro_batch: int
    dp: Axis
    device: torch.device
    eod: int | None = None

    def step(self, consumed: int) -> list[MicroBatch]:
        """This rank's micro-batches of the step that follows `consumed` samples."""
        return [self._read(s) for s in shares(consumed, self.global_batch, self.micro_batch, self.dp)]

    def _read(self, samples: Sequence[int]) -> MicroBatch:
        length = self.order.seq + 1
        windows = np.empty((len(samples), length), np.int64)  # (B, T+1)
        for row, sample in zip(windows, samples, strict=True):
            row[:] = self.bins.window(self.order.position(sample), length)
        read = torch.from_numpy(windows).to(self.device)
        tokens, labels = read[:, :-1].contiguous(), read[:, 1:].contiguous()  # (B, T)
        mask = (
            torch.ones(tokens.shape, device=self.device) if self.eod is None else (tokens != self.eod).float()
        )
        return MicroBatch(tokens, labels, mask)
