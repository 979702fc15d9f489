"""One executor for every schedule: runs a stage's actions, trading activations and gradients with its
neighbours.

A pipeline of one stage is the same loop without messages, which is plain gradient accumulation. Activations
travel on `mesh.pp`, gradients on `mesh.back`. An activation that has been sent is freed: what backward
needs is the edge of its graph, not its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from mtl_parallel import collectives
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT
from mtl_parallel.schedule import Action, Kind, forward_only


@dataclass(frozen=True)
class MicroBatch:
    """What one forward sees, each `(B, T)`: token ids, the ids to predict, what each prediction counts."""

    tokens: Tensor
    labels: Tensor
    mask: Tensor


class _Links:
    """A stage's links to its neighbours, in order, with one send in flight on each.

    Messages are `(B, T, H)` in the dtype of the parameters: both sides know them, nothing is negotiated.
    """

    def __init__(self, model: GPT, mesh: Mesh, micro_batches: Sequence[MicroBatch]) -> None:
        self.axes = {"forward": mesh.pp, "backward": mesh.back}
        self.hidden = model.shape.hidden
        self.dtype = next(model.parameters()).dtype
        self.micro_batches = micro_batches
        self.expected: dict[Action, tuple[dist.Work, Tensor]] = {}
        self.sending: dict[Kind, tuple[dist.Work, Tensor]] = {}

    def expect(self, action: Action) -> None:
        """Starts to receive what the action needs; nothing when it needs no message."""
        axis = self.axes[action.kind]
        source = axis.rank - 1 if action.kind == "forward" else axis.rank + 1
        if 0 <= source < axis.size:
            tokens = self.micro_batches[action.micro].tokens
            x = torch.empty(*tokens.shape, self.hidden, dtype=self.dtype, device=tokens.device)  # (B, T, H)
            self.expected[action] = collectives.receive(x, axis, source), x

    def take(self, action: Action) -> Tensor:
        """Waits for what `expect` asked for."""
        work, x = self.expected.pop(action)
        work.wait()
        return x

    def send(self, kind: Kind, x: Tensor) -> None:
        """Starts to send `x` on, once the message before it is gone."""
        axis = self.axes[kind]
        self.settle(kind)
        x = x.contiguous()
        self.sending[kind] = collectives.send(x, axis, axis.rank + (1 if kind == "forward" else -1)), x

    def settle(self, kind: Kind) -> None:
        """Waits until the last message of this kind is gone, and frees it."""
        if kind in self.sending:
            self.sending.pop(kind)[0].wait()


class _Executor:
    """The passes of a stage; `alive` holds a micro-batch's input and the root of its graph until backward."""

    def __init__(self, model: GPT, mesh: Mesh, micro_batches: Sequence[MicroBatch], scale: float) -> None:
        self.model = model
        self.mesh = mesh
        self.micro_batches = micro_batches
        self.scale = scale
        self.links = _Links(model, mesh, micro_batches)
        self.alive: dict[int, tuple[Tensor, Tensor | GradientEdge]] = {}
        self.loss = torch.zeros((), dtype=torch.float64, device=mesh.device)

    def forward(self, action: Action) -> None:
        batch = self.micro_batches[action.micro]
        x = batch.tokens if self.mesh.pp.first else self.links.take(action)
        graph = torch.is_grad_enabled()
        if x.is_floating_point():
            x.requires_grad_(graph)
        root = self._end(self.model(x), batch)
        if graph:
            self.alive[action.micro] = x, root if self.mesh.pp.last else get_gradient_edge(root)

    def _end(self, y: Tensor, batch: MicroBatch) -> Tensor:
        if not self.mesh.pp.last:
            self.links.send("forward", y.detach())
            return y
        loss = self.model.loss(y, batch.labels, batch.mask)
        self.loss += loss.detach()
        return loss

    def backward(self, action: Action) -> None:
        x, root = self.alive.pop(action.micro)
        gradient = torch.full_like(root, self.scale) if isinstance(root, Tensor) else self.links.take(action)
        torch.autograd.backward(root, gradient)
        if x.grad is not None:
            self.links.send("backward", x.grad)


def run(
    model: GPT,
    mesh: Mesh,
    actions: Sequence[Action],
    micro_batches: Sequence[MicroBatch],
    scale: float = 1.0,
) -> Tensor:
    """Runs this stage's actions and adds `scale` times the gradients of the token losses to the parameters'.

    Args:
        model: this rank's stage.
        mesh: its mesh.
        actions: what a schedule of `mesh.pp.size` stages says for this one.
        micro_batches: the same on every stage and tp rank; each dp rank has its own.
        scale: one over the valid tokens of the whole global batch, see `valid_tokens`.

    Returns:
        The sum of the token losses, a float64 scalar; zero on every stage but the last. `total` sums it up.
    """
    executor = _Executor(model, mesh, micro_batches, scale)
    for action in actions[:1]:
        executor.links.expect(action)
    for i, action in enumerate(actions):
        for following in actions[i + 1 : i + 2]:
            executor.links.expect(following)
        if action.kind == "forward":
            executor.forward(action)
        else:
            executor.backward(action)
    executor.links.settle("forward")
    executor.links.settle("backward")
    return executor.loss


@torch.no_grad()
def evaluate(model: GPT, mesh: Mesh, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """The sum of the token losses without gradients, as `run` returns it."""
    return run(model, mesh, forward_only(mesh.pp.size, len(micro_batches))[mesh.pp.rank], micro_batches)


def valid_tokens(micro_batches: Sequence[MicroBatch], mesh: Mesh) -> float:
    """The sum of all masks of the global batch: every micro-batch of every dp rank; the same everywhere."""
    masks = torch.stack([batch.mask.sum(dtype=torch.float64) for batch in micro_batches])
    return collectives.all_reduce(masks.sum(), mesh.dp).item()


def total(loss: Tensor, mesh: Mesh) -> float:
    """The loss that `run` or `evaluate` returned, summed over the global batch; the same on every rank."""
    return collectives.all_reduce(collectives.all_reduce(loss.clone(), mesh.dp), mesh.pp).item()
