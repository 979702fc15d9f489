"""The shares of a corpus that the tasks of an array job do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mtl_common.errors import UsageError


@dataclass(frozen=True)
class Share:
    """One of several equal shares, numbered from 1; the first of one is all of the corpus."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_share(text: str) -> Share:
    """`"3/64"` -> the third of 64; raises UsageError for anything else."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found:
        raise UsageError(f"--task {text} is no task of an array job; write it like 3/64, from 1/64 to 64/64")
    share = Share(int(found[1]), int(found[2]))
    if not 1 <= share.number <= share.of:
        from_0 = ", so add 1 to those of an array from 0" if share.number == 0 < share.of else ""
        raise UsageError(f"--task {text} is none: {share.of} tasks are numbered from 1 to {share.of}{from_0}")
    return share


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as Slurm's --array takes them.

    >>> ranges([3, 17, 18, 19])
    '3,17-19'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs)
