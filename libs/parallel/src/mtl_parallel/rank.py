"""A rank's own side of being launched: dying with its parents, meeting the other ranks, telling its end."""

import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # C names

import mtl_parallel.mesh  # noqa: F401 - so that the fork server has all of it before the first rank
from mtl_common.errors import ConfigError, MtlError, RankError
from mtl_parallel.launch import Entry, Failure, Place, Success

SPEAK_EVERY = 20.0  # seconds of waiting between two lines that say so
COLLECTIVE_LIMIT = timedelta(minutes=10)  # a peer that is alive and silent for longer counts as lost
MEETING_LIMIT = 300.0  # seconds for launched ranks to meet
PR_SET_PDEATHSIG = 1


def _wait_for_all(store: Store, here: Place, patience: float) -> None:
    names = [f"here/{rank}" for rank in range(here.world)]
    store.set(names[here.rank], "1")
    waited = 0.0
    while True:
        turn = min(SPEAK_EVERY, patience - waited)
        try:
            store.wait(names, timedelta(seconds=turn))
            return
        except dist.DistStoreError:
            waited += turn
        missing = [rank for rank in range(here.world) if not store.check([names[rank]])]
        present = [rank for rank in range(here.world) if rank not in missing]
        if missing and waited >= patience:
            raise RankError(
                f"rank {missing[0]} of {here.world} did not come within {waited:.0f} s; see what it printed"
            )
        if missing and here.rank == present[0]:  # one rank speaks for all
            print(
                f"waiting for rank {missing[0]} of {here.world} for {waited:.0f} s",
                file=sys.stderr,
                flush=True,
            )


def _store_of_environment(here: Place, patience: float) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, kept by torchrun's agent when there is one and by rank 0
    otherwise.
    """
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise ConfigError(
            "the ranks have no meeting place; "
            "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there"
        ) from None
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = TCPStore(
            host,
            port,
            is_master=here.rank == 0 and not agent,
            timeout=timedelta(seconds=patience),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        raise RankError(
            f"rank {here.rank} could not reach rank 0 at {host}:{port} within {patience:.0f} s"
        ) from error
    return PrefixStore(f"attempt {attempt}", store)


def join(here: Place, patience: float, store: Store | None = None) -> None:
    """Meets the other ranks of the world in the store and forms the default process group, unless that has
    been done.

    Raises RankError naming a rank that has not come after `patience` seconds.
    """
    if dist.is_initialized():
        return
    store = store or _store_of_environment(here, patience)
    _wait_for_all(store, here, patience)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=here.rank, world_size=here.world, timeout=COLLECTIVE_LIMIT
    )


def leave() -> None:
    """Takes the process group apart, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _die_with(launcher: multiprocessing.process.BaseProcess) -> None:
    launcher.join()
    os._exit(1)


def _settle(here: Place, threads: int) -> None:
    """Makes this process a rank: it dies with its parents, knows its place, leaves Ctrl-C to the launcher."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # at the end of the fork server, our parent
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    threading.Thread(target=_die_with, args=(launcher,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears it and decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.environ.update(
        RANK=str(here.rank),
        WORLD_SIZE=str(here.world),
        LOCAL_RANK=str(here.local),
        LOCAL_WORLD_SIZE=str(here.world),
    )
    # All ranks are on this machine, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    torch.set_num_threads(threads)


def _resolve(entry: Entry) -> Callable[..., Any]:
    if not isinstance(entry, str):
        return entry
    module, function = entry.split(":")
    resolved: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return resolved


def _echoes(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is the transport's complaint that a peer is gone."""
    if error is None:
        return False
    return isinstance(error, dist.DistError) or "gloo/" in str(error) or _echoes(error.__cause__)


def _failure(rank: int, error: Exception) -> Failure:
    unforeseen = RankError(f"rank {rank} failed: {type(error).__name__}: {error}")
    told = error if isinstance(error, MtlError) else unforeseen
    return Failure(rank, told, time.monotonic(), "".join(traceback.format_exception(error)), _echoes(error))


def run(here: Place, rendezvous: str, threads: int, payload: bytes, pipe: Connection) -> None:
    """Everything a launched rank does: settles, meets the others, runs the entry, reports."""
    _settle(here, threads)
    try:
        if here.world > 1:
            join(here, MEETING_LIMIT, FileStore(rendezvous, here.world))
        entry, args = pickle.loads(payload)
        report = pickle.dumps(Success(_resolve(entry)(*args)))
        leave()
        pipe.send_bytes(report)
    except Exception as error:
        pipe.send_bytes(pickle.dumps(_failure(here.rank, error)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # at once, whatever threads there are: the other ranks learn of it by our sockets
