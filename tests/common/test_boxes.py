"""Boxes against numpy: the same elements, in the same order."""

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl_common.boxes import Box, cut, pieces, placed

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def boxes_of(shape: tuple[int, ...]) -> st.SearchStrategy[Box]:
    spans = [st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(sorted_span(n)) for n in shape]
    return st.tuples(*spans).map(lambda found: Box(tuple(a for a, _ in found), tuple(s for _, s in found)))


def sorted_span(n: int):
    return lambda pair: (pair[0], min(pair[1], n - pair[0]))


SHAPE_AND_BOX = SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), boxes_of(shape)))
SHAPE_AND_BOXES = SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), boxes_of(shape), boxes_of(shape)))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape)).reshape(shape)


def elements(full: np.ndarray, box: Box) -> np.ndarray:
    return full[box.slices(Box.full(full.shape))].ravel()


@settings(deadline=None)
@given(SHAPE_AND_BOX, st.data())
def test_cut_gives_the_flat_range_in_order(shape_and_box, data) -> None:
    shape, box = shape_and_box
    start = data.draw(st.integers(0, box.volume))
    stop = data.draw(st.integers(start, box.volume))
    full = numbered(shape)
    found = cut(box, start, stop)
    assert len(found) <= max(1, 2 * (len(shape) - 1) + 1)
    joined = np.concatenate([elements(full, b) for b in found]) if found else np.array([], int)
    assert joined.tolist() == elements(full, box)[start:stop].tolist()


@settings(deadline=None)
@given(SHAPE_AND_BOXES)
def test_intersect_holds_the_common_elements(case) -> None:
    shape, a, b = case
    full = numbered(shape)
    common = a.intersect(b)
    found = set(elements(full, common).tolist()) if common else set()
    assert found == set(elements(full, a).tolist()) & set(elements(full, b).tolist())


@settings(deadline=None)
@given(SHAPE_AND_BOXES)
def test_run_is_where_the_elements_stand_unbroken(case) -> None:
    shape, within, other = case
    box = within.intersect(other)
    if box is None:
        return
    full = numbered(shape)
    memory, wanted = elements(full, within).tolist(), elements(full, box).tolist()
    first = memory.index(wanted[0])
    unbroken = memory[first : first + len(wanted)] == wanted
    assert box.run(within) == (first if unbroken else None)


@settings(deadline=None)
@given(SHAPE_AND_BOXES, st.data())
def test_pieces_and_placed_cover_a_flat_range_over_boxes_end_to_end(case, data) -> None:
    shape, a, b = case
    full = numbered(shape)
    memory = np.concatenate([elements(full, a), elements(full, b)])
    start = data.draw(st.integers(0, len(memory)))
    stop = data.draw(st.integers(start, len(memory)))
    found = np.full(stop - start, -1)
    for piece in pieces([a, b], start, stop):
        values = elements(full, piece.box)[piece.start : piece.stop]
        found[piece.position : piece.position + len(values)] = values
    assert found.tolist() == memory[start:stop].tolist()
    for part in placed([a, b], start, stop):
        assert found[part.position :][: part.box.volume].tolist() == elements(full, part.box).tolist()
