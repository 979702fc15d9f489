"""A corpus on web servers, good and bad ones: all of its documents, or one sentence."""

import gzip
import http.server
import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mtl_common.errors import DataError
from mtl_prep.corpus import far, web
from mtl_prep.corpus.find import check_unchanged, find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.units import documents
from preparing import json_lines

TEXTS = [f"{i} " + "x" * (i % 50) for i in range(2000)]
LINES = json_lines(TEXTS)


class Page(http.server.BaseHTTPRequestHandler):
    """One file, given as the server's settings have it."""

    server: "Web"
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        """Gives the file or a range of it, or fails."""
        web = self.server
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        web.asked.append(self.headers.get("Range", ""))
        status, cut = next(web.troubles, (0, None))
        if status:
            self.send_error(status)
            return
        first, last = (int(wanted[1]), int(wanted[2]) + 1) if wanted and web.ranges else (0, None)
        part = web.content[first:last]
        self.send_response(206 if last else 200)
        if last:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(web.content)}")
        if web.tells_length:
            self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hash(web.content)}"')
        self.end_headers()
        self.wfile.write(part[:cut])
        self.close_connection = True


class Web(http.server.ThreadingHTTPServer):
    """What the server gives; `troubles` are a status to fail with, or after how many bytes it breaks off."""

    content = LINES
    ranges = True
    tells_length = True
    troubles: Iterator[tuple[int, int | None]] = iter(())

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/a.jsonl"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(far, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(far, "FIRST_RANGE", 1 << 10)
    monkeypatch.setattr(far, "WIDEST_RANGE", 1 << 13)
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def texts_in(url: str, part_bytes: int = 30_000) -> list[str]:
    found = documents(Reading(find([url]).sources, "text", part_bytes))
    return [text for each in found for text in each.texts]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_with_ranges_and_without(server: Web, ranges: bool, packed: bool) -> None:
    server.ranges, server.content = ranges, gzip.compress(LINES) if packed else LINES
    assert texts_in(server.url) == TEXTS


def test_names_with_spaces_and_queries(server: Web) -> None:
    assert texts_in(server.url.replace("a.jsonl", "dir x/\u00e4*[1].jsonl?key=a%20b&v=1")) == TEXTS


def test_connections_that_break_off_and_servers_that_fail_now_and_then(server: Web) -> None:
    server.troubles = itertools.cycle([(0, None), (503, None), (0, 700), (429, None), (0, 0), (0, None)])
    assert texts_in(server.url) == TEXTS
    server.troubles, server.ranges = itertools.cycle([(0, None), (0, 60_000), (502, None)]), False
    assert texts_in(server.url) == TEXTS


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_always_breaks_off(server: Web, ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "PATIENCE", 0.05)
    server.troubles, server.ranges = itertools.cycle([(0, 0)]), ranges
    with pytest.raises(DataError, match=r"a\.jsonl could not be read in .* run again to continue"):
        texts_in(server.url)


def test_an_empty_file(server: Web) -> None:
    server.content = b""
    server.ranges = False
    assert texts_in(server.url) == []
    server.troubles = iter([(416, None)])
    with pytest.raises(DataError, match="has no size that its server tells"):
        texts_in(server.url)


def test_a_file_without_a_length(server: Web) -> None:
    server.ranges = server.tells_length = False
    with pytest.raises(DataError, match=r"has no size that its server tells; download it and read the file"):
        texts_in(server.url)


def test_a_large_file_without_ranges(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LARGEST_WHOLE", 1000)
    server.ranges = False
    with pytest.raises(DataError, match="from a server that gives no ranges; download it and read the file"):
        texts_in(server.url)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (404, r"no corpus at .*a\.jsonl; check the path"),
        (403, r"a\.jsonl may not be read \(403 Forbidden\); see to the credentials"),
        (400, r"a\.jsonl cannot be read \(400 Bad Request\); check the address"),
        (500, r"a\.jsonl could not be read in .* \(500 Internal Server Error\); run again"),
    ],
)
def test_answers_that_are_none(server: Web, status: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "AT_FIRST", 0.05)
    server.troubles = itertools.cycle([(status, None)])
    with pytest.raises(DataError, match=told):
        texts_in(server.url)
    assert (len(server.asked) > 1) == (status == 500)


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "AT_FIRST", 0)
    with pytest.raises(DataError, match=r"could not be read in .*Connection refused.*; run again"):
        find(["http://127.0.0.1:9/a.jsonl"])


def test_a_file_that_changes_or_goes(server: Web) -> None:
    server.content = LINES * 10
    [source] = find([server.url]).sources
    pieces = source.pieces()
    assert next(pieces)
    server.content = server.content.replace(b"x", b"y")
    for read in (lambda: list(pieces), lambda: check_unchanged([source])):
        with pytest.raises(DataError, match=r"a\.jsonl changed while it was read; remove what was made"):
            read()
    server.troubles = itertools.cycle([(404, None)])
    for read in (lambda: list(source.pieces()), lambda: check_unchanged([source])):
        with pytest.raises(DataError, match=r"a\.jsonl is gone; bring it back and run again to continue"):
            read()
