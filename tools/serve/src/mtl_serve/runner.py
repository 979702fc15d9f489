"""A rank's part of the computation: a step's message in, the logits of its sampling sequences out."""

import torch
from torch import Tensor

from mtl_parallel.collectives import all_gather, broadcast
from mtl_parallel.mesh import Axis
from mtl_parallel.models.gpt import GPT
from mtl_serve.attention import Cache, PagedAttention
from mtl_serve.message import Message, Operation, length
from mtl_serve.scheduler import Limits


class Runner:
    """The model and the cache of one rank."""

    def __init__(self, model: GPT, cache: Cache) -> None:
        self.model, self._cache = model, cache

    @torch.inference_mode()
    def step(self, message: Message) -> Tensor:
        """Computes a step; returns fp32 logits (R, V), a row for each part that samples, the same on all
        ranks.
        """
        model, device = self.model, self._cache.device
        positions = [at for part in message.parts for at in range(part.cached, part.cached + part.count)]
        hidden = model.hidden(
            torch.tensor([message.tokens], device=device),  # (1, T)
            positions=torch.tensor(positions, device=device),
            attend=PagedAttention(self._cache, message.parts),
        )  # (1, T, H)
        rows = _sampling_rows(message)
        if not rows:
            return hidden.new_empty(0, model.shape.vocab)
        local = model.logits(hidden[0, rows])  # (R, Vp/tp)
        return all_gather(local, model.tp, dim=1)[:, : model.shape.vocab].float()


def _sampling_rows(message: Message) -> list[int]:
    rows, end = [], 0
    for part in message.parts:
        end += part.count
        rows += [end - 1] * part.samples
    return rows


class Line:
    """What rank 0 speaks on and the other ranks hear: one array of fixed length over the axis."""

    def __init__(self, axis: Axis, limits: Limits) -> None:
        self._axis = axis
        self._array = torch.zeros(length(limits), dtype=torch.int32)  # on CPU, over gloo, whatever the device

    def say(self, message: Message) -> None:
        """Sends a message to every other rank."""
        if self._axis.size > 1:
            message.pack(self._array.numpy())
            broadcast(self._array, self._axis)

    def hear(self) -> Message:
        """Waits for the next message of rank 0."""
        return Message.unpack(broadcast(self._array, self._axis).numpy())


class Leader:
    """Rank 0's hold on all ranks, itself included."""

    def __init__(self, runner: Runner, line: Line) -> None:
        self._runner, self._line = runner, line

    def step(self, message: Message) -> Tensor:
        """Makes all ranks compute a step; returns logits as `Runner.step`."""
        self._line.say(message)
        return self._runner.step(message)

    def pulse(self) -> None:
        """Fails when a rank is gone; nothing else."""
        self._line.say(Message(Operation.PULSE))

    def leave(self) -> None:
        """Ends `follow` on the other ranks."""
        self._line.say(Message(Operation.LEAVE))


def follow(runner: Runner, line: Line) -> None:
    """What every rank but 0 does: obeys until told to leave."""
    while (message := line.hear()).operation != Operation.LEAVE:
        if message.operation == Operation.STEP:
            runner.step(message)
