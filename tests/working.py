"""Jobs for tests of the pool, which processes must be able to import."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtl_prep.corpus.units import Reading, ReadTask, Stripe, read
from mtl_prep.journal import Journal
from mtl_prep.running.handing import Handing


@dataclass(frozen=True)
class Odd:
    """A job whose tasks say what happens: a number of steps, or "hang", "die", "raise"."""

    def worker(self) -> "Odd":
        """Itself."""
        return self

    def run(self, task: int | str) -> Iterator[int]:
        """Does what the task says."""
        if task == "hang":
            time.sleep(1000)
        elif task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif task == "raise":
            raise OSError(28, "No space left on device", "some/file")
        else:
            yield from range(int(task))


@dataclass(frozen=True)
class Together:
    """A job that counts the texts of units; no process finishes one before a second process has begun one."""

    reading: Reading
    directory: Path

    def worker(self) -> "Together":
        """Itself."""
        return self

    def run(self, task: ReadTask) -> Iterator[tuple[str, int, int]]:
        """Yields the name of each unit, its texts and the process that read them."""
        journal = Journal(self.directory)
        for unit in read(task, self.reading, journal):
            (self.directory / f"began-{os.getpid()}").touch()
            until = time.monotonic() + 60
            while len(list(self.directory.glob("began-*"))) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            journal.write(unit.name, {})
            yield unit.name, len(unit.documents.texts), os.getpid()


class Noting(Handing):
    """Hands blocks on, and notes every reading of a file."""

    def of(self, task: Any) -> Iterator[tuple[Any, bool]]:
        """See `Handing`."""
        if isinstance(task, Stripe):
            (self._directory / f"read-{os.getpid()}-{time.monotonic_ns()}").touch()
        yield from super().of(task)


class Ones:
    """A number of steps as so many parts of one step."""

    def most(self, tasks: Sequence[int]) -> int:
        """One process for each step."""
        return sum(tasks)

    def of(self, task: int) -> Iterator[tuple[int, bool]]:
        """See `pool.Parts`."""
        yield from [(1, task > 1)] * task
