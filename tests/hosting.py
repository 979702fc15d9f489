"""Servers in a thread of the test's process, over the toy model or over a script in its place."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mtl_common import tokenizers
from mtl_common.errors import MtlError
from mtl_parallel.mesh import Mesh
from mtl_serve.config import Plan, ServeSettings
from mtl_serve.engine import Computes
from mtl_serve.host import Host
from mtl_serve.message import Message
from mtl_serve.rank import load
from mtl_serve.runner import Leader, Line

VOCAB = 300
PROMPT = 5  # tokens of every prompt that a script answers
SETTINGS = ServeSettings(port=0, sequences=4, queue=4, step_tokens=32, page_size=8)


class InThread:
    """A host on an event loop in a thread of its own."""

    def __init__(self, plan: Plan, ranks: Callable[[], Computes]) -> None:
        self.address = ""
        self.error: MtlError | None = None
        self._plan, self._ranks = plan, ranks
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        folder = self._plan.path / "tokenizer"
        self._host = Host(self._plan, tokenizers.load(folder), self._ranks, self._opened)
        try:
            await self._host.run()
        except MtlError as error:
            self.error = error
        finally:
            self._ready.set()

    def _opened(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._ready.set()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._host.stop)

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def serving(plan: Plan, ranks: Callable[[], Computes] | None = None) -> Iterator[InThread]:
    """A server in this process; over the plan's model when no other `ranks` are given."""

    def model() -> Computes:
        mesh = Mesh.single()
        return Leader(load(plan, mesh), Line(mesh.tp, plan.limits))

    server = InThread(plan, ranks or model)
    try:
        yield server
    finally:
        server.stop()
        server.stop()  # at once
        server.join()


@dataclass
class Script:
    """Answers every prompt with the same tokens, and keeps count."""

    tokens: list[int]
    pause: float = 0.0
    steps: int = 0
    left: bool = False
    hold: threading.Semaphore | None = None
    batches: list[int] = field(default_factory=list)

    def step(self, message: Message) -> Tensor:
        if self.hold:
            assert self.hold.acquire(timeout=20)
        time.sleep(self.pause)
        self.steps += 1
        self.batches.append(len(message.parts))
        rows = [part.cached + part.count for part in message.parts if part.samples]
        logits = torch.zeros(len(rows), VOCAB)
        for row, length in zip(logits, rows, strict=True):
            row[self.tokens[(length - PROMPT) % len(self.tokens)]] = 99.0
        return logits

    def pulse(self) -> None:
        pass

    def leave(self) -> None:
        self.left = True
