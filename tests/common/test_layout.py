"""Layouts as text and as arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl_common.errors import ConfigError
from mtl_common.layout import AXES, Layout, divide, spread

SIZES = st.integers(1, 6)
LAYOUTS = st.builds(Layout, tp=SIZES, dp=SIZES, pp=SIZES)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("tp8pp4dp2", Layout(tp=8, pp=4, dp=2)),
        ("pp2tp4", Layout(tp=4, pp=2)),
        ("tp1", Layout()),
        ("dp16", Layout(dp=16)),
    ],
)
def test_text_is_read(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout


@given(LAYOUTS)
def test_text_comes_back(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", '"" is not a layout; write axes and sizes like tp2pp4'),
        ("tp2x", '"tp2x" is not a layout; write axes and sizes like tp2pp4'),
        ("TP2", '"TP2" is not a layout; write axes and sizes like tp2pp4'),
        ("tp-2", '"tp-2" is not a layout; write axes and sizes like tp2pp4'),
        ("tp2zz3", 'layout "tp2zz3" names an unknown axis zz; the axes are tp, dp, pp'),
        ("tp2tp2", 'layout "tp2tp2" names axis tp twice'),
        ("tp0", "tp is 0; the size of an axis is 1 or more"),
    ],
)
def test_other_text_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Layout.parse(text)
    assert str(caught.value) == message


@given(LAYOUTS)
def test_every_rank_has_a_place_of_its_own(layout: Layout) -> None:
    places = [layout.place(rank) for rank in range(layout.world)]
    assert [layout.rank(place) for place in places] == list(range(layout.world))
    assert len({tuple(place.items()) for place in places}) == layout.world
    assert all(0 <= place[axis] < size for place in places for axis, size in layout.sizes().items())


@given(LAYOUTS, st.sampled_from(AXES))
def test_groups_of_an_axis_divide_the_world(layout: Layout, axis: str) -> None:
    groups = {tuple(layout.group(rank, axis)) for rank in range(layout.world)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
    for group in groups:
        assert [layout.place(rank)[axis] for rank in group] == list(range(layout.sizes()[axis]))


def test_tensor_parallel_ranks_are_neighbours_and_stages_are_blocks() -> None:
    layout = Layout(tp=2, dp=3, pp=2)
    assert layout.group(4, "tp") == [4, 5]
    assert layout.group(1, "dp") == [1, 3, 5]
    assert layout.group(7, "pp") == [1, 7]


@given(st.integers(0, 60), st.integers(1, 12))
def test_spread_covers_in_order_and_evenly(total: int, parts: int) -> None:
    runs = spread(total, parts)
    assert [i for run in runs for i in run] == list(range(total))
    lengths = [len(run) for run in runs]
    assert len(runs) == parts
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_divide_names_what_cannot_be_divided() -> None:
    assert divide(12, 4, "heads", "tp") == 3
    with pytest.raises(ConfigError) as caught:
        divide(9, 2, "heads", "tp")
    assert str(caught.value) == "heads 9 cannot be divided by tp 2; choose tp from 1, 3, 9"
