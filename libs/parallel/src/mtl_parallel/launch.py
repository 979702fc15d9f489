"""Ranks on this machine: started, watched, named when they fail, and never left behind.

`launch` forks ranks from a server process that has imported torch once, and waits for them. `start` connects
a rank to its group, whether it was launched here or by torchrun or srun; `finish` lets go of it. The
launching process itself needs no torch: nothing here imports it at the top. What goes between launcher and
rank is pickle over a private pipe.
"""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl_common.errors import ConfigError, MtlError, RankError
from mtl_common.layout import Layout

if TYPE_CHECKING:
    from mtl_parallel.mesh import Mesh

Entry = str | Callable[..., Any]  # "module:function", or a function that pickle can name


@dataclass(frozen=True)
class Place:
    """Which rank of which world this process is; `local` counts the ranks of one machine."""

    rank: int
    world: int
    local: int


def place() -> Place | None:
    """This process's place, as torchrun, srun or `launch` tells it; None when it stands alone."""
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if rank in os.environ and world in os.environ:
            return Place(int(os.environ[rank]), int(os.environ[world]), int(os.environ.get(local, "0")))
    return None


def joined() -> bool:
    """Whether something else (torchrun, srun, `launch`) started this process as one of its ranks."""
    return place() is not None


def start(layout: Layout, device: str = "auto", *, patience: float = 300.0) -> "Mesh":
    """Connects this rank to its group and returns its mesh; a process that stands alone gets a mesh of one.

    Says on stderr whom it waits for. Raises RankError when a rank has not come after `patience` seconds,
    ConfigError when the layout does not multiply out to the world size.
    """
    from mtl_parallel.mesh import Mesh, local_device
    from mtl_parallel.rank import join

    here = place()
    world = here.world if here else 1
    if world != layout.world:
        raise ConfigError(
            f"layout {layout} has {layout.world} ranks but the world has {world}; "
            "choose tp, pp and dp whose product is the world size"
        )
    placed = local_device(device)
    if here and world > 1:
        join(here, patience)
    return Mesh.create(layout, placed)


def finish() -> None:
    """Leaves the group that `start` joined."""
    from mtl_parallel.rank import leave

    leave()


@dataclass(frozen=True)
class Success:
    """What the entry returned on one rank."""

    result: Any


@dataclass(frozen=True)
class Failure:
    """How one rank ended badly, and when (monotonic); an `echo` only tells that another rank went away."""

    rank: int
    error: MtlError
    time: float
    traceback: str = ""
    echo: bool = False


