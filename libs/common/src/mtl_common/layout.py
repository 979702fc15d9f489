"""Layouts: how many ranks each mesh axis has, and which rank stands where, as arithmetic.

A layout is written `tp8pp4dp2`; an axis of size 1 may be left out. Ranks count up fastest along tp, then dp,
then pp, so that the ranks of one tensor-parallel group are neighbours and a stage is a contiguous block.
No torch here: launchers, checkpoint tools and planners use it as it is.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from mtl_common.errors import ConfigError

AXES = ("tp", "dp", "pp")  # from the fastest to the slowest


@dataclass(frozen=True)
class Layout:
    """The size of every axis.

    >>> str(Layout.parse("pp2tp4")), Layout.parse("pp2tp4").world
    ('tp4pp2', 8)
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for axis, size in self.sizes().items():
            if size < 1:
                raise ConfigError(f"{axis} is {size}; the size of an axis is 1 or more")

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Reads `tp8pp4`; raises ConfigError for anything else."""
        parts = re.findall(r"([a-z]+)(\d+)", text)
        if "".join(name + size for name, size in parts) != text or not parts:
            raise ConfigError(f'"{text}" is not a layout; write axes and sizes like tp2pp4')
        sizes: dict[str, int] = {}
        for name, size in parts:
            if name not in AXES:
                raise ConfigError(
                    f'layout "{text}" names an unknown axis {name}; the axes are {", ".join(AXES)}'
                )
            if name in sizes:
                raise ConfigError(f'layout "{text}" names axis {name} twice')
            sizes[name] = int(size)
        return cls(**sizes)

    def __str__(self) -> str:
        return "".join(f"{axis}{size}" for axis, size in self.sizes().items() if size > 1) or "tp1"

    def sizes(self) -> dict[str, int]:
        """Axis name -> size, fastest axis first."""
        return {"tp": self.tp, "dp": self.dp, "pp": self.pp}

    @property
    def world(self) -> int:
        """How many ranks the layout has."""
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> dict[str, int]:
        """The rank's coordinate on every axis.

        >>> Layout(tp=2, dp=1, pp=2).place(3)
        {'tp': 1, 'dp': 0, 'pp': 1}
        """
        place = {}
        for axis, size in self.sizes().items():
            rank, place[axis] = divmod(rank, size)
        return place

    def rank(self, place: dict[str, int]) -> int:
        """The rank at these coordinates; the inverse of `place`."""
        rank = 0
        for axis, size in reversed(self.sizes().items()):
            rank = rank * size + place[axis]
        return rank

    def group(self, rank: int, axis: str) -> list[int]:
        """The ranks that differ from `rank` along `axis` only, in order, itself included."""
        place = self.place(rank)
        return [self.rank({**place, axis: i}) for i in range(self.sizes()[axis])]


def divide(total: int, parts: int, what: str, among: str) -> int:
    """`total / parts`, or a ConfigError that names both.

    >>> divide(12, 4, "heads", "tp")
    3
    """
    if total % parts:
        raise ConfigError(
            f"{what} {total} cannot be divided by {among} {parts}; choose {among} from {divisors(total)}"
        )
    return total // parts


def divisors(n: int) -> str:
    """The divisors of `n` that a person would try, as text."""
    found = [d for d in range(1, min(n, 128) + 1) if n % d == 0]
    return ", ".join(map(str, found))


def spread(total: int, parts: int) -> list[range]:
    """Cuts `range(total)` into `parts` contiguous runs, lengths differing by at most one, longer ones first.

    >>> spread(5, 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    short, longer = divmod(total, parts)
    starts = [i * short + min(i, longer) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
