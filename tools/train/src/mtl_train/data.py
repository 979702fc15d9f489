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
        eod: do not ask the model what follows this token; None asks everything that counts by the bins.
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
        counted = np.ones((len(samples), length), np.uint8)  # (B, T+1)
        for row, loss, sample in zip(windows, counted, samples, strict=True):
            start = self.order.position(sample)
            row[:] = self.bins.window(start, length)
            if self.bins.has_loss:
                loss[:] = self.bins.window_loss(start, length)
        read = torch.from_numpy(windows).to(self.device)
        tokens, labels = read[:, :-1].contiguous(), read[:, 1:].contiguous()  # (B, T)
        # what counts is the label, the token after the one that the model reads
        mask = torch.from_numpy(counted[:, 1:].astype(np.float32)).to(self.device)  # (B, T)
        if self.eod is not None:
            mask *= tokens != self.eod
        return MicroBatch(tokens, labels, mask)
