"""What can stop a run from outside, a signal or the disk, told as one sentence; the run can be continued."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mtl_common.errors import DataError, MtlError

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "allow larger files, or choose a smaller --shard-tokens",
    errno.EACCES: "change its permissions",
    errno.EPERM: "change its permissions",
    errno.EROFS: "choose a file system that can be written",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.EIO: "see to the disk",
    errno.ESTALE: "see to the file server",
}


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(MtlError):
    """A signal stopped the run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; run again to continue")
        self.exit_code = 128 + number


class _Stop(BaseException):
    """Carries a signal up to where the run began."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stop(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # who asks twice does not want to wait
    raise _Stop(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Makes SIGINT and SIGTERM end what is inside in good order; raises StoppedError."""
    before = {number: signal.signal(number, _stop) for number in SIGNALS}
    try:
        yield
    except _Stop as stop:
        raise StoppedError(stop.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Holds signals back, for libraries that cannot bear an exception; what it gives lets one through."""
    came: list[int] = []

    def check() -> None:
        if came:
            raise _Stop(came[0])

    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def disk_told(out: Path) -> Iterator[None]:
    """Raises DataError for a full or forbidden disk, with the path (or `out` if unknown) and a remedy."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        reason = os.strerror(error.errno or 0).lower()
        place = error.filename2 or error.filename or out  # of a copy the first is where it came from
        raise DataError(f"{place}: {reason}; {remedy}, and run again to continue") from error
