"""The recorded curve of a fixed recipe: whatever changes it changes every user's numbers.

Initial weights, sample order, learning rate, loss and optimizer all show here. The corpus is arithmetic, so
that it does not depend on the machine. To the bit on one kind of CPU; other vector units round sums
differently.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corpus import make_bins

GOLDEN = [
    4.6288868, 4.6277462, 4.6275688, 4.6019858, 4.5913466,
    4.5556980, 4.4835347, 4.4901417, 4.4454380, 4.4259090,
    4.4086885, 4.3660458, 4.3260610, 4.2935371, 4.2913496,
    4.2950375, 4.2741387, 4.2735939, 4.2401834, 4.2425858,
]  # fmt: skip


def documents() -> list[list[int]]:
    """Sequences that count up in steps of 1 to 7 modulo 97, of 20 to 119 tokens."""
    return [[1 + (i * i + j * (1 + i % 7)) % 97 for j in range(20 + i * 37 % 100)] for i in range(120)]


@pytest.mark.parametrize("layout", [(), ("--tp", 2, "--dp", 2, "--zero", 1)], ids=["one", "tp2dp2"])
def test_twenty_steps_are_as_recorded(
    command: Any,
    tmp_path: Path,
    read_metrics: Callable[..., list[dict[str, Any]]],
    layout: tuple[object, ...],
) -> None:
    bins = make_bins(tmp_path / "bins", documents(), 101)
    command.train(tmp_path / "run", *layout, "--data", bins, "--steps", 20)
    losses = [record["loss"] for record in read_metrics(tmp_path / "run")]
    assert losses == pytest.approx(GOLDEN, rel=1e-5)
