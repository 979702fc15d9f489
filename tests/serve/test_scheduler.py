"""Scheduling by simulation: a step never overflows, every request ends, the oldest is served first."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtl_serve.message import Message, Operation, length
from mtl_serve.request import Request, Sampling, Stopping
from mtl_serve.scheduler import Limits, Scheduler, Sequence, Share

LIMITS = Limits(step_tokens=8, sequences=4, context=32, page_size=4, pages=10)


def request(number: int, prompt: int) -> Request:
    return Request(number, tuple(range(1, prompt + 1)), Sampling(seed=0), Stopping())


def check(scheduler: Scheduler, shares: list[Share]) -> None:
    limits = scheduler.limits
    assert shares
    assert sum(share.count for share in shares) <= limits.step_tokens
    assert len({id(share.sequence) for share in shares}) == len(shares) <= limits.sequences
    for share in shares:
        end = share.sequence.cached + share.count
        assert share.count > 0
        assert end <= len(share.sequence.tokens)
        assert end <= len(share.sequence.pages) * limits.page_size
        assert share.samples == (end == len(share.sequence.tokens))
    held = [page for s in scheduler.running for page in s.pages]
    assert len(held) == len(set(held)) == limits.pages - scheduler.pages.free


def step(scheduler: Scheduler) -> list[Share]:
    """Plans, checks and advances; every sequence that samples gets a token."""
    shares = scheduler.plan()
    check(scheduler, shares)
    scheduler.advance(shares)
    for share in shares:
        if share.samples:
            share.sequence.tokens.append(99)
    return shares


@given(
    st.lists(st.tuples(st.integers(1, 31), st.integers(1, 32), st.integers(0, 6)), min_size=1, max_size=10)
)
def test_every_request_ends_and_every_page_comes_back(arrivals: list[tuple[int, int, int]]) -> None:
    scheduler = Scheduler(LIMITS)
    wanted = {n: (prompt, min(new, LIMITS.context - prompt)) for n, (prompt, new, _) in enumerate(arrivals)}
    due = sorted((delay, n) for n, (_, _, delay) in enumerate(arrivals))
    for tick in range(2000):
        while due and due[0][0] <= tick:
            number = due.pop(0)[1]
            scheduler.add(request(number, wanted[number][0]))
        if not scheduler.busy:
            continue
        for share in step(scheduler):
            sequence = share.sequence
            if len(sequence.sampled) == wanted[sequence.request.number][1]:
                scheduler.remove(sequence)
                del wanted[sequence.request.number]
        if not wanted:
            break
    assert not wanted
    assert scheduler.pages.free == LIMITS.pages


def test_streams_go_on_while_a_long_prompt_is_read_in_chunks() -> None:
    scheduler = Scheduler(LIMITS)
    first = scheduler.add(request(0, 3))
    step(scheduler)
    second = scheduler.add(request(1, 20))
    counts = [{s.sequence: s.count for s in step(scheduler)} for _ in range(3)]
    assert counts == [{first: 1, second: 7}, {first: 1, second: 7}, {first: 1, second: 6}]
    assert len(second.sampled) == 1


def test_the_youngest_gives_way_and_keeps_its_tokens() -> None:
    scheduler = Scheduler(LIMITS)
    old, young = (scheduler.add(request(n, 16)) for n in range(2))
    while not scheduler.preemptions:
        step(scheduler)
    kept = list(young.tokens)
    assert young in scheduler.waiting
    assert young.pages == []
    scheduler.remove(old)
    shares = scheduler.plan()
    assert [s.sequence for s in shares] == [young]
    assert young.tokens == kept


def test_requests_start_in_the_order_they_came() -> None:
    scheduler = Scheduler(replace(LIMITS, sequences=1))
    sequences = [scheduler.add(request(n, 2)) for n in range(3)]
    for sequence in sequences:
        assert [s.sequence for s in step(scheduler)] == [sequence]
        scheduler.remove(sequence)


def test_a_waiting_sequence_can_be_removed() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.remove(scheduler.add(request(0, 4)))
    assert not scheduler.busy


parts = st.tuples(st.integers(0, 8), st.integers(1, 9), st.booleans())


@given(st.lists(parts, min_size=1, max_size=4))
def test_a_step_message_says_the_same_on_both_ends(made: list[tuple[int, int, bool]]) -> None:
    limits = replace(LIMITS, step_tokens=64, pages=100)
    shares = []
    for n, (cached, count, samples) in enumerate(made):
        tokens = [100 * n + i for i in range(cached + count)]
        sequence = Sequence(request(n, 1), tokens, cached, pages=[10 * n + i for i in range(5)])
        shares.append(Share(sequence, count, samples))
    array = np.full(length(limits), -7, np.int32)
    sent = Message.step(shares)
    sent.pack(array)
    got = Message.unpack(array)
    assert got == sent
    assert got.tokens == [t for s in shares for t in s.sequence.tokens[s.sequence.cached :][: s.count]]


def test_the_largest_step_fits_the_message() -> None:
    scheduler = Scheduler(LIMITS)
    for n in range(4):
        scheduler.add(request(n, 8))
    array = np.zeros(length(LIMITS), np.int32)
    while not scheduler.preemptions:
        shares = step(scheduler)
        Message.step(shares).pack(array)
    for operation in (Operation.PULSE, Operation.LEAVE):
        Message(operation).pack(array)
        assert Message.unpack(array).operation == operation
