"""Where a command writes: only where nothing is yet."""

from pathlib import Path

from mtl_common.errors import UsageError


def check_new(out: Path) -> None:
    """Raises UsageError unless `out` is free, empty, or holds only what an interrupted command left."""
    if out.exists() and not (out.is_dir() and all(path.name.startswith(".tmp-") for path in out.iterdir())):
        raise UsageError(f"{out} exists already; choose another --out or remove it")
