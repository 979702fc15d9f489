"""Who computes what in the next step. Pure Python, without torch; only rank 0 has one.

There is one kind of step: a flat batch of tokens. Every running sequence feeds the tokens whose keys and
values are not cached yet, which is one token for a sequence that decodes and a chunk of the prompt for one
that starts.
"""

from collections import deque
from dataclasses import dataclass, field

from mtl_serve.pages import Pages, pages_for
from mtl_serve.request import Request


@dataclass(frozen=True)
class Limits:
    """What one step and one cache hold. `step_tokens` is not below `sequences`, so that every sequence can
    decode.
    """

    step_tokens: int
    sequences: int
    context: int
    page_size: int
    pages: int  # not below what one full context needs


@dataclass(eq=False)
class Sequence:
    """A request under way: its tokens so far, prompt first, and how many of them are cached."""

    request: Request
    tokens: list[int]
    cached: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Tokens to feed before the next one can be sampled."""
        return len(self.tokens) - self.cached

    @property
    def sampled(self) -> list[int]:
        """The new tokens."""
        return self.tokens[len(self.request.prompt) :]


@dataclass(frozen=True)
class Share:
    """A sequence's part of a step: `count` of its tokens from `sequence.cached` on.

    `samples` says that the part reaches the last token, so that the next one can be sampled.
    """

    sequence: Sequence
    count: int
    samples: bool


class Scheduler:
    """Waiting and running sequences, oldest first, and the pages they hold."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pages = Pages(limits.pages)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> Sequence:
        """Queues a request whose prompt fits the context."""
        sequence = Sequence(request, list(request.prompt))
        self.waiting.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, finished or not, and frees its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._vacate(sequence)

    def plan(self) -> list[Share]:
        """The next step, at most `step_tokens` long; empty only when nothing waits or runs.

        Sequences that decode come first, so that no prompt stalls a stream; what is left of the budget goes
        to prompts.
        """
        for sequence in list(self.running):
            if sequence in self.running:  # it may have been preempted for an older one
                self._grow(sequence)
        decoding = [Share(s, 1, samples=True) for s in self.running if s.pending == 1]
        budget = self.limits.step_tokens - len(decoding)
        starting = [s for s in self.running if s.pending > 1]
        shares = []
        while budget and (starting or self._admit(starting)):
            sequence = starting.pop(0)
            count = min(budget, sequence.pending)
            shares.append(Share(sequence, count, samples=count == sequence.pending))
            budget -= count
        return decoding + shares

    def advance(self, shares: list[Share]) -> None:
        """Notes that a planned step has been computed."""
        for share in shares:
            share.sequence.cached += share.count

    def _pages_wanted(self, sequence: Sequence) -> int:
        return pages_for(len(sequence.tokens), self.limits.page_size) - len(sequence.pages)

    def _grow(self, sequence: Sequence) -> None:
        """Gives a running sequence the pages its tokens need, at the cost of the youngest if need be."""
        while (wanted := self._pages_wanted(sequence)) > self.pages.free:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return
        if wanted:
            sequence.pages += self.pages.allocate(wanted, sequence.pages)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue; its tokens, sampled ones too, will be computed again."""
        self.running.remove(sequence)
        self._vacate(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _vacate(self, sequence: Sequence) -> None:
        self.pages.release(sequence.pages)
        sequence.pages.clear()
        sequence.cached = 0

    def _admit(self, starting: list[Sequence]) -> bool:
        """Starts the oldest waiting sequence if there is room for all its tokens and a page for every
        running one.
        """
        if not self.waiting or len(self.running) == self.limits.sequences:
            return False
        wanted = self._pages_wanted(self.waiting[0])
        if wanted + len(self.running) > self.pages.free:
            return False
        sequence = self.waiting.popleft()
        sequence.pages = self.pages.allocate(wanted)
        self.running.append(sequence)
        starting.append(sequence)
        return True
