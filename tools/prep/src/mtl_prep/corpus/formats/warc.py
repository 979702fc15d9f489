"""WARC archives of crawls, and the WET archives of their text.

A conversion record is a text. Of responses and resources, text/plain is a text too, and of text/html the main
text is extracted; other content, requests and descriptions are counted as such.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import partial
from typing import Any

from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.content import PIECE, Content, discarded, spooled
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.long_text import add_long_text
from mtl_prep.corpus.parsing import Rules, plain_text
from mtl_prep.corpus.records import OTHER, BadRecordError, Documents
from mtl_prep.corpus.source import Source
from mtl_prep.corpus.unpack import Stream, damaged

Keep = Callable[[Iterator[bytes]], Content]

TOO_LARGE = "too large"
HELD = ("conversion", "response", "resource")
ABOUT = {"url": "WARC-Target-URI", "date": "WARC-Date"}
AS_IT_IS = ("", "utf-8", "us-ascii")
PLAIN, HTML = "text/plain", ("text/html", "application/xhtml+xml")


@dataclass(frozen=True)
class _Payload:
    """What a record holds, unpacked, and what is said about it; or why it is not looked at."""

    media: str = ""
    charset: str = ""
    content: bytes = b""
    reason: str = ""
    long: Content | None = None  # in place of `content`
    about: dict[str, str] = field(default_factory=dict)


def _media(record: Any) -> tuple[str, str]:
    """The media type and character set of what a record holds; empty where it does not say."""
    if record.rec_type not in HELD:
        return "", ""
    headers = record.http_headers or record.rec_headers
    message = Message()
    message["Content-Type"] = headers.get_header("Content-Type") or ""
    return message.get_content_type(), message.get_content_charset("")


def _rest(begun: bytes, stream: Any) -> Iterator[bytes]:
    yield begun
    while piece := stream.read(PIECE):
        yield piece


def _payload(record: Any, name: str, limit: int, keep: Keep) -> _Payload:
    """Reads a record, a long text through `keep`; raises DataError when the file ends in it."""
    media, charset = _media(record)
    if media != PLAIN and media not in HTML:
        return _Payload(reason=OTHER)
    stream = record.content_stream()
    content, long = stream.read(limit + 1), None
    if len(content) > limit:
        if media != PLAIN or charset not in AS_IT_IS:
            return _Payload(reason=TOO_LARGE)
        content, long = b"", keep(_rest(content, stream))
    if getattr(record.raw_stream, "limit", 1) and record.length:
        raise DataError(f"{name} ends in the middle of a record; mend it or leave it out")
    found = {key: record.rec_headers.get_header(header) for key, header in ABOUT.items()}
    about = {key: value for key, value in found.items() if value}
    return _Payload(media, charset, content, long=long, about=about)


def _payloads(source: Source, limit: int, position: list[int], keep: Keep) -> Iterator[_Payload]:
    from warcio.archiveiterator import ArchiveIterator
    from warcio.exceptions import ArchiveLoadFailed

    stream = io.BufferedReader(Stream(source.pieces(position)), 1 << 16)
    try:
        for record in ArchiveIterator(stream):
            yield _payload(record, source.name, limit, keep)
    except ArchiveLoadFailed as error:
        raise damaged(source.name, "WARC", error) from None


def _decoded(payload: _Payload) -> str:
    """What a record holds as text, in the encoding that it says, names inside or seems to have."""
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    content, charset = payload.content, payload.charset
    encoding = map_encoding_to_html5(charset) if charset else detect_encoding(content, from_html_meta=True)
    return str(bytes_to_str(content, encoding or "utf-8"))


def _text(payload: _Payload, rules: Rules) -> tuple[str, set[str]]:
    """The text of a record, and what was mended; raises BadRecordError when there is none."""
    if payload.reason:
        raise BadRecordError(payload.reason)
    if payload.media in HTML:
        from resiliparse.extract.html2text import extract_plain_text

        return str(extract_plain_text(_decoded(payload), main_content=True)), set()
    named = payload.charset not in AS_IT_IS
    return plain_text(_decoded(payload).encode() if named else payload.content, rules.replace)


def _add_long(
    found: Documents, source: int, record: int, content: Content, about: dict[str, str], rules: Rules
) -> None:
    add_long_text(found, source, record, content, rules)
    if found.giant is not None:
        found.giant = replace(found.giant, whole=partial(dict, about))


def _read(payloads: list[_Payload], source: int, rules: Rules) -> Documents:
    found = Documents(lines=len(payloads))
    for number, payload in enumerate(payloads):
        if payload.long is not None:
            _add_long(found, source, number, payload.long, payload.about, rules)
            continue
        try:
            text, mends = _text(payload, rules)
        except BadRecordError as bad:
            found.refuse(source, number, str(bad), payload.content)
            continue
        for what in mends:
            found.mend(source, what)
        found.add(source, number, text, payload.about)
    return found


def _need(name: str) -> None:
    """Raises UsageError when a library is not there."""
    try:
        import resiliparse  # noqa: F401
        import warcio  # noqa: F401
    except ImportError:
        raise UsageError(f"{name} is a WARC archive; pip install 'mtl-prep[warc]' to read it") from None


class Warc:
    """The format of WARC and WET archives."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """An archive is read from its start."""
        _need(source.name)
        return None

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of records."""
        source, position = reading.sources[part.source], [0]
        run, held, told, number = list[_Payload](), 0, 0, 0

        def keep(pieces: Iterator[bytes]) -> Content:
            return spooled(pieces, part.scratch) if part.wanted(number) else discarded(pieces)

        for payload in _payloads(source, reading.giant, position, keep):
            run.append(payload)
            held += len(payload.content)
            if payload.long is not None or held >= reading.part_bytes:
                read = partial(_read, run, part.source, reading.rules)
                yield Block(position[0] - told, read, stays=payload.long is not None)
                run, held, told, number = [], 0, position[0], number + 1
        if run:
            yield Block(source.size - told, partial(_read, run, part.source, reading.rules))
