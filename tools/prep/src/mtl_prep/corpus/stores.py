"""Stores that fsspec reaches by URLs: `s3://`, `gs://`, `hf://` and others."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.far import Facts, changed, steadily

IDENTITY = ("ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified", "updated", "created")
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
PACKAGES |= {"az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
# s3fs and `steadily` try again; for botocore to do so, too, would multiply the tries
OF_S3 = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
OPTIONS = {"s3": OF_S3, "s3a": OF_S3}

Result = TypeVar("Result")


def _store(address: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    protocol = address.partition("://")[0]
    package = PACKAGES.get(protocol, protocol)
    logging.getLogger(package).setLevel(logging.CRITICAL)  # what fails is told once, and not with a traceback
    try:
        import fsspec
    except ImportError:
        raise UsageError(f"{address} is a URL, which takes fsspec; pip install 'mtl-prep[remote]'") from None
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(address, **OPTIONS.get(protocol, {})))
    except ImportError as error:
        known = protocol in PACKAGES
        how = f"{protocol}:// takes {package}; pip install {package}" if known else str(error)
        raise UsageError(f"{address}: {how}") from None
    except ValueError as error:
        if "not known" not in str(error).lower():
            raise
        raise UsageError(f"no store is known by {protocol}://; check the address {address}") from None


def _asked(address: str, ask: Callable[[Any, str], Result]) -> Result:
    """What a store says to a question about an address."""
    return steadily(address, lambda: ask(*_store(address)), begun=False)


def forget(addresses: Iterable[str]) -> None:
    """Forgets what the stores of some addresses told before, so that they are asked anew."""
    for address in {address.partition("://")[0]: address for address in addresses}.values():
        _asked(address, lambda store, _: store.invalidate_cache())


def _facts(address: str, info: dict[str, Any]) -> Facts:
    if info.get("size") is None:
        raise DataError(f"{address} has no size that its store tells; download it and read the file")
    version = next((str(info[key]) for key in IDENTITY if info.get(key)), "")
    return Facts(info["size"], version.strip('"'))  # tags are quoted here and not there


def facts(address: str) -> Facts:
    """Size and version of a file; raises FileNotFoundError, and DataError for one whose size is not told."""
    return _facts(address, _asked(address, lambda store, path: store.info(path)))


def exists(address: str) -> bool:
    """Whether there is anything of that name."""
    with contextlib.suppress(FileNotFoundError):
        _asked(address, lambda store, path: store.info(path))
        return True
    return False


def is_directory(address: str) -> bool:
    """Whether there is a directory of that name."""
    return bool(_asked(address, lambda store, path: store.isdir(path)))


def matching(pattern: str) -> list[str]:
    """The files that match a pattern, in order."""
    store, found = _asked(pattern, lambda store, path: (store, store.glob(path, detail=True)))
    return sorted(store.unstrip_protocol(name) for name, info in found.items() if info["type"] == "file")


def below(address: str) -> Iterator[str]:
    """Every file below a directory, in the order of names; hidden ones are left alone."""
    store, path, found = _asked(address, lambda store, path: (store, path, store.find(path)))
    for name in sorted(found):
        if not any(part.startswith(".") for part in name.removeprefix(path).split("/")):
            yield store.unstrip_protocol(name)


class StoredFile:
    """A file in a store; see `far.Ranges`. Where it has to be opened, it is opened anew after a failure."""

    def __init__(self, address: str, known: Facts) -> None:
        self._address, self._known = address, known
        self._file: Any = None

    def _range(self, start: int, stop: int) -> bytes:
        store, path = _store(self._address)
        if store.async_impl:  # asks for the range and nothing else
            return cast(bytes, store.cat_file(path, start=start, end=stop))
        self._file = self._file or store.open(path, "rb", cache_type="none")
        self._file.seek(start)
        return cast(bytes, self._file.read(stop - start))

    def _read(self, start: int, stop: int) -> bytes:
        data = self._range(start, stop)
        if not 0 < len(data) <= stop - start:
            raise OSError(f"{len(data):,} bytes came of {stop - start:,} from byte {start:,}")
        return data

    def _check_same(self) -> None:
        """Raises DataError when the file is another now; says nothing of a store that does not answer."""
        store, path = _store(self._address)
        store.invalidate_cache()
        try:
            now = _facts(self._address, store.info(path))
        except Exception:
            return
        if now != self._known:
            raise changed(self._address)

    def fetch(self, start: int, stop: int) -> bytes:
        """See `far.Ranges`."""
        try:
            return self._read(start, stop)
        except Exception:
            self.close()
            self._check_same()
            raise

    def close(self) -> None:
        """Closes the file; never fails."""
        with contextlib.suppress(Exception):
            if self._file is not None:
                self._file.close()
        self._file = None
