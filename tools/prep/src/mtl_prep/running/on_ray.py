"""The same pieces of work on Ray, here or on a cluster: tasks of a core each, done again when they are lost.

All machines see the corpus and the bins under the same paths. What a process had finished before it died is
in the journal, so its task, given to another one, is soon done.
"""

import importlib
import logging
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mtl_common.errors import DataError, RankError, UsageError
from mtl_common.log import duration
from mtl_prep.running.pieces import WORK
from mtl_prep.running.pool import LOOK_EVERY, STILL, WHOLE, Job, Parts, Worker, keep_telling, told
from mtl_prep.running.trouble import deferred

RETRIES = 3  # of a task whose process or machine was lost
ANSWERS = 60.0  # seconds for Ray to say whether it is healthy
LATE = 20.0  # seconds after which a file that another machine wrote is seen
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


@dataclass(frozen=True)
class Shared:
    """Where the job and the collected steps of a run are in Ray.

    `directory` is the one that relative paths start from, `mark` a file that every machine should see.
    """

    job: Any
    steps: Any
    directory: str
    mark: Path


def _check_seen(mark: Path) -> None:
    """Raises UsageError on a machine that does not see what the run writes."""
    until = time.monotonic() + LATE
    while not mark.exists():
        if time.monotonic() > until:
            raise UsageError(
                f"{mark.parent.parent} is not the same there; choose an --out that all machines share, under "
                "the same path"
            )
        time.sleep(0.5)


@lru_cache(maxsize=1)
def _worker(shared: Shared) -> Worker[Any]:
    """The means of this process to do the work: made once for many tasks."""
    with suppress(OSError):  # paths that lie elsewhere do not need it
        os.chdir(shared.directory)
    _check_seen(shared.mark)
    keep_telling(shared.steps.put.remote)
    worker: Worker[Any] = _ray().get(shared.job).worker()
    return worker


def _placed(error: Exception) -> Exception:
    """What a user of one machine would be told, with the machine."""
    if type(error) in (DataError, UsageError):
        return type(error)(f"on machine {socket.gethostname()}: {error}").with_traceback(error.__traceback__)
    return error


def do_task(shared: Shared, task: Any) -> Exception | None:
    """Does one piece of work in a process of Ray's; gives the error that ended it, if one did."""
    ray = _ray()
    try:
        for step in _worker(shared).run(task):
            ray.get(shared.steps.put.remote(step))
    except Exception as error:
        return told(_placed(error))
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


def _check_moving(since: float, tasks: int) -> None:
    """Raises RankError when nothing was finished for long."""
    if time.monotonic() - since > STILL:
        raise RankError(
            f"Ray finished nothing for {duration(STILL)}, with {tasks} tasks at work or waiting for a core; "
            "see whether it has one that is free, and run again to continue"
        )


class OnRay:
    """Ray, connected to; up to `workers` pieces of work at a time, a core each."""

    def __init__(self, workers: int, out: Path, check: Callable[[], None]) -> None:
        """`check` is called now and then, and may raise. `out` has a journal when work is to be done."""
        ray = _ray()
        self._workers, self._check = workers, check
        self._mark = out / WORK / f"seen-{uuid.uuid4().hex}"
        # where this process is: it is lost when this is
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._steps = ray.remote(num_cpus=0, scheduling_strategy=here)(Steps).remote()

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
        self._mark.touch()
        try:
            yield from self._all(Shared(_ray().put(job), self._steps, os.getcwd(), self._mark), tasks)
        finally:
            with suppress(OSError):  # of a disk that is gone, which is told otherwise
                self._mark.unlink()

    def _all(self, shared: Shared, tasks: Sequence[Any]) -> Iterator[Any]:
        ray = _ray()
        do = ray.remote(num_cpus=1, max_retries=RETRIES)(do_task)
        left, at_work, since = list(reversed(tasks)), set[Any](), time.monotonic()
        while left or at_work:
            while left and len(at_work) < self._workers:
                at_work.add(do.remote(shared, left.pop()))
            ready, _ = ray.wait(list(at_work), timeout=LOOK_EVERY)
            for error in map(_got, ready):
                if error is not None:
                    raise error
            at_work -= set(ready)
            found, alive = _got(self._steps.take.remote())
            since = time.monotonic() if ready or alive else since
            self._check()
            _check_moving(since, len(at_work))
            yield from found


def unhealthy(address: str) -> str | None:
    """What is wrong with a cluster, as Ray's own check says, which ends; connecting would try for minutes."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS)
    except subprocess.TimeoutExpired:
        return f"it says nothing for {duration(ANSWERS)}"
    if done.returncode == 0:
        return None
    last = done.stderr.strip().rpartition("\n")[2] or "it is not healthy"
    return re.sub(r"^[\w.]+: |\.( .*)?$", "", last)


def _check_answers(address: str) -> None:
    """Raises UsageError when no Ray is at an address."""
    client = address.startswith("ray://")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        reason: str | None = (error.strerror or "it does not answer").lower()
    else:
        reason = None if client else unhealthy(address)
    if reason:
        raise UsageError(f"no Ray at {address}: {reason}; see --ray-address")


@contextmanager
def connected(workers: int, address: str | None, out: Path) -> Iterator[OnRay]:
    """Ray at an address, or started here for as long as the context lasts, for a run that writes `out`.

    Raises UsageError when Ray is not installed or does not answer.
    """
    ray = _ray()
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
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
            yield OnRay(workers or max(int(ray.cluster_resources().get("CPU", 1)), 1), out.absolute(), check)
    finally:
        ray.shutdown()
