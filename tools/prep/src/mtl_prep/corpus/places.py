"""Where files lie: on this machine, or in a store that fsspec reaches by a URL (`s3://`, `hf://`, `https://`).

An address is a path or a URL, as typed. Stores fail now and then: a read that fails is done again, from where
it was, TRIES times in all.
"""

import contextlib
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlparse
from urllib.request import url2pathname

import xxhash

from mtl_common.errors import DataError, UsageError

TRIES = 5
FIRST_WAIT = 0.25  # seconds; twice as long after every failure
AHEAD = 1 << 22  # bytes fetched at a time
IDENTITY = ("ETag", "etag", "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
WILD = re.compile(r"[*?\[]")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Facts:
    """The size of a file, and what changes when its content does: a time, or a store's tag."""

    size: int
    version: str


def is_url(address: str) -> bool:
    """Whether the address is in a store; `file://` is on this machine."""
    return "://" in address and not address.startswith("file://")


def is_anywhere(address: str) -> bool:
    """Whether the address means the same from every directory."""
    return "://" in address or os.path.isabs(address)


def local(address: str) -> str:
    """The path of an address on this machine."""
    return url2pathname(urlparse(address).path) if address.startswith("file://") else address


def _store(address: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    protocol = address.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{address} is a URL, which takes fsspec; pip install 'mtl-prep[remote]'") from None
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(address))
    except ImportError as error:
        raise UsageError(f"{address}: {error}") from None
    except ValueError:
        raise UsageError(f"no store is known by {protocol}://; check the address {address}") from None


def steadily(address: str, act: Callable[[], Result]) -> Result:
    """What `act` gives, tried again when the store fails; raises DataError after TRIES failures."""
    for failures in range(1, TRIES + 1):
        try:
            return act()
        except (FileNotFoundError, PermissionError, UsageError):
            raise
        except Exception as error:
            if failures == TRIES:
                reason = str(error) or type(error).__name__
                raise DataError(
                    f"{address} could not be read in {TRIES} tries ({reason}); run again to continue"
                ) from error
        time.sleep(FIRST_WAIT * 2 ** (failures - 1))
    raise AssertionError


class _Remote(io.RawIOBase):
    """A file in a store, opened anew where it was when a read fails."""

    def __init__(self, address: str) -> None:
        self._address, self._at = address, 0
        self._file: Any = None
        self._size = facts(address).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def _fill(self, into: Any) -> int:
        if self._file is None:
            store, path = _store(self._address)
            self._file = store.open(path, "rb", block_size=AHEAD)
        try:
            self._file.seek(self._at)
            data = self._file.read(len(into))
        except Exception:
            self._drop()
            raise
        if not data and self._at < self._size:
            self._drop()
            raise OSError(f"it ended at byte {self._at} of {self._size}")
        into[: len(data)] = data
        return len(data)

    def _drop(self) -> None:
        with contextlib.suppress(Exception):
            self._file.close()
        self._file = None

    def readinto(self, into: Any) -> int:
        if self._at >= self._size or not len(into):
            return 0
        count = steadily(self._address, lambda: self._fill(into))
        self._at += count
        return count

    def close(self) -> None:
        if self._file is not None:
            self._drop()
        super().close()


def open_file(address: str) -> BinaryIO:
    """Opens a file for reading, at any position."""
    if is_url(address):
        return cast(BinaryIO, io.BufferedReader(_Remote(address), AHEAD))
    return open(local(address), "rb")


def content_hash(address: str | os.PathLike[str]) -> str:
    """The xxh3-128 of a file's bytes where they lie."""
    digest = xxhash.xxh3_128()
    with open_file(os.fspath(address)) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def facts(address: str) -> Facts:
    """Size and version of a file; raises DataError for a store that does not tell a size."""
    if not is_url(address):
        found = os.stat(local(address))
        return Facts(found.st_size, str(found.st_mtime_ns))
    store, path = _store(address)
    info = steadily(address, lambda: store.info(path))
    if info.get("size") is None:
        raise DataError(f"{address} has no size that its server tells; download it and read the file")
    return Facts(info["size"], next((str(info[key]) for key in IDENTITY if info.get(key)), ""))


def is_directory(address: str) -> bool:
    """Whether there is a directory of that name."""
    if not is_url(address):
        return os.path.isdir(local(address))
    if address.startswith("http"):
        return False  # finding out would fetch the whole file
    store, path = _store(address)
    return bool(steadily(address, lambda: store.isdir(path)))


def exists(address: str) -> bool:
    """Whether there is anything of that name."""
    if not is_url(address):
        return os.path.exists(local(address))
    store, path = _store(address)
    return bool(steadily(address, lambda: store.exists(path)))


def is_pattern(address: str) -> bool:
    """Whether the address stands for all files that match it: it has `*`, `?` or `[`, and is no file."""
    bare = re.sub(r"^https?://\S*", "", address)  # a query is no pattern
    return bool(WILD.search(bare)) and not exists(address)


def matching(pattern: str) -> list[str]:
    """The files that match a pattern, in order; `**` stands for any directories."""
    if is_url(pattern):
        store, path = _store(pattern)
        found = steadily(pattern, lambda: store.glob(path, detail=True))
        return sorted(store.unstrip_protocol(name) for name, info in found.items() if info["type"] == "file")
    import glob

    return sorted(path for path in glob.glob(local(pattern), recursive=True) if os.path.isfile(path))


def below(address: str) -> Iterator[str]:
    """Every file below a directory in a store, in the order of names; hidden ones are left alone."""
    store, path = _store(address)
    for name in sorted(steadily(address, lambda: store.find(path))):
        if not any(part.startswith(".") for part in name.removeprefix(path).split("/")):
            yield store.unstrip_protocol(name)
