"""AdamW over flat memory: gradient reduction, global norm, clipping, ZeRO-1, master weights.

With `zero=0` every dp rank updates all parameters of its stage; with `zero=1` each updates its own parts
and fetches the others' results (ZeRO stage 1, Rajbhandari et al. 2020, arXiv 1910.02054). The arithmetic of
an update is torch.optim.AdamW's own (Loshchilov and Hutter 2019, arXiv 1711.05101).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim.adamw import adamw

from mtl_parallel import collectives
from mtl_parallel.buckets import Bucket, Buckets, Segment
from mtl_parallel.mesh import Mesh
from mtl_parallel.precision import wide
from mtl_parallel.settings import OptimizerSettings
from mtl_parallel.sharding import Sharding


@dataclass(frozen=True)
class Shard:
    """Elements `start:stop` of a parameter's local memory, with all that the optimizer holds of them, as
    flat views.

    `owned` says whether this dp rank answers for them, in the norm and in a checkpoint; each element has
    one such rank.
    """

    name: str
    record: Sharding
    start: int
    stop: int
    owned: bool
    parameter: Tensor  # (stop - start,) in the model's dtype
    gradient: Tensor  # in the wide dtype, like all below
    master: Tensor  # the parameter itself where the model's dtype is wide
    exp_avg: Tensor
    exp_avg_sq: Tensor


class Optimizer:
    """AdamW for one stage. Use: `zero_grad`, forward and backward of all micro-batches, `reduce`, `step`.

    A step whose global gradient norm is not finite changes nothing but the count `skipped`; the norm is the
    same on every rank, and so is the decision.

    Args:
        model: the stage; its parameters move to flat memory, keeping identity and values.
        mesh: its mesh.
        settings: AdamW and clipping.
        zero: 0, or 1 to divide moments and master weights among the dp ranks.
    """

    def __init__(
        self, model: nn.Module, mesh: Mesh, settings: OptimizerSettings, zero: Literal[0, 1] = 0
    ) -> None:
        self.mesh = mesh
        self.settings = settings
        self.zero = zero
        self.steps = 0
        self.skipped = 0
        self.buckets = Buckets(model, mesh, capacity=settings.bucket, scattered=zero == 1)
        parts = [mesh.dp.rank] if zero else list(range(mesh.dp.size))
        self.shards = [shard for bucket in self.buckets.all for shard in self._shards(bucket, parts)]

    def _shards(self, bucket: Bucket, parts: list[int]) -> Iterator[Shard]:
        size = bucket.size // self.mesh.dp.size
        held = slice(parts[0] * size, (parts[-1] + 1) * size)
        parameters = bucket.parameters[held]
        master = parameters.to(wide(parameters.dtype))
        moments = torch.zeros_like(master), torch.zeros_like(master)
        for part in parts:
            for segment in bucket.segments(part, self.mesh.dp.size):
                yield self._shard(bucket, segment, part, held.start, (master, *moments))

    def _shard(
        self, bucket: Bucket, segment: Segment, part: int, origin: int, state: tuple[Tensor, Tensor, Tensor]
    ) -> Shard:
        within = slice(segment.place.start - origin, segment.place.stop - origin)
        master, exp_avg, exp_avg_sq = (x[within] for x in state)
        return Shard(
            segment.slot.name,
            segment.slot.record,
            segment.start,
            segment.stop,
            part == self.mesh.dp.rank,
            bucket.parameters[segment.place],
            bucket.gradients[segment.place],
            master,
            exp_avg,
            exp_avg_sq,
        )

    def zero_grad(self, micro_batches: int = 0) -> None:
        """Empties the gradients; see `Buckets.zero` for the argument."""
        self.buckets.zero(micro_batches)

    def reduce(self) -> None:
        """Sums the gradients over the dp ranks, and over the copies of a tied parameter."""
        self.buckets.reduce()

    def norm(self) -> float:
        """The Euclidean norm of the full model's gradient: every element once, whatever the layout.

        Copies add nothing, unless they are not finite: then neither is the norm.
        """
        gradients: dict[bool, list[Tensor]] = {True: [], False: []}
        for shard in self.shards:
            copy = shard.record.alias is not None or (shard.record.copies and not self.mesh.tp.first)
            if shard.owned:
                gradients[copy].append(shard.gradient)
        once, copies = (get_total_norm(gradients[copy]).double().square() for copy in (False, True))
        squares = (once + 0.0 * copies).to(self.mesh.device)
        return math.sqrt(collectives.all_reduce(squares, self.mesh.world).item())

    def step(self, lr: float) -> float:
        """Updates the parameters by the reduced gradients; returns their norm before clipping.

        Clips by the rule of `torch.nn.utils.clip_grad_norm_`.
        """
        norm = self.norm()
        if not math.isfinite(norm):
            self.skipped += 1
            return norm
        clip = self.settings.clip / (norm + 1e-6)
        if self.settings.clip and clip < 1:
            self.buckets.gradients.mul_(clip)
        self._update([shard for shard in self.shards if shard.record.decay], lr, self.settings.weight_decay)
        self._update([shard for shard in self.shards if not shard.record.decay], lr, 0.0)
        self.steps += 1
        self.publish()
        return norm

    def _update(self, shards: list[Shard], lr: float, weight_decay: float) -> None:
        # torch.optim.AdamW by its function: the class would import torch's compiler, for seconds.
        adamw(
            [shard.master for shard in shards],
            [shard.gradient for shard in shards],
            [shard.exp_avg for shard in shards],
            [shard.exp_avg_sq for shard in shards],
            max_exp_avg_sqs=[],
            state_steps=list(torch.full((len(shards),), float(self.steps), device=self.mesh.device).unbind()),
            fused=True,
            amsgrad=False,
            beta1=self.settings.beta1,
            beta2=self.settings.beta2,
            lr=lr,
            weight_decay=weight_decay,
            eps=self.settings.eps,
            maximize=False,
        )

    def publish(self) -> None:
        """Makes the parameters of all dp ranks those of the master weights."""
        for shard in self.shards:
            if shard.master.dtype != shard.parameter.dtype:
                shard.parameter.copy_(shard.master)
        if self.zero:
            self.buckets.gather()
