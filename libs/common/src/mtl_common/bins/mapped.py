"""A file mapped into memory without the file descriptor that Python's own map keeps.

Bins may have more shards than a process may have open files.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.errors import DataError

FAILED = ctypes.c_void_p(-1).value


class _Map:
    """Some bytes of memory as numpy takes them, given back with the last array that lies over them."""

    def __init__(self, address: int, size: int, library: ctypes.CDLL) -> None:
        self._address, self._size, self._library = address, size, library

    @property
    def __array_interface__(self) -> Mapping[str, Any]:
        return {"data": (self._address, True), "shape": (self._size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._library.munmap(self._address, self._size)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        *[ctypes.c_int] * 3,
        ctypes.c_longlong,
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def mapped(path: Path, *, at_random: bool) -> NDArray[np.uint8]:
    """All bytes of a file, (size,), read when they are looked at.

    `at_random` tells the kernel not to read ahead, which makes cold random reads 20 times faster. Raises
    DataError when the system gives no more memory for maps.
    """
    library, file = _library(), os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    finally:
        os.close(file)
    if address == FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise DataError(f"{path} cannot be mapped: {reason}; see ulimit -v and vm.max_map_count")
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        library.madvise(address, size, mmap.MADV_RANDOM)
    return np.asarray(_Map(address, size, library))
