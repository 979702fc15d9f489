"""Does pieces of work in several processes, and notices when one of them is gone or stands still."""

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from mtl_common.errors import MtlError, RankError
from mtl_common.log import duration

LOOK_EVERY = 0.5  # seconds between looks at the processes
STILL = 1800.0  # seconds without a finished step anywhere, after which the processes are given up

Step = TypeVar("Step", covariant=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker(Protocol[Step]):
    """Does pieces of work, one after the other."""

    def run(self, task: Any) -> Iterator[Step]:
        """Does one; yields what each finished step stands for: an amount, or more."""


class Job(Protocol[Step]):
    """What all pieces of work have in common; it is sent to every process."""

    def worker(self) -> Worker[Step]:
        """One process's means to do the work."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def told(error: Exception) -> Exception:
    """What a failed worker tells the process that waits for it: errors of ours as they are."""
    ours = isinstance(error, MtlError | OSError)
    found = error if ours else RankError(f"a worker process failed: {error!r}")
    found.add_note(traceback.format_exc())
    return found


def _serve(job: Job[Any], tasks: Any, events: Any) -> None:
    """The life of one process: tasks come until None; events are (process, task begun, step or failure)."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # a process is one core's worth; libraries of ours would start a thread a core each
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    me = os.getpid()
    try:
        worker = job.worker()
        for task in iter(tasks.get, None):
            events.put((me, task, None))
            for step in worker.run(task):
                events.put((me, task, step))
        events.put((me, None, None))
    except Exception as error:
        events.put((me, None, told(error)))


def _context() -> ForkServerContext | SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once, before the processes fork off; not pyarrow, whose allocator starts a thread
    context.set_forkserver_preload(["mtl_prep.work", "fastokens", "tokenizers"])
    return context


def _check_alive(processes: Sequence[BaseProcess]) -> None:
    """Raises RankError when a process was killed."""
    for process in processes:
        if process.exitcode:
            by_signal = process.exitcode < 0
            how = f"by signal {-process.exitcode}" if by_signal else f"with exit code {process.exitcode}"
            raise RankError(
                f"a worker process ended {how}, perhaps for want of memory; run again to continue"
            )


def _check_moving(since: float, at_work: dict[int, Any]) -> None:
    """Raises RankError when nothing was finished for long; tells what the processes are at."""
    if time.monotonic() - since > STILL:
        what = ", ".join(f"process {pid} is at {task}" for pid, task in at_work.items())
        raise RankError(
            f"no worker process finished anything for {duration(STILL)}: {what or 'none has begun'}; "
            "see whether its file can be read, and run again to continue"
        )


def _events(processes: Sequence[BaseProcess], events: Any) -> Iterator[Any]:
    running, at_work, since = len(processes), dict[int, Any](), time.monotonic()
    while running:
        try:
            pid, task, step = events.get(timeout=LOOK_EVERY)
        except queue.Empty:
            _check_alive(processes)
            _check_moving(since, at_work)
            continue
        since, at_work[pid] = time.monotonic(), task
        if isinstance(step, BaseException):
            raise step
        if task is None:
            running -= 1
            del at_work[pid]
        elif step is not None:
            yield step


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(10)
        if process.exitcode is None:
            process.kill()
            process.join(10)


def _in_processes(job: Job[Any], tasks: Sequence[Any], workers: int) -> Iterator[Any]:
    context = _context()
    inbox, events = context.Queue(), context.Queue()
    for task in [*tasks, *[None] * workers]:
        inbox.put(task)
    processes = [
        context.Process(target=_serve, args=(job, inbox, events), daemon=True) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        yield from _events(processes, events)
    finally:
        _stop(processes)
        for channel in (inbox, events):
            channel.cancel_join_thread()
            channel.close()


def run(job: Job[Step], tasks: Sequence[Any], workers: int) -> Iterator[Step]:
    """Does all tasks; yields what each finished step stands for.

    One worker is this process. Raises what a task raised, and RankError when a process was killed or nothing
    was finished anywhere for half an hour.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        yield from _in_processes(job, tasks, workers)
    else:
        worker = job.worker()
        for task in tasks:
            yield from worker.run(task)
