"""What an unfinished run has done so far: one small file for every finished piece of work, or none.

Many processes may write at once. What is named here lies on the disk, so a run that was killed continues.
"""

import os
from pathlib import Path
from typing import Any

import orjson

from mtl_common.errors import DataError


class Journal:
    """A directory of named JSON records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def has(self, name: str) -> bool:
        """Whether the piece of work is done."""
        return self._path(name).exists()

    def read(self, name: str) -> dict[str, Any]:
        """What was noted of a finished piece of work."""
        try:
            return orjson.loads(self._path(name).read_bytes())  # type: ignore[no-any-return]
        except orjson.JSONDecodeError:
            raise DataError(f"{self._path(name)} is damaged; remove {self.directory} and run again") from None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Notes a piece of work as done; what it made must be on the disk before."""
        staged = self.directory / f".{name}.{os.getpid()}.tmp"
        with staged.open("wb") as file:
            file.write(orjson.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, self._path(name))

    def forget(self, name: str) -> None:
        """Makes a piece of work undone."""
        self._path(name).unlink()

    def names(self, start: str) -> list[str]:
        """The finished pieces whose names start so, in order."""
        return sorted(path.stem for path in self.directory.glob(f"{start}*.json"))
