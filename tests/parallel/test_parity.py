"""Any layout computes what one process computes: loss, every gradient, the norm, the weights after two steps.

In float64, so that 1e-9 leaves no room for an error of substance: sums in another order differ by 1e-15.
"""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
import pytest

from ranks import run_ranks
from training import Case, Outcome, Slice, join, reference, sharded

LAYOUTS = ("tp1", "tp2", "pp2", "dp2", "tp2pp2", "tp2dp2", "pp4", "tp2pp2dp2")
WORLD = {"tp1": 1, "tp2": 2, "pp2": 2, "dp2": 2, "tp2pp2": 4, "tp2dp2": 4, "pp4": 4, "tp2pp2dp2": 8}
SCHEDULE_OF_ZERO: tuple[tuple[Literal[0, 1], str], ...] = ((0, "gpipe"), (1, "1f1b"))
# Every family and tying meets both levels of ZeRO, both schedules, and reduction with and without overlap.
WAYS = [
    Case("", family, tied, zero, schedule, overlap=zero == 1 or tied)
    for family, tied in product(("gpt2", "llama"), (True, False))
    for zero, schedule in SCHEDULE_OF_ZERO
]


def run_all(cases: list[Case]) -> list[tuple[list[float], list[float], list[Slice], list[Slice]]]:
    return [sharded(case) for case in cases]


@cache
def plain(case: Case) -> Outcome:
    return reference(case)


def assert_same(ours: Outcome, wanted: Outcome, tied: bool) -> None:
    np.testing.assert_allclose(ours.losses, wanted.losses, rtol=1e-9, atol=0)
    np.testing.assert_allclose(ours.norms, wanted.norms, rtol=1e-9, atol=0)
    for ours_all, wanted_all in ((ours.gradients, wanted.gradients), (ours.parameters, wanted.parameters)):
        alias = ours_all.pop("output_layer.weight", None) if tied else None
        assert ours_all.keys() == wanted_all.keys()
        for name, full in wanted_all.items():
            scale = np.abs(full).max()
            np.testing.assert_allclose(ours_all[name], full, rtol=0, atol=1e-9 * scale, err_msg=name)
        if alias is not None:
            np.testing.assert_array_equal(alias, ours_all["embedding.word_embeddings.weight"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_one_process(layout: str) -> None:
    cases = [replace(way, layout=layout) for way in WAYS]
    by_rank = run_ranks(WORLD[layout], run_all, cases)
    for i, case in enumerate(cases):
        outcome = join([results[i] for results in by_rank])
        wanted = plain(Case("tp1", case.family, case.tied))
        assert min(wanted.norms) > case.settings.clip, "clipping would go untested"
        try:
            assert_same(outcome, wanted, case.tied)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None
