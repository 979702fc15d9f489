"""A directory that is there whole or not at all."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtl_common.errors import UsageError


def check_free(out: Path) -> None:
    """Makes the directory that `out` will stand in; raises UsageError when `out` exists or cannot be made."""
    if out.exists():
        raise UsageError(f"{out} exists; choose another --out or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"cannot make {out} below a file; choose another --out") from None
    except OSError as error:
        raise UsageError(f"cannot make {out}: {str(error.strerror).lower()}; choose another --out") from None
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"cannot make {out}: nothing may be written there; choose another --out")


def _lock(place: Path, out: Path) -> int:
    """Holds a directory until the number is closed; raises UsageError when another process holds it."""
    held = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise UsageError(f"another process is writing {out}; wait for it, or choose another --out") from None
    return held


def _flush(path: Path) -> None:
    """Waits until a file or directory is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new directory that becomes `out` by one rename when the `with` ends well, and is removed otherwise.

    What a killed process left is removed by the next one. Raises UsageError when `out` exists or
    cannot be made.
    """
    check_free(out)
    place = out.with_name(f".{out.name}.partial")
    place.mkdir(exist_ok=True)
    held = _lock(place, out)
    try:
        for leftover in place.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        yield place
        for path in (*place.rglob("*"), place):
            _flush(path)
        os.rename(place, out)
    finally:
        os.close(held)
        shutil.rmtree(place, ignore_errors=True)
