"""What an unfinished run has done so far: a line for every finished piece of work, in a file for each writer.

Many processes may write at once, on many machines that share a file system: every process appends to a file
of its own, so a kill cuts at most the last line of one file, which then counts as not written. What is named
here lies on the disk, so a run that was killed continues. Files are numbered: one that is begun later has a
larger number, and what it says of a piece of work overrules the files before it.
"""

import errno
import os
import uuid
from pathlib import Path
from typing import Any

import orjson

from mtl_common.errors import DataError

POSITIONS = 40  # bits of a place that hold the position in a file
NOTE = 4096  # bytes; most notes are shorter


def _line(path: Path, position: int) -> bytes:
    """One line of a file; a file object would cost as much again, hundreds of thousands of times."""
    file = os.open(path, os.O_RDONLY)
    try:
        size = NOTE
        line = os.pread(file, size, position)
        while b"\n" not in line and len(line) == size:
            size *= 8
            line = os.pread(file, size, position)
        return line.partition(b"\n")[0]
    finally:
        os.close(file)


class Journal:
    """The finished pieces of work in a directory, by name; a name holds no white space.

    It knows what was there when it was opened or last refreshed, and what it wrote itself.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: list[Path] = []
        self._read: list[int] = []  # how much of each file is known
        self._places: dict[str, int] = {}  # index of the file and position in it
        self._own: int | None = None  # index of this process's file
        self.refresh()

    def refresh(self) -> None:
        """Takes in what other processes have written since."""
        known = set(self._files)
        for path in sorted(set(self.directory.glob("log-*")) - known):
            self._files.append(path)
            self._read.append(0)
        for index, path in enumerate(self._files):
            if path.stat().st_size > self._read[index]:
                self._take_in(index, path)

    def _take_in(self, index: int, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read[index])
            for line in file:
                if not line.endswith(b"\n"):
                    break
                name, _, content = line.partition(b"\t")
                self._put(name.decode(), index, self._read[index], bool(content.strip()))
                self._read[index] += len(line)

    def _put(self, name: str, index: int, position: int, there: bool) -> None:
        before = self._places.get(name)
        if before is not None and self._number(before >> POSITIONS) > self._number(index):
            return
        if there:
            self._places[name] = index << POSITIONS | position
        else:
            self._places.pop(name, None)

    def _number(self, index: int) -> int:
        return int(self._files[index].name.split("-")[1])

    def has(self, name: str) -> bool:
        """Whether the piece of work is done."""
        return name in self._places

    def read(self, name: str) -> dict[str, Any]:
        """What was noted of a finished piece of work; raises KeyError for one that is not done."""
        place = self._places[name]
        path = self._files[place >> POSITIONS]
        _, _, content = _line(path, place & ((1 << POSITIONS) - 1)).partition(b"\t")
        try:
            return orjson.loads(content)  # type: ignore[no-any-return]
        except orjson.JSONDecodeError:
            raise DataError(f"{path} is damaged; remove {self.directory} and run again") from None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Notes a piece of work as done; what it made must be on the disk before."""
        self._append(name, orjson.dumps(content))

    def forget(self, name: str) -> None:
        """Makes a piece of work undone."""
        if self._own != len(self._files) - 1:
            self._own = None  # what is forgotten may stand in a file with a larger number
        self._append(name, b"")

    def names(self, start: str) -> list[str]:
        """The finished pieces whose names start so, in order."""
        return sorted(name for name in self._places if name.startswith(start))

    def _append(self, name: str, content: bytes) -> None:
        index = self._new_file() if self._own is None else self._own
        line = b"%s\t%s\n" % (name.encode(), content)
        self._own = None  # until it is written: after a failure the line may be cut, and the file has its end
        with self._files[index].open("ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._files[index]))
            os.fsync(file.fileno())
        self._own = index
        self._put(name, index, self._read[index], bool(content))
        self._read[index] += len(line)

    def _new_file(self) -> int:
        self.refresh()
        number = 1 + max(map(self._number, range(len(self._files))), default=0)
        self._files.append(self.directory / f"log-{number:08d}-{uuid.uuid4().hex}")
        self._files[-1].open("xb").close()
        self._read.append(0)
        return len(self._files) - 1
