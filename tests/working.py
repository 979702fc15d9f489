"""Jobs for tests of the pool, which processes must be able to import."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass


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
