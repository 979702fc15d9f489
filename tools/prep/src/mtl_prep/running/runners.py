"""Where pieces of work are done: in processes of this machine, or on Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mtl_common.config import nearest
from mtl_common.errors import UsageError
from mtl_prep.running import pool

ENGINES = ("local", "ray")

Step = TypeVar("Step")


class Runner(Protocol):
    """Does pieces of work with so many `workers` at a time."""

    @property
    def workers(self) -> int:
        """How many pieces of work go on at once."""

    @property
    def readers(self) -> int:
        """How many processes read through a large packed file, each for its stripes of it."""

    def run(
        self, job: pool.Job[Step], tasks: Sequence[Any], parts: pool.Parts = pool.WHOLE
    ) -> Iterator[Step]:
        """Does all tasks; yields what each finished step stands for. It may hand `parts` of them about."""


@dataclass(frozen=True)
class Local:
    """Processes of this machine; one reads a packed file and hands its blocks to the others."""

    workers: int
    readers: int = 1

    def run(
        self, job: pool.Job[Step], tasks: Sequence[Any], parts: pool.Parts = pool.WHOLE
    ) -> Iterator[Step]:
        """See `pool.run`."""
        return pool.run(job, tasks, self.workers, parts)


@contextmanager
def runner(engine: str, workers: int, address: str | None, out: Path) -> Iterator[Runner]:
    """The runner of that name for a run that writes `out`; raises UsageError for an unknown one or no Ray.

    No `workers` are as many as Ray has cores. `address` is that of a Ray cluster; without it Ray starts here.
    """
    if engine == "local":
        yield Local(workers)
    elif engine == "ray":
        from mtl_prep.running.on_ray import connected

        with connected(workers, address, out) as found:
            yield found
    else:
        raise UsageError(f"no --engine is called {engine}{nearest(engine, ENGINES)}; there are local and ray")
