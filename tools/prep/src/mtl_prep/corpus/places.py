"""Where files lie: on this machine, on a web server, or in a store that fsspec reaches (`s3://`, `hf://`).

An address is a path or a URL, as typed.
"""

import glob
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar, cast
from urllib.parse import urlparse
from urllib.request import url2pathname

import xxhash

from mtl_prep.corpus import stores, web
from mtl_prep.corpus.far import FIRST_RANGE, Facts, FarFile, gone
from mtl_prep.corpus.web import is_web

AT_ONCE = 16  # requests about different files
WILD = re.compile(r"[*?\[]")

Result = TypeVar("Result")


def is_url(address: str) -> bool:
    """Whether the address is in a store; `file://` is on this machine."""
    return "://" in address and not address.startswith("file://")


def is_anywhere(address: str) -> bool:
    """Whether the address means the same from every directory."""
    return "://" in address or os.path.isabs(address)


def local(address: str) -> str:
    """The path of an address on this machine."""
    return url2pathname(urlparse(address).path) if address.startswith("file://") else address


def facts(address: str) -> Facts:
    """Size and version of a file; raises DataError for one that is gone, or in a store that tells no size."""
    try:
        if is_web(address):
            return web.facts(address)
        if is_url(address):
            return stores.facts(address)
        found = os.stat(local(address))
    except FileNotFoundError:
        raise gone(address) from None
    return Facts(found.st_size, str(found.st_mtime_ns))


def open_file(address: str, known: Facts | None = None) -> BinaryIO:
    """Opens a file for reading, at any position; raises DataError for one that is gone.

    `known` is what was found out about a file that is far away; if it has changed since, reading raises
    DataError.
    """
    if not is_url(address):
        try:
            return open(local(address), "rb")
        except FileNotFoundError:
            raise gone(address) from None
    known = known or facts(address)
    ranges = web.WebFile(address, known) if is_web(address) else stores.StoredFile(address, known)
    return cast(BinaryIO, io.BufferedReader(FarFile(address, known.size, ranges), FIRST_RANGE))


def content_hash(address: str | os.PathLike[str]) -> str:
    """The xxh3-128 of a file's bytes where they lie."""
    digest = xxhash.xxh3_128()
    with open_file(os.fspath(address)) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def forget(addresses: Iterable[str]) -> None:
    """Forgets what stores told of some addresses, so that they are asked anew."""
    stores.forget(address for address in addresses if is_url(address) and not is_web(address))


def is_directory(address: str) -> bool:
    """Whether there is a directory of that name; a web server has none."""
    if not is_url(address):
        return os.path.isdir(local(address))
    return not is_web(address) and stores.is_directory(address)


def exists(address: str) -> bool:
    """Whether there is anything of that name."""
    if not is_url(address):
        return os.path.exists(local(address))
    return web.exists(address) if is_web(address) else stores.exists(address)


def is_pattern(address: str) -> bool:
    """Whether the address stands for all files that match it: it has `*`, `?` or `[`, and is no file."""
    return bool(WILD.search(address)) and not is_web(address) and not exists(address)


def matching(pattern: str) -> list[str]:
    """The files that match a pattern, in order; `**` stands for any directories."""
    if is_url(pattern):
        return stores.matching(pattern)
    return sorted(path for path in glob.glob(local(pattern), recursive=True) if os.path.isfile(path))


def below(directory: str) -> Iterator[str]:
    """Every file below a directory in a store, in the order of names; hidden ones are left alone."""
    return stores.below(directory)


def each(addresses: Sequence[str], act: Callable[[str], Result]) -> list[Result]:
    """What `act` gives for each address, in order; of many that are far away some are asked at once."""
    if not any(map(is_url, addresses)):
        return list(map(act, addresses))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(act, addresses))
