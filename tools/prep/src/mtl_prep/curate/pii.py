"""Personal data in texts, replaced by tokens.

Kinds, each found where it begins and then checked, so that numbers in code and tables stay:
- `email`: RFC 5322's plain local part, and a domain with a top level of letters.
- `ip`: IPv4 and IPv6 addresses that are global by IANA's registries. Four numbers below 20 stay, for nearly
  all of them are versions and sections; of IPv6 only 2000::/3 goes, so that `a::b` in code stays.
- `phone`: written internationally (+ and 8 to 15 digits, ITU-T E.164; 10 at least when nothing stands between
  them), or as in North America, with separators.
- `card`: 16 digits, or 15 of American Express, with an issuer's first digits and the checksum of Luhn
  (ISO/IEC 7812). One in ten numbers of 16 digits that begin so has it too.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mtl_prep.curate.batch import Batch, Integers, Mask
from mtl_prep.curate.step import LocalStep, Verdict

Kind = Literal["email", "ip", "phone", "card"]
KINDS: tuple[Kind, ...] = ("email", "ip", "phone", "card")

# Patterns are of small letters, one byte a character. Where numbers may begin is known from runs of digits.
LOCAL = re.compile(rb"[a-z0-9!#$%&'*+/=?^_`{|}~-][a-z0-9.!#$%&'*+/=?^_`{|}~-]*\Z")
DOMAIN = re.compile(rb"@(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,24}(?![a-z0-9_-])")
LOCAL_LIMIT = 64  # RFC 5321
IPV4 = re.compile(rb"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?!\w|\.\d)")
IPV6 = re.compile(rb"(?<![\w:])[23][0-9a-f]{3}:[0-9a-f]{0,4}:[0-9a-f:]*+(?!\w)")
GROUP = 4  # digits of an IPv6 address that stand before its first colon, when it is global
GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
INTERNATIONAL = re.compile(rb"\+(?<!\w\+)[1-9](?:[ .\-/()]{0,2}\d){7,14}(?!\w)")
AMERICAN = re.compile(
    rb"(?<![\w.+/])(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.-])[2-9]\d\d[ .-]\d{4}(?![\w-]|\.\d)"
)
ISSUER = rb"(?<![\w.\-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|65\d\d|35\d\d)"
CARD = re.compile(ISSUER + rb"\d{12}|3[47]\d{13})(?![\w-]|\.\d)")
GROUPED_CARD = re.compile(ISSUER + rb"([ -])\d{4}\1\d{4}\1\d{4}|3[47]\d\d([ -])\d{6}\2\d{5})(?![\w-]|\.\d)")
SMALL = 20  # of addresses


class Pii(LocalStep):
    """What is looked for, and what stands in its place."""

    kinds: tuple[Kind, ...] = KINDS
    email: str = "<EMAIL>"
    ip: str = "<IP>"
    phone: str = "<PHONE>"
    card: str = "<CARD>"
    keys: tuple[str, ...] = ()  # keys of the record whose values are replaced, such as "author"
    value: str = "<NAME>"

    def begin(self, base: Path) -> "PiiJudge":
        """The step at work."""
        return PiiJudge(self)


@dataclass(frozen=True, order=True)
class Found:
    """A piece `start:stop` of a batch that is personal."""

    start: int
    stop: int
    kind: Kind


class Digits:
    """The runs of digits in a text: starts (runs,) and lengths (runs,)."""

    def __init__(self, text: bytes) -> None:
        mask = np.frombuffer(text, np.uint8) - np.uint8(ord("0")) < 10
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
        self.starts, stops = edges[0::2], edges[1::2]
        self.lengths = stops - self.starts
        self._gaps = np.append(self.starts[1:] - stops[:-1], 0)[: len(stops)]

    def later(self, count: int) -> Integers:
        """(runs,) the length of the run so many further on, 0 after the last."""
        return np.concatenate([self.lengths[count:], np.zeros(count, np.int64)])[: len(self.lengths)]

    def next_to(self, count: int) -> Mask:
        """(runs,) whether the run `count` further on follows another one after one character."""
        gaps = np.concatenate([self._gaps[count - 1 :], np.zeros(count - 1, np.int64)])
        return np.asarray(gaps[: len(self.lengths)] == 1)


def _emails(text: bytes, _: Digits) -> Iterator[Found]:
    at = text.find(b"@")
    while at >= 0:
        domain = DOMAIN.match(text, at)
        local = domain and LOCAL.search(text[max(at - LOCAL_LIMIT, 0) : at])
        if local and domain:
            yield Found(at - (local.end() - local.start()), domain.end(), "email")
        at = text.find(b"@", domain.end() if domain else at + 1)


def is_global(address: bytes) -> bool:
    """Whether an address can be reached from everywhere.

    >>> is_global(b"10.0.0.1"), is_global(b"212.94.201.10"), is_global(b"6.5.1.1"), is_global(b"a::b")
    (False, True, False, False)
    """
    try:
        known = ipaddress.ip_address(address.decode("ascii"))
    except ValueError:
        return False
    numbers = known.packed if known.version == 4 else bytes([SMALL])
    return known.is_global and max(numbers) >= SMALL and (known.version == 4 or known in GLOBAL_IPV6)


def _ips(text: bytes, digits: Digits) -> Iterator[Found]:
    four = (digits.lengths <= 3) & digits.next_to(1) & digits.next_to(2) & digits.next_to(3)
    yield from _at(text, digits.starts[four], IPV4, is_global, "ip")
    plain = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(plain[GROUP:] == ord(":"))
    starts = starts[np.isin(plain[starts], list(b"23"))]
    yield from _at(text, starts, IPV6, is_global, "ip")


def _is_phone(number: bytes) -> bool:
    digits = sum(48 <= byte < 58 for byte in number)
    return (8 if digits < len(number) - 1 else 10) <= digits <= 15


def luhn(number: bytes) -> bool:
    """Whether the last digit is the checksum of the others.

    >>> luhn(b"4111 1111 1111 1111"), luhn(b"4111 1111 1111 1112")
    (True, False)
    """
    digits = [byte - 48 for byte in number if 48 <= byte < 58]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _at(
    text: bytes, starts: Integers, pattern: "re.Pattern[bytes]", check: Callable[[bytes], bool], kind: Kind
) -> Iterator[Found]:
    """What matches at some places, and passes the check."""
    for start in starts.tolist():
        found = pattern.match(text, start)
        if found and check(found[0]):
            yield Found(*found.span(), kind)


def _phones(text: bytes, digits: Digits) -> Iterator[Found]:
    for found in INTERNATIONAL.finditer(text):
        if _is_phone(found[0]):
            yield Found(*found.span(), "phone")
    places = np.flatnonzero((digits.lengths == 3) & (digits.later(1) == 3) & (digits.later(2) == 4))
    starts = digits.starts[places]
    for before in (0, 1, 2, 3):  # a bracket, or 1 and a separator, perhaps both
        yield from _at(text, np.maximum(starts - before, 0), AMERICAN, _is_phone, "phone")


def _cards(text: bytes, digits: Digits) -> Iterator[Found]:
    whole = (digits.lengths == 15) | (digits.lengths == 16)
    grouped = (digits.lengths == 4) & np.isin(digits.later(1), (4, 6)) & digits.next_to(1)
    yield from _at(text, digits.starts[whole], CARD, luhn, "card")
    yield from _at(text, digits.starts[grouped], GROUPED_CARD, luhn, "card")


FINDERS: dict[Kind, Callable[[bytes, Digits], Iterator[Found]]] = {
    "email": _emails,
    "ip": _ips,
    "phone": _phones,
    "card": _cards,
}


class PiiJudge:
    """The search at work."""

    def __init__(self, settings: Pii) -> None:
        self._settings = settings

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """No document goes; texts are edited."""
        verdict = Verdict(len(batch))
        verdict.masks = dict.fromkeys(self._settings.keys, self._settings.value)
        text, digits = batch.plain, Digits(batch.plain)
        pieces = sorted(found for kind in self._settings.kinds for found in FINDERS[kind](text, digits))
        places = np.searchsorted(batch.starts, [found.start for found in pieces], "right") - 1
        by_document: dict[int, list[Found]] = {}
        for document, found in zip(places.tolist(), pieces, strict=True):
            if wanted[document]:
                by_document.setdefault(document, []).append(found)
        for document, founds in by_document.items():
            verdict.texts[document] = self._edited(batch, document, founds, verdict)
        return verdict

    def _edited(self, batch: Batch, document: int, pieces: list[Found], verdict: Verdict) -> str:
        """A document's text with tokens in the place of pieces; of two that overlap the first is meant."""
        text, base, at, parts = batch.texts[document], int(batch.starts[document]), 0, []
        for found in pieces:
            if found.start - base >= at:
                parts += [text[at : found.start - base], getattr(self._settings, found.kind)]
                at = found.stop - base
                verdict.edit(document, found.kind)
        return "".join([*parts, text[at:]])
