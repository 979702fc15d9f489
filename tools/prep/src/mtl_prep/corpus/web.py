"""Files that web servers give (`http://`, `https://`): what comes is held against what was announced."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPResponse, IncompleteRead
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from mtl_common.errors import DataError
from mtl_prep.corpus.far import Facts, changed, steadily

SILENCE = 30.0  # seconds without a byte, after which a server has failed
LARGEST_WHOLE = 1 << 26  # bytes of a file that is fetched whole where a server gives no ranges
WHOLE, PART, NO_RANGE = 200, 206, 416
RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")
AS_TYPED = "%/:=&?~#+!$,;'@()*[]"
GONE = (404, 410)
FORBIDDEN = (401, 403, 407)
PASSING = (408, 425, 429)  # beside what begins with 5


def is_web(address: str) -> bool:
    """Whether a web server gives it."""
    return address.startswith(("http://", "https://"))


def _refusal(url: str, error: HTTPError) -> Exception:
    """What an answer means that is none."""
    told = f"{error.code} {error.reason}"
    if error.code in GONE:
        return FileNotFoundError(url)
    if error.code in FORBIDDEN:
        return PermissionError(told)
    passing = error.code in PASSING or error.code >= 500
    return OSError(told) if passing else ValueError(told)


@contextmanager
def _answer(url: str, start: int, stop: int) -> Iterator[HTTPResponse | HTTPError]:
    """A server's answer to a request for a range; one of 416 has no content."""
    headers = {
        "Range": f"bytes={start}-{stop - 1}",
        "Accept-Encoding": "identity",
        "User-Agent": "mtl-prep",
    }
    request = Request(quote(url, safe=AS_TYPED), headers=headers)
    try:
        response: HTTPResponse | HTTPError = urlopen(request, timeout=SILENCE)
    except HTTPError as error:
        if error.code != NO_RANGE:
            with error:
                raise _refusal(url, error) from None
        response = error
    with response:
        yield response


def _version(headers: Message) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _range(headers: Message) -> tuple[int | None, int | None]:
    """Where a range that was sent starts, and the size of the whole file, as far as they are told."""
    found = RANGE.match(headers.get("Content-Range", ""))
    start, size = found.groups() if found else (None, None)
    return (None if start is None else int(start)), (None if size is None else int(size))


def _look(url: str) -> Facts:
    with _answer(url, 0, 1) as response:
        headers = response.headers
        size = _range(headers)[1]
        if response.status == WHOLE:
            size = int(headers["Content-Length"]) if "Content-Length" in headers else None
    if size is None:
        raise DataError(f"{url} has no size that its server tells; download it and read the file")
    return Facts(size, _version(headers))


def facts(url: str) -> Facts:
    """Size and version of a file; raises FileNotFoundError, and DataError for one whose size is not told."""
    return steadily(url, lambda: _look(url), begun=False)


def exists(url: str) -> bool:
    """Whether the server has it."""
    try:
        facts(url)
    except FileNotFoundError:
        return False
    return True


def _content(response: HTTPResponse | HTTPError) -> bytes:
    """What came, even if the connection broke off."""
    try:
        return response.read()
    except IncompleteRead as broken:
        return broken.partial


class WebFile:
    """A file that a server gives; see `far.Ranges`."""

    def __init__(self, url: str, known: Facts) -> None:
        self._url, self._known = url, known

    def fetch(self, start: int, stop: int) -> bytes:
        """See `far.Ranges`."""
        with _answer(self._url, start, stop) as response:
            at, size = _range(response.headers)
            is_other = size not in (None, self._known.size) or response.status == NO_RANGE
            if is_other or _version(response.headers) != self._known.version:
                raise changed(self._url)
            if response.status != PART:
                return self._whole(response)[start:]
            if at != start:
                raise OSError(f"asked for byte {start:,} the server sent {response.headers['Content-Range']}")
            content = _content(response)[: stop - start]
        if not content:
            raise OSError(f"it ended at byte {start:,} of {self._known.size:,}")
        return content

    def _whole(self, response: HTTPResponse | HTTPError) -> bytes:
        """All of a file, from a server that gives no ranges."""
        size = self._known.size
        if size > LARGEST_WHOLE:
            raise DataError(
                f"{self._url} comes from a server that gives no ranges; download it and read the file"
            )
        content = _content(response)
        if len(content) != size:
            raise OSError(f"{len(content):,} bytes came of {size:,}")
        return content

    def close(self) -> None:
        """Does nothing: every range is a request of its own."""
