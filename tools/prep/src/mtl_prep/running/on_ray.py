"""The same pieces of work on Ray: processes that it starts, here or on a cluster, and replaces when they die.

All machines see the corpus and the bins under the same paths. What a process had finished before it died is
in the journal, so its task, given to the one that replaces it, is soon done.
"""

import importlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mtl_common.errors import RankError, UsageError
from mtl_common.log import duration
from mtl_prep.running.pool import LOOK_EVERY, STILL, WHOLE, Job, Parts, Worker, keep_telling, told
from mtl_prep.running.trouble import deferred

RETRIES = 3  # of a task whose process died, and new processes in place of one
OBJECT_STORE = 80 << 20  # bytes; tasks and steps are small, and Ray takes a third of the memory unasked

Step = TypeVar("Step")


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("--engine ray needs Ray; pip install 'mtl-prep[ray]' brings it") from None


class Steps:
    """Collects the steps of all processes until the driver asks for them."""

    def __init__(self) -> None:
        self._steps: list[Any] = []
        self._alive = True

    def put(self, *steps: Any) -> None:
        """Takes some in; none is a sign of life."""
        self._steps += steps
        self._alive = True

    def take(self) -> tuple[list[Any], bool]:
        """Those since the last call, and whether there was a sign of life."""
        found = self._steps, self._alive
        self._steps, self._alive = [], False
        return found


class Doer:
    """One process of Ray's that does pieces of work."""

    def __init__(self) -> None:
        self._job: Any = None
        self._worker: Worker[Any] | None = None

    def do(self, shared: Sequence[Any], task: Any) -> Exception | None:
        """Does one; gives the error that ended it, if one did. `shared` tells where job and steps are."""
        ray = _ray()
        job, steps = shared
        try:
            if self._worker is None:
                keep_telling(steps.put.remote)
            if self._worker is None or self._job != job:
                self._job, self._worker = job, ray.get(job).worker()
            for step in self._worker.run(task):
                ray.get(steps.put.remote(step))
        except Exception as error:
            return told(error)
        return None


def _got(reference: Any) -> Any:
    """What a call to a process gave; raises RankError when Ray gave it up."""
    ray = _ray()
    try:
        return ray.get(reference, timeout=STILL)
    except ray.exceptions.RayError as lost:
        raise RankError(
            f"a process of Ray's was lost {RETRIES + 1} times, perhaps for want of memory "
            f"({type(lost).__name__}); run again to continue"
        ) from None


def _check_moving(since: float, tasks: int, processes: int) -> None:
    """Raises RankError when nothing was finished for long."""
    if time.monotonic() - since > STILL:
        raise RankError(
            f"Ray finished nothing for {duration(STILL)}, with {tasks} tasks on {processes} processes; "
            "see whether it has so many cores, and run again to continue"
        )


class OnRay:
    """Ray, connected to; up to `workers` processes of one core each, which stay from stage to stage."""

    def __init__(self, workers: int, check: Callable[[], None]) -> None:
        """`check` is called now and then, and may raise."""
        self._workers, self._check = workers, check
        self._doers: list[Any] = []
        self._steps = _ray().remote(num_cpus=0)(Steps).remote()

    @property
    def workers(self) -> int:
        """How many pieces of work go on at once."""
        return self._workers

    @property
    def readers(self) -> int:
        """All: processes may lie on other machines, so nothing is handed about."""
        return self._workers

    def run(self, job: Job[Step], tasks: Sequence[Any], parts: Parts = WHOLE) -> Iterator[Step]:
        """Does all tasks; yields what each finished step stands for.

        Raises what a task raised, and RankError when Ray gives a task up or finishes nothing for long.
        """
        ray = _ray()
        kind = ray.remote(num_cpus=1, max_restarts=RETRIES, max_task_retries=RETRIES)(Doer)
        count = min(self._workers, len(tasks))
        self._doers += [kind.remote() for _ in range(count - len(self._doers))]
        # a new process in place of one that died asks for the job again, so it stays in Ray's store
        yield from self._all(self._doers[:count], (ray.put(job), self._steps), tasks)

    def _all(self, doers: Sequence[Any], shared: Sequence[Any], tasks: Sequence[Any]) -> Iterator[Any]:
        ray, (_, steps) = _ray(), shared
        left, idle, at_work, since = list(reversed(tasks)), list(doers), dict[Any, Any](), time.monotonic()
        while left or at_work:
            while left and idle:
                doer = idle.pop()
                at_work[doer.do.remote(shared, left.pop())] = doer
            ready, _ = ray.wait(list(at_work), timeout=LOOK_EVERY)
            for error in map(_got, ready):
                if error is not None:
                    raise error
            idle += [at_work.pop(reference) for reference in ready]
            found, alive = _got(steps.take.remote())
            since = time.monotonic() if ready or alive else since
            self._check()
            _check_moving(since, len(at_work), len(doers))
            yield from found


def _check_answers(address: str | None) -> None:
    """Raises UsageError when nothing listens at an address; Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            reason = error.strerror or "it does not answer"
            raise UsageError(f"no Ray at {address}: {reason.lower()}; see --ray-address") from None


@contextmanager
def connected(workers: int, address: str | None) -> Iterator[OnRay]:
    """Ray at an address, or started here for as long as the context lasts.

    Raises UsageError when Ray is not installed or does not answer.
    """
    ray = _ray()
    address = address or os.environ.get("RAY_ADDRESS")
    _check_answers(address)
    here = {"num_cpus": workers or None, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    try:
        ray.init(
            address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else here)
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at {address}" if address else "here"
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"Ray does not answer {where} ({first}); see --ray-address") from None
    try:
        with deferred() as check:
            yield OnRay(workers or max(int(ray.cluster_resources().get("CPU", 1)), 1), check)
    finally:
        ray.shutdown()
