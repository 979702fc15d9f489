"""Rank 0 as the host: gRPC on the event loop, the engine in one thread beside it, from the first message to
the last.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from mtl_common.errors import RankError
from mtl_common.tokenizers import Tokenizer
from mtl_serve.config import Plan
from mtl_serve.engine import Computes, Engine
from mtl_serve.front import Front, State
from mtl_serve.prompts import Prompts
from mtl_serve.scheduler import Scheduler
from mtl_serve.server import Generation, Health, Model, listen

STALL_SECONDS = 60.0  # ranks that did nothing together for so long are not healthy
LOOK_SECONDS = 1.0
FAREWELL_SECONDS = 1.0  # for answers and health reports that are on their way


async def _until(
    future: asyncio.Future[Any], *events: Coroutine[Any, Any, Any], timeout: float | None = None
) -> None:
    """Returns when the future is done, one of the events has come, or the time is up."""
    waits = [asyncio.create_task(event) for event in events]
    await asyncio.wait([future, *waits], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


class Host:
    """One server, to be made and run in its event loop.

    Args:
        plan: what to serve.
        tokenizer: of the model.
        load: makes the ranks' end, in the engine's thread; may take minutes.
        ready: called with the port when requests are taken.
    """

    def __init__(
        self, plan: Plan, tokenizer: Tokenizer, load: Callable[[], Computes], ready: Callable[[int], None]
    ) -> None:
        self._plan, self._tokenizer, self._load, self._ready = plan, tokenizer, load, ready
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, "engine")
        self._changed, self._asked, self._forced = asyncio.Event(), asyncio.Event(), asyncio.Event()
        most = plan.limits.sequences + plan.settings.queue
        self._front = Front(self._loop, most, self._changed.set)
        self._generation, self._health = Generation(self._front), Health()

    async def run(self) -> None:
        """Serves until asked to stop. Raises ServeError for a port in use, RankError when a rank is lost."""
        settings = self._plan.settings
        server, port = await listen(self._generation, self._health, settings.host, settings.port)
        try:
            engine = self._engine(await self._loop.run_in_executor(self._worker, self._load))
            model = Model(Prompts(self._tokenizer), self._plan.shape.vocab, self._plan.limits.context)
            self._generation.open(model)
            self._front.open(engine)
            self._ready(port)
            watch = asyncio.create_task(self._watch(engine))
            await self._serve(engine, server)
            watch.cancel()
        finally:
            await self._health.tell(False)
            await server.stop(FAREWELL_SECONDS)

    def _engine(self, ranks: Computes) -> Engine:
        tokenizer = self._tokenizer
        ends = frozenset() if tokenizer.eod is None else frozenset({tokenizer.eod})
        scheduler = Scheduler(self._plan.limits)
        return Engine(scheduler, ranks, tokenizer.piece, tokenizer.vocab_size, ends, self._front.deliver)

    def stop(self) -> None:
        """Asks the server to finish what is under way and end; asked again, it ends at once."""
        (self._forced if self._asked.is_set() else self._asked).set()

    async def _watch(self, engine: Engine) -> None:
        """Keeps the health status true."""
        while True:
            moving = time.monotonic() - engine.progress < STALL_SECONDS
            await self._health.tell(moving and self._front.state == State.READY)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)

    async def _serve(self, engine: Engine, server: grpc.aio.Server) -> None:
        running = self._loop.run_in_executor(self._worker, engine.run)
        await _until(running, self._asked.wait())
        if not running.done():
            self._front.drain()
            patience = self._plan.settings.drain_seconds
            await _until(running, self._front.drained(), self._forced.wait(), timeout=patience)
            await server.stop(FAREWELL_SECONDS)  # cancels what is left
            engine.leave()
        try:
            await running
        except Exception as error:
            self._front.lose()
            raise RankError(f"the ranks lost one another: {error}") from error
