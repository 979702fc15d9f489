"""Does pieces of work in several processes, and notices when one of them is gone or stands still.

Work whose parts only one process can find, as the blocks of a packed file, is shared all the same: who finds
a part leaves it to another process as long as few are waiting, and else does it at once.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from mtl_common.errors import MtlError, RankError
from mtl_common.log import duration

LOOK_EVERY = 0.5  # seconds between looks at the processes
STILL = 1800.0  # seconds without a sign of life from any process, after which they are given up
BEAT = 60.0  # seconds between signs of life of a process that is at a long piece of work
WAITING = 8  # parts at most that wait for a process: the one that found them holds them

Step = TypeVar("Step", covariant=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker(Protocol[Step]):
    """Does pieces of work, one after the other."""

    def run(self, task: Any) -> Iterator[Step]:
        """Does one; yields what each finished step stands for: an amount, or more."""


class Parts(Protocol):
    """How pieces of work fall into parts; it is sent to every process."""

    def most(self, tasks: Sequence[Any]) -> int:
        """How many processes may work at once."""

    def of(self, task: Any) -> Iterator[tuple[Any, bool]]:
        """The parts of a piece of work in order, and whether another process may do it."""


class Whole:
    """Pieces of work that are done as they are."""

    def most(self, tasks: Sequence[Any]) -> int:
        """One process for each."""
        return len(tasks)

    def of(self, task: Any) -> Iterator[tuple[Any, bool]]:
        """All of it."""
        yield task, False


WHOLE = Whole()


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


@dataclass(frozen=True)
class _Channels:
    """What processes have in common: an inbox of (task, whether a process left it), room in it, and events.

    Events are (process, what, more). There is room for so many parts that are left to others.
    """

    inbox: Any
    room: Any
    events: Any

    def leave(self, part: Any) -> bool:
        """Leaves a part of the work to another process, if there is room."""
        if not self.room.acquire(block=False):
            return False
        self.events.put((os.getpid(), "left", None))
        self.inbox.put((part, True))
        return True

    def take(self) -> tuple[Any, bool]:
        """The next piece of work, and whether it was left by a process."""
        task, left = self.inbox.get()
        if left:
            self.room.release()
        return task, left


def _serve(job: Job[Any], parts: Parts, channels: _Channels) -> None:
    """The life of one process, which the parent ends."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the fork server may be deaf to it
    # a process is one core's worth; libraries of ours would start a thread a core each
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    me, events = os.getpid(), channels.events
    keep_telling(lambda: events.put((me, "alive", None)))
    try:
        worker = job.worker()
        while True:
            task, left = channels.take()
            events.put((me, "begun", str(task)))
            for part, may_leave in parts.of(task):
                if not (may_leave and channels.leave(part)):
                    for step in worker.run(part):
                        events.put((me, "step", step))
            events.put((me, "done", left))
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


def _check_moving(since: float, at_work: dict[int, str]) -> None:
    """Raises RankError when nothing moved for long; tells what the processes are at."""
    if time.monotonic() - since > STILL:
        what = ", ".join(f"process {pid} is at {task}" for pid, task in at_work.items())
        raise RankError(
            f"no worker process has done anything for {duration(STILL)}: {what or 'none has begun'}; "
            "see whether its file can be read, and run again to continue"
        )


def _events(processes: Sequence[BaseProcess], events: Any, tasks: int) -> Iterator[Any]:
    """The steps of so many tasks, and of the parts that are left to others.

    A part may be told to be done before it is told to be left, but all that were left of a task are told
    before the task is done.
    """
    left, at_work, since = 0, dict[int, str](), time.monotonic()
    while tasks or left:
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
        elif what == "left":
            left += 1
        elif what == "done":
            tasks, left = (tasks, left - 1) if more else (tasks - 1, left)
            at_work.pop(pid, None)


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(10)
        if process.exitcode is None:
            process.kill()
            process.join(10)


def _in_processes(job: Job[Any], tasks: Sequence[Any], workers: int, parts: Parts) -> Iterator[Any]:
    context = _context()
    room = context.BoundedSemaphore(min(workers, WAITING))
    channels = _Channels(context.Queue(), room, context.Queue())
    for task in tasks:
        channels.inbox.put((task, False))
    processes = [
        context.Process(target=_serve, args=(job, parts, channels), daemon=True) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        yield from _events(processes, channels.events, len(tasks))
    finally:
        _stop(processes)
        for channel in (channels.inbox, channels.events):
            channel.cancel_join_thread()
            channel.close()


def run(job: Job[Step], tasks: Sequence[Any], workers: int, parts: Parts = WHOLE) -> Iterator[Step]:
    """Does all tasks; yields what each finished step stands for.

    One worker is this process. Raises what a task raised, and RankError when a process was killed, or when
    nothing moved anywhere for half an hour.
    """
    workers = min(workers, parts.most(tasks))
    if workers > 1:
        yield from _in_processes(job, tasks, workers, parts)
    else:
        worker = job.worker()
        for task in tasks:
            yield from worker.run(task)
