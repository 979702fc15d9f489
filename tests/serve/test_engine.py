"""The engine over a script instead of a model: what text comes out of known tokens, and what happens to
places.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hosting import PROMPT, VOCAB, Script
from mtl_serve.engine import Delta, Engine, Event, Finished
from mtl_serve.request import FinishReason, Request, Sampling, Stopping
from mtl_serve.scheduler import Limits, Scheduler

END = 0
LIMITS = Limits(step_tokens=16, sequences=3, context=64, page_size=4, pages=48)
GREEDY = Sampling(temperature=0.0, seed=0)


class Running:
    """An engine at work, and the events of each request."""

    def __init__(self, script: Script, pieces: dict[int, bytes]) -> None:
        self.script = script
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue()
        self.scheduler = Scheduler(LIMITS)
        ends = frozenset({END})
        self.engine = Engine(
            self.scheduler, script, lambda t: pieces.get(t, b""), VOCAB - 5, ends, self._deliver
        )

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        for event in events:
            self.events.put(event)

    def submit(self, number: int, stopping: Stopping) -> None:
        self.engine.submit(Request(number, tuple(range(1, PROMPT + 1)), GREEDY, stopping))

    def finish(self, number: int) -> tuple[list[str], Finished]:
        """The texts of a request's deltas, and its end."""
        texts: list[str] = []
        while True:
            of, event = self.events.get(timeout=20)
            if of != number:
                continue
            if isinstance(event, Finished):
                return texts, event
            assert isinstance(event, Delta)
            assert event.text
            texts.append(event.text)


@contextmanager
def running(script: Script, pieces: dict[int, bytes]) -> Iterator[Running]:
    made = Running(script, pieces)
    thread = threading.Thread(target=made.engine.run)
    thread.start()
    try:
        yield made
    finally:
        made.engine.leave()
        if script.hold:
            script.hold.release(10_000)
        thread.join(20)
    assert script.left


def answer(pieces: list[bytes], stopping: Stopping) -> tuple[list[str], Finished]:
    tokens = list(range(10, 10 + len(pieces)))
    with running(Script([*tokens, END]), dict(zip(tokens, pieces, strict=True))) as run:
        run.submit(1, stopping)
        texts, end = run.finish(1)
        assert "".join(texts) == end.text
        assert not run.scheduler.busy
        assert run.scheduler.pages.free == LIMITS.pages
        return texts, end


SMILE = "\U0001f600".encode()


def test_a_character_split_over_tokens_comes_whole() -> None:
    texts, end = answer([b"a", SMILE[:1], SMILE[1:3], SMILE[3:] + b"b", b"c"], Stopping())
    assert texts == ["a", "\U0001f600b", "c"]
    assert end.reason == FinishReason.END_OF_SEQUENCE
    assert list(end.tokens) == [10, 11, 12, 13, 14, END]


def test_a_character_cut_off_by_the_length_is_one_replacement() -> None:
    texts, end = answer([b"a", SMILE[:3], SMILE[3:]], Stopping(max_new_tokens=2))
    assert texts == ["a", "\ufffd"]
    assert end.reason == FinishReason.LENGTH


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched"),
    [
        ([b"abc", b"xDEF", b"never"], ("DE",), "abcx", "DE"),
        ([b"ab", b"c", b"d", b"never"], ("bcd",), "a", "bcd"),
        ([b"one two", b" three"], ("three", "two"), "one ", "two"),
        ([b"caf\xc3", b"\xa9!", b"never"], ("\u00e9",), "caf", "\u00e9"),
        ([b"a", SMILE[:2], SMILE[2:] + b"b"], ("\U0001f600",), "a", "\U0001f600"),
        ([b"nearly ST", b"O", b"Q done"], ("STOP",), "nearly STOQ done", ""),
        ([b"ends with ST", b"O"], ("STOP",), "ends with STO", ""),
    ],
)
def test_stop_strings(pieces: list[bytes], stops: tuple[str, ...], text: str, matched: str) -> None:
    _, end = answer(pieces, Stopping(stop_strings=stops))
    assert (end.text, end.matched_stop) == (text, matched)
    assert end.reason == (FinishReason.STOP if matched else FinishReason.END_OF_SEQUENCE)


def test_end_of_sequence_can_be_ignored_up_to_the_context() -> None:
    _, end = answer([b"x"], Stopping(ignore_end_of_sequence=True))
    assert end.reason == FinishReason.CONTEXT
    assert PROMPT + len(end.tokens) == LIMITS.context
    assert end.text == "x" * (len(end.tokens) // 2 + 1)


def test_an_id_that_the_tokenizer_lacks_is_never_sampled() -> None:
    with running(Script([VOCAB - 1]), {0: b"?"}) as run:
        run.submit(1, Stopping(max_new_tokens=4, ignore_end_of_sequence=True))
        assert max(run.finish(1)[1].tokens) < VOCAB - 5


def test_more_requests_than_places_all_get_the_same_answer() -> None:
    pieces = {10: b"a", 11: b"b"}
    script = Script([10, 11, 10, 11, END])
    with running(script, pieces) as run:
        for number in range(8):
            run.submit(number, Stopping())
        ends: dict[int, str] = {}
        while len(ends) < 8:
            number, event = run.events.get(timeout=20)
            if isinstance(event, Finished):
                ends[number] = event.text
        assert set(ends.values()) == {"abab"}
    assert max(script.batches) == LIMITS.sequences


def test_a_cancelled_request_is_computed_no_more_and_frees_its_place() -> None:
    script = Script([10], hold=threading.Semaphore(0))
    with running(script, {10: b"a"}) as run:
        assert script.hold is not None
        for number in range(LIMITS.sequences + 1):  # the last one waits
            run.submit(number, Stopping())
        script.hold.release(3)
        while run.events.get(timeout=20)[0] != 0:
            pass
        for number in range(LIMITS.sequences + 1):
            run.engine.cancel(number)
        run.engine.cancel(99)  # never heard of
        run.submit(100, Stopping(max_new_tokens=2))
        script.hold.release(5)
        assert run.finish(100)[1].text == "aa"
        assert run.scheduler.pages.free == LIMITS.pages


def test_an_idle_engine_computes_nothing() -> None:
    script = Script([10])
    with running(script, {10: b"a"}) as run:
        run.submit(1, Stopping(max_new_tokens=3))
        run.finish(1)
        threading.Event().wait(0.3)
        assert script.steps == 3
