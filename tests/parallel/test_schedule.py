"""Schedules: order, no deadlock, memory and bubble, by simulation and over random sizes."""

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mtl_parallel.schedule
from mtl_parallel.schedule import (
    SCHEDULES,
    Action,
    Schedule,
    ScheduleError,
    forward_only,
    gpipe,
    one_f_one_b,
    simulate,
)

sizes = {"pp": st.integers(1, 9), "micro": st.integers(1, 20)}
any_schedule = st.sampled_from(list(SCHEDULES.values()))


def parse(text: str) -> list[Action]:
    kinds = {"F": "forward", "B": "backward"}
    return [Action(kinds[word[0]], int(word[1:])) for word in text.split()]  # type: ignore[arg-type]


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(mtl_parallel.schedule).failed == 0


def test_one_f_one_b_is_the_published_order() -> None:
    """Figure 4 of arXiv 2104.04473: four stages, eight micro-batches."""
    assert one_f_one_b(4, 8) == [
        parse("F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        parse("F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        parse("F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        parse("F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ]


@given(schedule=any_schedule, forward=st.floats(0.1, 10), backward=st.floats(0.1, 10), **sizes)
def test_every_size_runs_and_wastes_the_ideal_share(
    schedule: Schedule, pp: int, micro: int, forward: float, backward: float
) -> None:
    timeline = simulate(schedule(pp, micro), forward, backward)
    assert timeline.bubble == pytest.approx((pp - 1) / (micro + pp - 1), abs=1e-9)
    for stage in timeline.events:
        assert sorted(str(e.action) for e in stage) == sorted(f"{k}{i}" for k in "FB" for i in range(micro))
        assert all(a.stop <= b.start for a, b in pairwise(stage))


@given(schedule=any_schedule, **sizes)
def test_a_pass_starts_after_what_it_needs(schedule: Schedule, pp: int, micro: int) -> None:
    stages = [{str(e.action): e for e in stage} for stage in simulate(schedule(pp, micro)).events]
    for i in range(micro):
        for earlier, later in pairwise(stages):
            assert earlier[f"F{i}"].stop <= later[f"F{i}"].start
            assert later[f"B{i}"].stop <= earlier[f"B{i}"].start


@given(**sizes)
def test_memory(pp: int, micro: int) -> None:
    assert simulate(gpipe(pp, micro)).peaks == (micro,) * pp
    assert simulate(one_f_one_b(pp, micro)).peaks == tuple(min(pp - s, micro) for s in range(pp))


@given(**sizes)
def test_forward_only_keeps_the_order(pp: int, micro: int) -> None:
    timeline = simulate(forward_only(pp, micro))
    assert timeline.duration == pytest.approx(micro + pp - 1)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (["F0 F0 B0"], "stage 0 runs F0 twice"),
        (["F0 B0 B0"], "B0 without its forward, or twice"),
        (["B0 F0"], "B0 without its forward"),
        (["F0 F1 B0"], r"never runs the backward of micro-batches \[1\]"),
        (["F0 F1 B0 B1", "F0 B0"], "do not all run the same passes"),
        (
            ["F0 F1 B0 B1", "F1 F0 B0 B1"],
            "activations from stage 0 to 1 carries micro-batch 0 when 1 is expected",
        ),
        (
            ["F0 F1 B0 B1", "F0 F1 B1 B0"],
            "gradients from stage 1 to 0 carries micro-batch 1 when 0 is expected",
        ),
        # Stage 0 wants a gradient before it sends the micro-batch that stage 1 wants first.
        (["F0 B0 F1 B1", "F0 F1 B0 B1"], "cannot go on: stage 0 waits for gradients from stage 1 to 0 at B0"),
    ],
)
def test_a_wrong_schedule_is_named(stages: list[str], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        simulate([parse(stage) for stage in stages])


@given(data=st.data(), schedule=any_schedule, pp=st.integers(2, 5), micro=st.integers(2, 6))
def test_a_shuffled_stage_never_passes_unseen(
    data: st.DataObject, schedule: Schedule, pp: int, micro: int
) -> None:
    """Any other order on one stage either fails or still respects every dependency."""
    stages = schedule(pp, micro)
    victim = data.draw(st.integers(0, pp - 1))
    stages[victim] = data.draw(st.permutations(stages[victim]))
    try:
        timeline = simulate(stages)
    except ScheduleError:
        return
    for events in timeline.events:
        order = [str(e.action) for e in events]
        assert all(order.index(f"F{i}") < order.index(f"B{i}") for i in range(micro))


def test_the_drawing_shows_every_pass() -> None:
    drawing = simulate(one_f_one_b(3, 12)).draw()
    lines = drawing.splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert all(f" {kind}{i} " in line + " " for line in lines for kind in "FB" for i in range(12))
