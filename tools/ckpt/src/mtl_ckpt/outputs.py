"""Where a command writes: only where nothing is yet, and nothing is left there when it fails."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mtl_common.checkpoint import begin
from mtl_common.errors import UsageError


def check_new(out: Path) -> None:
    """Raises UsageError unless `out` is free, empty, or holds only what an interrupted command left."""
    if out.exists() and not (out.is_dir() and all(path.name.startswith(".tmp-") for path in out.iterdir())):
        raise UsageError(f"{out} exists already; choose another --out or remove it")


@contextmanager
def removed_on_error(staging: Path) -> Iterator[Path]:
    """A directory to fill, which is removed when that fails."""
    try:
        yield staging
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


@contextmanager
def new_checkpoint(out: Path, step: int) -> Iterator[Path]:
    """The staging directory of the only checkpoint of a new directory; when that fails, neither is left."""
    check_new(out)
    existed = out.exists()
    try:
        with removed_on_error(begin(out, step)) as staging:
            yield staging
    except BaseException:
        if not existed:
            with suppress(OSError):  # it could not be made, or another process uses it
                out.rmdir()
        raise
