"""The loop on rank 0: takes requests in, plans a step, has all ranks compute it, samples, hands text out.

It runs in a thread of its own and shares nothing with others but two queues: the inbox here, and whatever
`deliver` puts events into. It is the only one that schedules, samples and ends requests, so ranks cannot
come to differ about them.
"""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from mtl_serve.message import Message
from mtl_serve.request import FinishReason, Request
from mtl_serve.sampling import sample, uniform
from mtl_serve.scheduler import Scheduler, Sequence, Share
from mtl_serve.text import TextStream

PULSE_SECONDS = 2.0  # an idle server looks this often whether all ranks are there


@dataclass(frozen=True)
class Delta:
    """New text, never empty, and the tokens sampled since the last one."""

    text: str
    tokens: list[int]


@dataclass(frozen=True)
class Finished:
    """The last event of a request: the whole answer."""

    reason: FinishReason
    matched_stop: str
    text: str
    tokens: list[int]


Event = Delta | Finished
Deliver = Callable[[list[tuple[int, Event]]], None]
"""Takes the events of one step, each with its request's number; called in the engine's thread."""


class Computes(Protocol):
    """What the engine asks of the ranks; `runner.Leader` is it, and so is a script in tests."""

    def step(self, message: Message) -> Tensor:
        """Logits (R, V), fp32, a row for each part that samples."""

    def pulse(self) -> None:
        """Fails when a rank is gone."""

    def leave(self) -> None:
        """Lets the other ranks go."""


@dataclass(frozen=True)
class Cancel:
    """In the inbox: nobody waits for this request any more."""

    number: int


@dataclass(frozen=True)
class Leave:
    """In the inbox: end the loop."""


@dataclass(eq=False)
class _Answer:
    """A request under way, on the text's side."""

    sequence: Sequence
    stream: TextStream
    unsent: list[int] = field(default_factory=list)


class Engine:
    """Answers requests until told to leave.

    Args:
        scheduler: empty, and this engine's alone.
        ranks: what computes.
        piece: the bytes of a token; special tokens have none.
        vocab: ids from here on are padding, which a model may have more of than its tokenizer; never sampled.
        ends: the tokens that end a sequence.
        deliver: where events go.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ranks: Computes,
        piece: Callable[[int], bytes],
        vocab: int,
        ends: frozenset[int],
        deliver: Deliver,
    ) -> None:
        self.scheduler = scheduler
        self.steps = 0
        self.progress = time.monotonic()  # when the ranks last did something together
        self._ranks, self._piece, self._vocab = ranks, piece, vocab
        self._ends, self._deliver = ends, deliver
        self._inbox: queue.SimpleQueue[Request | Cancel | Leave] = queue.SimpleQueue()
        self._answers: dict[int, _Answer] = {}

    def submit(self, request: Request) -> None:
        """Queues a request; its events are delivered until Finished. From any thread."""
        self._inbox.put(request)

    def cancel(self, number: int) -> None:
        """Drops a request and frees its place; does nothing when it has ended. From any thread."""
        self._inbox.put(Cancel(number))

    def leave(self) -> None:
        """Ends `run` after the step in progress. From any thread."""
        self._inbox.put(Leave())

    def run(self) -> None:
        """Works until told to leave; raises what a rank's failure raises here."""
        while self._take_in():
            if self.scheduler.busy:
                self._step()
            else:
                self._ranks.pulse()
            self.progress = time.monotonic()
        self._ranks.leave()

    def _take_in(self) -> bool:
        """Empties the inbox, waiting for a while when there is nothing to do; False when told to leave."""
        waits = not self.scheduler.busy
        try:
            while True:
                item = self._inbox.get(block=waits, timeout=PULSE_SECONDS)
                waits = False
                if isinstance(item, Leave):
                    return False
                if isinstance(item, Cancel):
                    self._drop(item.number)
                else:
                    stream = TextStream(item.stopping.stop_strings)
                    self._answers[item.number] = _Answer(self.scheduler.add(item), stream)
        except queue.Empty:
            return True

    def _drop(self, number: int) -> None:
        answer = self._answers.pop(number, None)
        if answer:
            self.scheduler.remove(answer.sequence)

    def _step(self) -> None:
        shares = self.scheduler.plan()
        logits = self._ranks.step(Message.step(shares))
        self.scheduler.advance(shares)
        self.steps += 1
        self._deliver(self._events(shares, logits))

    def _events(self, shares: list[Share], logits: Tensor) -> list[tuple[int, Event]]:
        sampling = [share.sequence for share in shares if share.samples]
        requests = [sequence.request for sequence in sampling]
        noise = [uniform(_seed(s.request), 0, len(s.tokens)) for s in sampling]
        tokens = sample(
            logits[:, : self._vocab], [(r.sampling, n) for r, n in zip(requests, noise, strict=True)]
        )
        return [
            (request.number, event)
            for request, token in zip(requests, tokens, strict=True)
            for event in self._accept(self._answers[request.number], token)
        ]

    def _accept(self, answer: _Answer, token: int) -> list[Event]:
        """Adds a token to an answer; the events are at most a Delta and the end."""
        sequence, stream = answer.sequence, answer.stream
        sequence.tokens.append(token)
        answer.unsent.append(token)
        ends = token in self._ends and not sequence.request.stopping.ignore_end_of_sequence
        text = "" if ends else stream.feed(self._piece(token))
        reason = self._reason(sequence, ends, bool(stream.matched))
        if reason:
            text += stream.finish()
            reason = FinishReason.STOP if stream.matched else reason
        events: list[Event] = []
        if text:
            events.append(Delta(text, answer.unsent))
            answer.unsent = []
        if reason:
            events.append(Finished(reason, stream.matched, stream.text, sequence.sampled))
            self._drop(sequence.request.number)
        return events

    def _reason(self, sequence: Sequence, ends: bool, matched: bool) -> FinishReason | None:
        if matched:
            return FinishReason.STOP
        if ends:
            return FinishReason.END_OF_SEQUENCE
        if len(sequence.sampled) == sequence.request.stopping.max_new_tokens:
            return FinishReason.LENGTH
        if len(sequence.tokens) == self.scheduler.limits.context:
            return FinishReason.CONTEXT
        return None


def _seed(request: Request) -> int:
    assert request.sampling.seed is not None, "the front end draws a seed for every request that has none"
    return request.sampling.seed