class RankTraceback(Exception):
    """A rank's own traceback, as the cause of the error raised by its launcher."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def _killed(rank: int, code: int) -> Failure:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel does so when memory runs out)" if -code == signal.SIGKILL else ""
        return Failure(rank, RankError(f"rank {rank} was killed by {name}{hint}"), time.monotonic())
    told = f"rank {rank} ended with exit code {code} and gave no reason"
    return Failure(rank, RankError(told), time.monotonic())


def _verdict(failures: Sequence[Failure], world: int) -> MtlError:
    """The error of the rank that failed first, which it names unless every rank says the same."""
    first = min(failures, key=lambda failure: (failure.echo, failure.time))
    error = first.error
    everyone = len(failures) == world and len({str(failure.error) for failure in failures}) == 1
    if not isinstance(error, RankError) and not everyone:
        error = type(error)(f"rank {first.rank}: {error}")
    error.__cause__ = RankTraceback(first.traceback) if first.traceback else None
    return error


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """A process started meanwhile is born deaf to SIGTERM: the fork server must outlive the ranks."""
    multiprocessing.resource_tracker.ensure_running()  # unblocks SIGTERM when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ranks:
    """The ranks of one run, from start to end; leaving the `with` block ends whatever still runs.

    Args:
        entry: what every rank runs, called with `args`.
        world: how many ranks.
        args: arguments of the entry; pickled, so tensors are copied.
        threads: intra-op threads a rank computes with.
        grace: seconds that the other ranks have after one has failed, before they are killed.
        preload: modules that the fork server imports once for all ranks, beside torch.
    """

    def __init__(
        self,
        entry: Entry,
        world: int,
        args: Sequence[Any] = (),
        *,
        threads: int = 1,
        grace: float = 5.0,
        preload: Sequence[str] = (),
    ) -> None:
        self.world = world
        self._grace = grace
        self._stopped = False
        self._outcomes: dict[int, Success | Failure] = {}
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="mtl-ranks-")
        multiprocessing.forkserver.set_forkserver_preload(["mtl_parallel.rank", *preload])
        settings = (str(Path(self._folder.name, "rendezvous")), threads, pickle.dumps((entry, tuple(args))))
        with _sigterm_blocked():
            for rank in range(world):
                self._start(Place(rank, world, rank), settings)

    def _start(self, place: Place, settings: tuple[str, int, bytes]) -> None:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(place, *settings, theirs), name=f"rank {place.rank}")
        process.start()
        theirs.close()
        self._pipes[place.rank], self._processes[place.rank] = ours, process

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    @property
    def alive(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank, process in self._processes.items() if process.is_alive()]

    @property
    def pids(self) -> list[int | None]:
        """The process id of every rank."""
        return [process.pid for process in self._processes.values()]

    @property
    def results(self) -> list[Any]:
        """What the entry returned, by rank; None for a rank that was stopped."""
        return [
            outcome.result for _, outcome in sorted(self._outcomes.items()) if isinstance(outcome, Success)
        ]

    def poll(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds for news; True once every rank has ended well.

        When a rank has failed, waits for the others to end, kills those that have not after `grace` seconds,
        and raises the error of the rank that failed first, naming it.
        """
        self._collect(timeout)
        if not any(isinstance(outcome, Failure) for outcome in self._outcomes.values()):
            return not self.alive and len(self._outcomes) == self.world
        deadline = time.monotonic() + self._grace
        while self.alive and time.monotonic() < deadline:
            self._collect(0.1)
        self.kill()
        raise _verdict([o for o in self._outcomes.values() if isinstance(o, Failure)], self.world)

    def stop(self) -> None:
        """Asks every rank to finish what it is doing and leave (SIGTERM); `poll` goes on as before."""
        self._stopped = True
        for process in self._processes.values():
            process.terminate()

    def kill(self) -> None:
        """Ends every rank at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()

    def _collect(self, timeout: float) -> None:
        """Takes in what ranks report, and how those ended that report nothing."""
        wait([*self._pipes.values(), *(self._processes[rank].sentinel for rank in self.alive)], timeout)
        for rank, process in self._processes.items():
            code = process.exitcode  # looked at before the pipe, into which a rank reports before it ends
            if rank in self._pipes and self._pipes[rank].poll():
                with contextlib.suppress(EOFError, OSError):
                    self._outcomes[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                self._pipes.pop(rank).close()
            if code is not None and rank not in self._outcomes:
                asked = self._stopped and -code == signal.SIGTERM
                self._outcomes[rank] = Success(None) if asked else _killed(rank, code)


def _run(place: Place, rendezvous: str, threads: int, payload: bytes, pipe: Connection) -> None:
    from mtl_parallel.rank import run

    run(place, rendezvous, threads, payload, pipe)


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Turns SIGTERM and the first Ctrl-C into `stop`, and yields the list of signals that came."""
    came: list[int] = []

    def handle(number: int, _: object) -> None:
        if number == signal.SIGINT and number in came:
            raise KeyboardInterrupt
        came.append(number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(
    entry: Entry,
    world: int,
    args: Sequence[Any] = (),
    *,
    threads: int = 1,
    grace: float = 5.0,
    limit: float = float("inf"),
    patience: float = 600.0,
    preload: Sequence[str] = (),
) -> list[Any]:
    """Runs `entry(*args)` on `world` ranks and returns their results by rank.

    Results are unpickled here, which imports the modules of their classes.

    Ctrl-C and SIGTERM ask the ranks to leave, a second Ctrl-C ends them at once; the call then ends with
    KeyboardInterrupt or SystemExit(143).

    Args:
        entry: "module:function", or a function that pickle can name.
        world: how many ranks.
        args: arguments of the entry; pickled, so tensors are copied.
        threads: intra-op threads a rank computes with.
        grace: seconds that the other ranks have after one has failed, before they are killed.
        limit: seconds that the whole run may take.
        patience: seconds that ranks may take to leave when asked to.
        preload: modules that the fork server imports once for all ranks, beside torch.

    Raises:
        MtlError: of the kind that the first failing rank raised, naming the rank; RankError for any other
            exception, a
            rank that was killed, and a limit that was passed.
    """
    began = time.monotonic()
    with Ranks(entry, world, args, threads=threads, grace=grace, preload=preload) as ranks:
        asked: list[float] = []

        def stop() -> None:
            asked.append(time.monotonic())
            ranks.stop()

        with _signals(stop) as came:
            while not ranks.poll(0.5):
                now = time.monotonic()
                if now > began + limit or (asked and now > asked[0] + patience):
                    late = ", ".join(map(str, ranks.alive))
                    raise RankError(
                        f"rank {late} of {world} had not ended after {now - (asked or [began])[0]:.0f} s"
                    )
    if came:
        raise KeyboardInterrupt if came[0] == signal.SIGINT else SystemExit(128 + came[0])
    return ranks.results
