"""Flat memory of a stage's parameters and gradients, and what the data-parallel ranks do with it.

All parameters of a stage lie end to end in one tensor, all gradients in another of a dtype wide enough to
sum in. A bucket is a run of both: the unit that is reduced, as soon as backward has finished with it, and
divided evenly among the dp ranks. A part is what one dp rank owns of a bucket; a segment is what a part
holds of one parameter.

A parameter tied to the other end of the pipeline is a bucket by itself, so that both ends add the same
numbers in the same order and their copies stay equal to the bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mtl_parallel import collectives
from mtl_parallel.mesh import Mesh
from mtl_parallel.precision import accumulate, wide
from mtl_parallel.sharding import Sharding, sharded_parameters

ALIGNMENT = 32  # elements; every parameter and every part starts at 64 bytes in bf16


@dataclass(frozen=True)
class Slot:
    """A parameter's place in its bucket: its elements stand at `start:stop`."""

    name: str
    parameter: nn.Parameter
    record: Sharding
    start: int

    @property
    def stop(self) -> int:
        """One past its last element."""
        return self.start + self.parameter.numel()


@dataclass(frozen=True)
class Segment:
    """Elements `start:stop` of a parameter's local memory, which stand at `place` in their bucket."""

    slot: Slot
    start: int
    stop: int
    place: slice


@dataclass
class Bucket:
    """A run of flat memory; `waiting` counts the gradients still to come, None when nobody knows."""

    slots: tuple[Slot, ...]
    size: int
    parameters: Tensor = field(init=False)  # (size,)
    gradients: Tensor = field(init=False)  # (size,)
    waiting: int | None = None

    @property
    def tied(self) -> bool:
        """Whether the other end of the pipeline holds the same parameter."""
        return self.slots[0].record.tied

    @property
    def full(self) -> bool:
        """Whether backward has finished with it; never for a tied one, which waits for the other end."""
        return self.waiting == 0 and not self.tied

    def segments(self, part: int, parts: int) -> Iterator[Segment]:
        """What one of `parts` equal parts holds."""
        size = self.size // parts
        first, last = part * size, (part + 1) * size
        for slot in self.slots:
            start, stop = max(first, slot.start), min(last, slot.stop)
            if start < stop:
                yield Segment(slot, start - slot.start, stop - slot.start, slice(start, stop))


def _aligned(count: int, to: int = ALIGNMENT) -> int:
    return -(-count // to) * to


def _plan(model: nn.Module, parts: int, capacity: int) -> list[Bucket]:
    """Buckets in the order in which they are reduced.

    That of the last parameters comes first, since backward fills it first; tied ones come last, since they
    wait for the other end.
    """
    runs: list[list[Slot]] = [[]]
    for name, parameter, record in reversed(list(sharded_parameters(model))):
        before = runs[-1][-1] if runs[-1] else None
        if before and (record.tied or before.record.tied or before.stop >= capacity):
            runs.append([])
            before = None
        runs[-1].append(Slot(name, parameter, record, _aligned(before.stop) if before else 0))
    buckets = [Bucket(tuple(run), _aligned(run[-1].stop, ALIGNMENT * parts)) for run in runs]
    return sorted(buckets, key=lambda bucket: bucket.tied)


class Buckets:
    """The flat memory of a stage. Building it moves the model's parameters there.

    Args:
        model: a stage whose parameters are declared; they keep their identity and values.
        mesh: the stage's mesh.
        capacity: elements after which a bucket takes no more parameters.
        scattered: whether a dp rank needs the sum of its own parts only (ZeRO), not of all gradients.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, *, capacity: int, scattered: bool) -> None:
        self.mesh = mesh
        self.scattered = scattered
        self.all = _plan(model, mesh.dp.size, capacity)
        self._finish: list[collectives.Finish] = []
        self._started = 0
        dtype = next(model.parameters()).dtype
        size = sum(bucket.size for bucket in self.all)
        self.parameters = torch.zeros(size, dtype=dtype, device=mesh.device)
        self.gradients = torch.zeros(size, dtype=wide(dtype), device=mesh.device)
        at = 0
        for bucket in self.all:
            bucket.parameters = self.parameters[at : at + bucket.size]
            bucket.gradients = self.gradients[at : at + bucket.size]
            for slot in bucket.slots:
                self._adopt(bucket, slot)
            at += bucket.size

    def _adopt(self, bucket: Bucket, slot: Slot) -> None:
        parameter, place = slot.parameter, slice(slot.start, slot.stop)
        home = bucket.parameters[place].view(parameter.shape)
        home.copy_(parameter.detach())
        parameter.data = home
        gradient = bucket.gradients[place]
        if gradient.dtype == parameter.dtype:
            parameter.grad = gradient.view(parameter.shape)

        def arrived(parameter: nn.Parameter) -> None:
            if gradient.dtype != parameter.dtype:
                assert parameter.grad is not None
                accumulate(gradient, parameter.grad)
                parameter.grad = None
            self._arrived(bucket)

        parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def zero(self, micro_batches: int = 0) -> None:
        """Empties the gradients.

        Told how many micro-batches will come, a bucket is reduced as soon as the last of them has filled
        it, while backward goes on; otherwise `reduce` does it all.
        """
        self.gradients.zero_()
        self._started = 0
        for bucket in self.all:
            bucket.waiting = len(bucket.slots) * micro_batches if micro_batches else None

    def reduce(self) -> None:
        """Sums the gradients of tied copies, then those of the dp ranks: all, or this rank's parts."""
        while self._started < len(self.all):
            self._start()
        for finish in self._finish:
            finish()
        self._finish.clear()

    def gather(self) -> None:
        """Fetches every dp rank's parts of the parameters."""
        for bucket in self.all:
            collectives.gather_parts(bucket.parameters, self.mesh.dp)

    def _arrived(self, bucket: Bucket) -> None:
        if bucket.waiting is None:
            return
        assert bucket.waiting > 0, "more micro-batches than `zero` was told of"
        bucket.waiting -= 1
        # In one order on every rank, whatever order gradients come in.
        while self._started < len(self.all) and self.all[self._started].full:
            self._start()

    def _start(self) -> None:
        bucket = self.all[self._started]
        self._started += 1
        if bucket.tied:
            collectives.all_reduce(bucket.gradients, self.mesh.ends)
        start = collectives.start_reduce_parts if self.scattered else collectives.start_all_reduce
        self._finish.append(start(bucket.gradients, self.mesh.dp))
