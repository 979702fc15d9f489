"""Does pieces of work in several processes, and notices when one of them is gone or stands still."""

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from mtl_common.errors import MtlError, RankError
from mtl_common.log import duration

LOOK_EVERY = 0.5  # seconds between looks at the processes
STILL = 1800.0  # seconds without a sign of life from any process, after which they are given up
BEAT = 60.0  # seconds between signs of life of a process that is at a long piece of work

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


def keep_telling(alive: Callable[[], None]) -> None:
    """Calls `alive` from a thread about once a minute, if this process has used its core meanwhile."""

    def watch() -> None:
        before = time.process_time()
        while True:
            time.sleep(BEAT)
            now = time.process_time()
            if now - before > BEAT / 100:
                alive()
            before = now

    threading.Thread(target=watch, daemon=True).start()


def told(error: Exception) -> Exception:
    """What a failed worker tells the process that waits for it: errors of ours as they are."""
    ours = isinstance(error, MtlError | OSError)
    found = error if ours else RankError(f"a worker process failed: {error!r}")
    found.add_note(traceback.format_exc())
    return found


def _serve(job: Job[Any], tasks: Any, events: Any) -> None:
    """The life of one process: tasks come until None; events are (process, what, more)."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # a process is one core's worth; libraries of ours would start a thread a core each
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    me = os.getpid()
    keep_telling(lambda: events.put((me, "alive", None)))
    try:
        worker = job.worker()
        for task in iter(tasks.get, None):
            events.put((me, "begun", task))
            for step in worker.run(task):
                events.put((me, "step", step))
        events.put((me, "done", None))
    except Exception as error:
        events.put((me, "failed", told(error)))


def _context() -> ForkServerContext | SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once, before the processes fork off; not pyarrow, whose allocator starts a thread
    context.set_forkserver_preload(["mtl_prep.running.work", "fastokens", "tokenizers"])
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
    """Raises RankError when nothing moved for long; tells what the processes are at."""
    if time.monotonic() - since > STILL:
        what = ", ".join(f"process {pid} is at {task}" for pid, task in at_work.items())
        raise RankError(
            f"no worker process has done anything for {duration(STILL)}: {what or 'none has begun'}; "
            "see whether its file can be read, and run again to continue"
        )


def _events(processes: Sequence[BaseProcess], events: Any) -> Iterator[Any]:
    running, at_work, since = len(processes), dict[int, Any](), time.monotonic()
    while running:
        try:
            pid, what, more = events.get(timeout=LOOK_EVERY)
        except queue.Empty:
            _check_alive(processes)
            _check_moving(since, at_work)
            continue
        since = time.monotonic()
        if what == "failed":
            raise more
        if what == "step":
            yield more
        elif what == "begun":
            at_work[pid] = more
        elif what == "done":
            running -= 1
            at_work.pop(pid, None)


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

    One worker is this process. Raises what a task raised, and RankError when a process was killed, or when
    nothing moved anywhere for half an hour.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        yield from _in_processes(job, tasks, workers)
    else:
        worker = job.worker()
        for task in tasks:
            yield from worker.run(task)
