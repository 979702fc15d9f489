"""Files that are reached over a network: read in ranges that grow while a file is read on.

Networks and stores fail now and then: what fails is done again, from where it was, for a minute.
"""

import io
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mtl_common.errors import DataError, MtlError
from mtl_common.log import duration

PATIENCE = 60.0  # seconds for which a read is done again
AT_FIRST = 8.0  # for which a question is asked again before that, when the address may be wrong
FIRST_WAIT = 0.25  # seconds; twice as long after every failure
FIRST_RANGE = 1 << 16  # bytes
WIDEST_RANGE = 1 << 23
NO_ENTRY = re.compile(r"Credential|Profile|Token|Unauthorized|Forbidden")  # errors that stay, by their names

Result = TypeVar("Result")


@dataclass(frozen=True)
class Facts:
    """The size of a file, and what changes when its content does: a time, or a store's tag."""

    size: int
    version: str


class Ranges(Protocol):
    """A file as its store gives it."""

    def fetch(self, start: int, stop: int) -> bytes:
        """What stands from `start` on: a byte of it at least, and the more the better up to `stop`.

        Raises FileNotFoundError when the file is gone, DataError when it has changed, else what may pass.
        """

    def close(self) -> None:
        """Lets go of it."""


def changed(name: str) -> DataError:
    """The error about a file that is not what it was when it was found."""
    return DataError(f"{name} changed while it was read; remove what was made of it and run again")


def gone(name: str) -> DataError:
    """The error about a file that was found before."""
    return DataError(f"{name} is gone; bring it back and run again to continue")


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _refused(address: str, error: Exception) -> DataError | None:
    """The error that another try would not mend, if this is one."""
    reason = _reason(error)
    if isinstance(error, PermissionError) or NO_ENTRY.search(type(error).__name__):
        return DataError(f"{address} may not be read ({reason}); see to the credentials for its store")
    if isinstance(error, ValueError):
        return DataError(f"{address} cannot be read ({reason}); check the address and the store's settings")
    return None


def steadily(address: str, act: Callable[[], Result], *, begun: bool) -> Result:
    """What `act` gives, done again when it fails; FileNotFoundError and errors of ours go through.

    Raises DataError for what may not be read, and for what fails for long, which is longer in a run that has
    `begun`.
    """
    since, wait, patience = time.monotonic(), FIRST_WAIT, PATIENCE if begun else AT_FIRST
    while True:
        try:
            return act()
        except (FileNotFoundError, MtlError):
            raise
        except Exception as error:
            refused = _refused(address, error)
            if refused is not None:
                raise refused from error
            tried = time.monotonic() - since
            if tried + wait > patience:
                raise DataError(
                    f"{address} could not be read in {duration(tried)} ({_reason(error)}); "
                    "run again to continue"
                ) from error
        time.sleep(wait)
        wait *= 2


class FarFile(io.RawIOBase):
    """A file of `size` bytes, read from any position; raises DataError as `steadily`, or when it is gone."""

    def __init__(self, address: str, size: int, ranges: Ranges) -> None:
        self._address, self._size, self._ranges = address, size, ranges
        self._at = self._held_at = 0
        self._held = memoryview(b"")
        self._width = FIRST_RANGE

    def readable(self) -> bool:
        """Says yes."""
        return True

    def seekable(self) -> bool:
        """Says yes."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a position; costs nothing."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def _fill(self, wanted: int) -> None:
        """Holds what stands at the position: a little after a jump, more and more when it is read on."""
        read_on = self._at == self._held_at + len(self._held)
        self._width = min(self._width * 4, WIDEST_RANGE) if read_on and self._held else FIRST_RANGE
        start = self._at
        stop = min(start + min(max(wanted, self._width), WIDEST_RANGE), self._size)
        try:
            data = steadily(self._address, lambda: self._ranges.fetch(start, stop), begun=True)
        except FileNotFoundError:
            raise gone(self._address) from None
        self._held, self._held_at = memoryview(data), start

    def readinto(self, into: Any) -> int:
        """Fills `into` as far as what is held goes; 0 at the end."""
        if self._at >= self._size or not len(into):
            return 0
        if not 0 <= self._at - self._held_at < len(self._held):
            self._fill(len(into))
        rest = self._held[self._at - self._held_at :]
        count = min(len(into), len(rest))
        into[:count] = rest[:count]
        self._at += count
        return count

    def close(self) -> None:
        """Lets go of the file."""
        if not self.closed:
            self._ranges.close()
        super().close()
