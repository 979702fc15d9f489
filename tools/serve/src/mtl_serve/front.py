"""Between the asyncio side of rank 0, which talks to clients, and the engine's thread, which computes.

It knows which requests are under way, refuses what cannot be taken now, and tells whether the server is
ready.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from enum import Enum

from mtl_common.errors import ServeError
from mtl_serve.engine import Engine, Event, Finished
from mtl_serve.request import MAX_SEED, Request, Sampling, Stopping


class State(Enum):
    """What the server is doing, as the sentence for those it cannot serve."""

    LOADING = "the server is loading the model; try again soon"
    READY = "the server is ready"
    DRAINING = "the server is about to stop and takes no new requests"
    LOST = "the server has lost a rank and is stopping"


class Unavailable(ServeError):
    """The server takes no requests now, or lost this one with a rank."""


class QueueFull(ServeError):
    """As many requests as the server takes are waiting already."""


class Front:
    """Requests under way, by number. Everything but `deliver` runs in the event loop's thread.

    Args:
        loop: the event loop.
        most: requests computed or waiting at once.
        changed: called when `state` has changed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, changed: Callable[[], None]) -> None:
        self.state = State.LOADING
        self._loop, self._most, self._changed = loop, most, changed
        self._engine: Engine | None = None
        self._last = 0
        self._queues: dict[int, asyncio.Queue[Event | Exception]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def active(self) -> int:
        """Requests under way."""
        return len(self._queues)

    def open(self, engine: Engine) -> None:
        """Starts to take requests for an engine."""
        self._engine = engine
        if self.state == State.LOADING:
            self._become(State.READY)

    def drain(self) -> None:
        """Takes no new requests from now on."""
        if self.state != State.LOST:
            self._become(State.DRAINING)

    def lose(self) -> None:
        """Fails every request under way: the ranks cannot compute any more."""
        self._become(State.LOST)
        for waiting in self._queues.values():
            waiting.put_nowait(Unavailable(State.LOST.value))

    async def drained(self) -> None:
        """Returns when no request is under way."""
        await self._empty.wait()

    def check(self) -> None:
        """Raises Unavailable or QueueFull when a new request would be refused now."""
        if self.state != State.READY:
            raise Unavailable(self.state.value)
        if self.active >= self._most:
            raise QueueFull(
                f"{self.active} requests are under way, as many as this server takes; try again later"
            )

    async def answer(
        self, prompt: Sequence[int], sampling: Sampling, stopping: Stopping
    ) -> AsyncGenerator[Event, None]:
        """The events of a new request; leaving the iterator early cancels it. Raises as `check`."""
        self.check()
        assert self._engine is not None
        self._last += 1
        request = Request(self._last, tuple(prompt), sampling, stopping)
        events = self._queues[request.number] = asyncio.Queue()
        self._empty.clear()
        self._engine.submit(request)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._engine.cancel(request.number)
            del self._queues[request.number]
            if not self._queues:
                self._empty.set()

    def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        """Passes the events of one step on; called in the engine's thread."""
        if events:
            self._loop.call_soon_threadsafe(self._hand_out, events)

    def _hand_out(self, events: Sequence[tuple[int, Event]]) -> None:
        for number, event in events:
            if number in self._queues:  # it may have been cancelled meanwhile
                self._queues[number].put_nowait(event)

    def _become(self, state: State) -> None:
        self.state = state
        self._changed()


def with_seed(sampling: Sampling) -> Sampling:
    """The same with a seed, drawn when there is none."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbelow(MAX_SEED + 1))
