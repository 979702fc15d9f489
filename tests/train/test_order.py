"""Sample order: a bijection an epoch, whole documents a split, the same samples whatever the layout."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import make_bins
from mtl_common.bins import Bins
from mtl_common.errors import DataError
from mtl_parallel.mesh import Axis
from mtl_train.data import shares
from mtl_train.order import Order, permute, split

KEYS = st.binary(min_size=1, max_size=32)


@given(st.integers(1, 400), KEYS)
@settings(max_examples=100, deadline=None)
def test_a_permutation_visits_everything_once(count: int, key: bytes) -> None:
    assert sorted(permute(i, count, key) for i in range(count)) == list(range(count))


@given(st.integers(2, 2**62), st.data(), KEYS)
@settings(max_examples=100, deadline=None)
def test_a_huge_permutation_stays_in_range_without_collisions(
    count: int, data: st.DataObject, key: bytes
) -> None:
    indices = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=20))
    places = {permute(i, count, key) for i in indices}
    assert len(places) == len(indices)
    assert all(0 <= place < count for place in places)


def test_a_permutation_mixes() -> None:
    count = 10_000
    places = [permute(i, count, b"key") for i in range(count)]
    fixed = sum(i == place for i, place in enumerate(places))
    assert fixed < 10  # 1 is expected
    kept_near = sum(abs(a - b) == 1 for a, b in itertools.pairwise(places))
    assert kept_near < 12  # 2 are expected
    thirds = Counter(place * 3 // count for place in places[: count // 3])
    assert all(abs(n - count / 9) < 120 for n in thirds.values())  # 4 standard deviations
    other = [permute(i, count, b"kez") for i in range(count)]
    assert sum(a == b for a, b in zip(places, other, strict=True)) < 10


def test_every_window_comes_first_in_some_epoch() -> None:
    order = Order(0, 6 * 4 + 1, 4, seed=1)
    firsts = Counter(order.position(epoch * order.windows) for epoch in range(600))
    assert sorted(firsts) == [0, 4, 8, 12, 16, 20]
    assert min(firsts.values()) > 60  # 100 are expected


@given(st.integers(0, 50), st.integers(2, 300), st.integers(1, 12), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_an_epoch_is_every_window_once_inside_the_split(start: int, tokens: int, seq: int, seed: int) -> None:
    order = Order(start, start + tokens, seq, seed)
    for epoch in range(3):
        positions = [order.position(epoch * order.windows + i) for i in range(order.windows)]
        assert sorted(positions) == [start + i * seq for i in range(order.windows)]
    assert start + order.windows * seq + 1 <= start + tokens < start + (order.windows + 1) * seq + 1


def test_epochs_and_seeds_differ() -> None:
    order, other = Order(0, 1001, 10, 1), Order(0, 1001, 10, 2)
    first = [order.position(i) for i in range(100)]
    assert first != [order.position(i) for i in range(100, 200)]
    assert first != [other.position(i) for i in range(100)]


def axis(rank: int, size: int) -> Axis:
    return Axis("dp", rank, size, tuple(range(size)))


def read(consumed: int, steps: int, dp: int, micro: int) -> list[list[int]]:
    """The samples of every step, over all dp ranks."""
    return [
        sorted(
            sample
            for rank in range(dp)
            for part in shares(consumed + step * 24, 24, micro, axis(rank, dp))
            for sample in part
        )
        for step in range(steps)
    ]


@pytest.mark.parametrize("dp", [1, 2, 3, 4])
@pytest.mark.parametrize("micro", [1, 2])
def test_a_step_has_the_same_samples_at_any_dp(dp: int, micro: int) -> None:
    assert read(48, 3, dp, micro) == [list(range(48 + 24 * i, 72 + 24 * i)) for i in range(3)]


def test_ranks_take_micro_batches_in_turn() -> None:
    assert shares(8, 8, 2, axis(0, 2)) == [range(8, 10), range(12, 14)]
    assert shares(8, 8, 2, axis(1, 2)) == [range(10, 12), range(14, 16)]


@pytest.mark.parametrize("stopped", [23, 24, 25, 22, 47, 48, 49, 1])
def test_a_resumed_order_is_the_unbroken_one(stopped: int) -> None:
    """Stops at, before and after the end of an epoch of 24 samples; later epochs are whole."""
    order = Order(0, 24 * 5 + 1, 5, seed=7)
    unbroken = [order.position(i) for i in range(96)]
    resumed = Order(0, 24 * 5 + 1, 5, seed=7)
    assert unbroken[:stopped] + [resumed.position(i) for i in range(stopped, 96)] == unbroken
    for epoch in range(4):
        assert len(set(unbroken[epoch * 24 : epoch * 24 + 24])) == 24


def test_samples_found_far_ahead_are_found_at_once() -> None:
    order = Order(0, 10**15, 4096, seed=0)
    assert order.windows > 2**32
    positions = [
        order.position(i) for i in (0, 2**31 - 1, 2**31, 2**32, order.windows - 1, 5 * order.windows)
    ]
    assert all(0 <= p <= 10**15 - 4097 for p in positions)
    assert len(set(positions)) == 6


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory) -> Bins:
    documents = [[i % 90 + 1] * (3 + i * 7 % 40) for i in range(200)]
    return Bins(make_bins(tmp_path_factory.mktemp("bins"), documents, 100, shard_tokens=500))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.9])
def test_splits_never_share_a_document(bins: Bins, share: float) -> None:
    train, valid = split(bins, 8, share, 1)
    assert valid is not None
    ends = {bins.bounds(0, i)[1] for i in range(len(bins) + 1)}
    assert train.start == 0
    assert train.stop == valid.start
    assert train.stop in ends
    assert valid.stop == bins.tokens
    longest = 43
    assert bins.tokens * share <= valid.stop - valid.start <= bins.tokens * share + longest + 1


def test_no_validation_trains_on_everything(bins: Bins) -> None:
    train, valid = split(bins, 8, 0, 1)
    assert valid is None
    assert (train.start, train.stop) == (0, bins.tokens)


def test_one_document_of_ten_tokens_is_enough(tmp_path: Path) -> None:
    train, _ = split(Bins(make_bins(tmp_path, [[1] * 9], 100)), 8, 0, 1)
    assert [train.position(i) for i in range(1000)] == [0] * 1000


@pytest.mark.parametrize(
    ("documents", "seq", "valid", "says"),
    [
        (
            [[1] * 5],
            8,
            0.0,
            "6 tokens in 1 training documents, but one sample takes 9; choose a smaller --seq",
        ),
        ([[1] * 50], 8, 0.1, "0 tokens in 0 training documents"),
        ([[1] * 50, [2] * 3], 8, 0.01, "4 tokens in 1 validation documents"),
    ],
)
def test_too_little_text_is_refused(
    tmp_path: Path, documents: list[list[int]], seq: int, valid: float, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        split(Bins(make_bins(tmp_path, documents, 100)), seq, valid, 1)
