"""A parameter's one sharding record: what it is of the full tensor, how it starts, how it is treated.

Initialisation, gradient norm, weight decay, ZeRO, save, load and reshard all read this record; nobody looks
at names. A parameter's global name is its path in the module tree, where layers carry their global number.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mtl_common.boxes import Box
from mtl_common.tensors import Cut, cut_boxes
from mtl_parallel.mesh import Axis


@dataclass(frozen=True)
class Sharding:
    """This rank's part of one full tensor.

    The local tensor's memory is `boxes` end to end, each row-major; what is left of it is padding, which is
    zero and is never saved. `copies` says whether every tp rank holds the same values (a norm weight, a
    row-parallel bias). `std` is the standard deviation of its initial values around `mean`; 0 means constant.
    `alias` names the tensor this one is tied to: it is initialised and loaded from it, never saved, and
    counts for nothing. `tied` says that the other end of the pipeline (`mesh.ends`) holds the same tensor, so
    that the gradients of the two must be summed.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    copies: bool = False
    mean: float = 0.0
    std: float = 0.0
    decay: bool = True
    alias: str | None = None
    tied: bool = False

    @property
    def volume(self) -> int:
        """Elements held here that exist in the full tensor."""
        return sum(box.volume for box in self.boxes)


def declare(parameter: nn.Parameter, sharding: Sharding) -> nn.Parameter:
    """Attaches the record to a parameter and returns the parameter."""
    assert sharding.volume <= parameter.numel(), (sharding, parameter.shape)
    parameter.sharding = sharding  # type: ignore[attr-defined]
    return parameter


def sharding_of(parameter: Tensor) -> Sharding:
    """The record that `declare` attached."""
    record = parameter.sharding  # type: ignore[attr-defined]
    assert isinstance(record, Sharding)
    return record


def sharded_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Sharding]]:
    """Global name, parameter and record of everything a stage holds, in module order, shared ones once."""
    for name, parameter in module.named_parameters():
        yield name, parameter, sharding_of(parameter)


def cut_over(axis: Axis, cut: Cut, shape: tuple[int, ...], **treatment: Any) -> Sharding:
    """The record of this rank's part of a tensor that is cut over an axis, by one of the known rules.

    Raises ConfigError when the tensor cannot be divided so.
    """
    boxes = cut_boxes(cut, shape, axis.rank, axis.size)
    return Sharding(shape, boxes, copies=cut == "copies", **treatment)


def whole(shape: tuple[int, ...], **treatment: Any) -> Sharding:
    """The record of a tensor that every rank holds in full."""
    return Sharding(shape, (Box.full(shape),), copies=True, **treatment)
