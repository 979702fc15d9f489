"""The mesh: this rank's place on every axis, and each axis's process group, as one frozen value."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from mtl_common.errors import ConfigError
from mtl_common.layout import AXES, Layout

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """One mesh axis as seen by this rank. `group` is None at size 1, where every collective does nothing."""

    name: str
    rank: int
    size: int
    ranks: Ranks
    group: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this rank stands at the start of the axis."""
        return self.rank == 0

    @property
    def last(self) -> bool:
        """Whether this rank stands at the end of the axis."""
        return self.rank == self.size - 1


@dataclass(frozen=True)
class Mesh:
    """All axes of this rank; `world` spans every rank.

    `back` is the pp axis over a second set of process groups: gradients travel on it, so that a stage's
    sends forward and its sends backward never wait in one queue (which deadlocks NCCL under 1F1B). `ends`
    joins the first and the last stage, which share a tied embedding; it has size 1 on the stages between
    them.
    """

    layout: Layout
    device: torch.device
    tp: Axis
    dp: Axis
    pp: Axis
    back: Axis
    ends: Axis
    world: Axis

    @classmethod
    def single(cls, device: str | torch.device = "cpu") -> "Mesh":
        """A mesh of one rank; needs no process group."""
        alone = {name: Axis(name, 0, 1, (0,)) for name in (*AXES, "back", "ends", "world")}
        return cls(layout=Layout(), device=torch.device(device), **alone)

    @classmethod
    def create(cls, layout: Layout, device: str | torch.device = "cpu") -> "Mesh":
        """The mesh of this process within the default process group, which must be initialised.

        Raises ConfigError when the layout does not multiply out to the world size.
        """
        world = dist.get_world_size() if dist.is_initialized() else 1
        if layout.world != world:
            raise ConfigError(
                f"layout {layout} has {layout.world} ranks but the world has {world}; "
                "choose tp, pp and dp whose product is the world size"
            )
        if world == 1:
            return cls.single(device)
        sizes, rank = layout.sizes(), dist.get_rank()
        device = torch.device(device)
        # DeviceMesh wants the slowest axis first.
        devices = init_device_mesh(
            device.type, tuple(reversed(sizes.values())), mesh_dim_names=tuple(reversed(sizes.keys()))
        )

        def axis(name: str) -> Axis:
            ranks = tuple(layout.group(rank, name))
            group = devices.get_group(name) if len(ranks) > 1 else None
            return Axis(name, ranks.index(rank), len(ranks), ranks, group)

        everyone = Axis("world", rank, world, tuple(range(world)), dist.group.WORLD)
        back = _along_pp(layout, rank, "back", lambda line: line)
        ends = _along_pp(layout, rank, "ends", lambda line: tuple(sorted({line[0], line[-1]})))
        return cls(layout, device, axis("tp"), axis("dp"), axis("pp"), back, ends, everyone)


def _along_pp(layout: Layout, rank: int, name: str, choose: Callable[[Ranks], Ranks]) -> Axis:
    """An axis over chosen ranks of every pp line, with its own groups; size 1 for the ranks left out."""
    lines = sorted({choose(tuple(layout.group(r, "pp"))) for r in range(layout.world)})
    # Every rank must create every group.
    groups = {line: dist.new_group(list(line)) for line in lines if len(line) > 1}
    mine = next((line for line in lines if rank in line), (rank,))
    return Axis(name, mine.index(rank), len(mine), mine, groups.get(mine))


def local_device(device: str) -> torch.device:
    """`auto`, `cpu` or `cuda` as this rank's device; one GPU a rank, by LOCAL_RANK."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device)
