"""Does pieces of work in several processes, and notices when one of them is gone."""

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from mtl_common.errors import MtlError, RankError

LOOK_EVERY = 0.5  # seconds between looks at the processes


class Worker(Protocol):
    """Does pieces of work, one after the other."""

    def run(self, task: Any) -> Iterator[int]:
        """Does one; yields how much each finished step stands for."""


class Job(Protocol):
    """What all pieces of work have in common; it is sent to every process."""

    def worker(self) -> Worker:
        """One process's means to do the work."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _serve(job: Job, tasks: Any, events: Any) -> None:
    """The life of one process: tasks come until None; events are bytes done, a failure, or a last None."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # a process is one core's worth; libraries of ours would start a thread a core each
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        worker = job.worker()
        for task in iter(tasks.get, None):
            for done in worker.run(task):
                events.put(done)
        events.put(None)
    except Exception as error:
        told = (
            error
            if isinstance(error, MtlError | OSError)
            else RankError(f"a worker process failed: {error!r}")
        )
        told.add_note(traceback.format_exc())
        events.put(told)


def _context() -> ForkServerContext | SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # imported once, before the processes fork off; not pyarrow, whose allocator starts a thread
    context.set_forkserver_preload(["mtl_prep.work", "fastokens", "tokenizers"])
    return context


def _lost(processes: Sequence[BaseProcess]) -> None:
    """Raises RankError when a process was killed."""
    for process in processes:
        if process.exitcode:
            how = (
                f"by signal {-process.exitcode}"
                if process.exitcode < 0
                else f"with exit code {process.exitcode}"
            )
            raise RankError(
                f"a worker process ended {how}, perhaps for want of memory; run again to continue"
            )


def _events(processes: Sequence[BaseProcess], events: Any) -> Iterator[int]:
    running = len(processes)
    while running:
        try:
            event = events.get(timeout=LOOK_EVERY)
        except queue.Empty:
            _lost(processes)
            continue
        if isinstance(event, BaseException):
            raise event
        if event is None:
            running -= 1
        else:
            yield event


def _in_processes(job: Job, tasks: Sequence[Any], workers: int) -> Iterator[int]:
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
        for process in processes:
            process.terminate()
            process.join(10)
        for channel in (inbox, events):
            channel.cancel_join_thread()
            channel.close()


def run(job: Job, tasks: Sequence[Any], workers: int) -> Iterator[int]:
    """Does all tasks; yields the bytes (or tokens) that each finished step stands for.

    One worker is this process. Raises what a task raised, and RankError when a process was killed.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        yield from _in_processes(job, tasks, workers)
    else:
        worker = job.worker()
        for task in tasks:
            yield from worker.run(task)
