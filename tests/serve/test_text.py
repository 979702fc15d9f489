"""Streaming text: characters split over tokens, stop strings that end anywhere."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl_serve.text import TextStream

SAMPLES = [
    "plain",
    "na\u00efve caf\u00e9",
    "\U0001f600 ok \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u4f60\u597d",
]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in pairwise(edges)]


def joined(pieces: list[bytes], stops: list[str]) -> tuple[str, str]:
    stream = TextStream(stops)
    shown = ""
    for piece in pieces:
        shown += stream.feed(piece)
        if stream.matched:
            break
    shown += stream.finish()
    assert shown == stream.text
    return shown, stream.matched


def expected(text: str, stops: list[str]) -> tuple[str, str]:
    """The rule, said naively: grow the text by a character until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, ""


texts = st.text(alphabet="ab\n \u00e9\u4f60\U0001f600", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab\u00e9\U0001f600", min_size=1, max_size=4), max_size=4)


@given(texts, stop_lists, st.lists(st.integers(0, 200)))
def test_any_cut_into_tokens_gives_the_same_text(text: str, stops: list[str], places: list[int]) -> None:
    assert joined(cut(text.encode(), places), stops) == expected(text, stops)


@given(st.binary(max_size=40), st.lists(st.integers(0, 200)))
def test_broken_bytes_decode_as_the_whole_would(data: bytes, places: list[int]) -> None:
    assert joined(cut(data, places), [])[0] == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", SAMPLES)
def test_no_replacement_character_appears_on_the_way(text: str) -> None:
    stream = TextStream()
    shown = [stream.feed(bytes([b])) for b in text.encode()]
    assert "".join(shown) == text
    assert not any("\ufffd" in part for part in shown)


def test_a_character_cut_off_by_the_end_becomes_one_replacement() -> None:
    stream = TextStream()
    assert stream.feed("a\U0001f600".encode()[:3]) == "a"
    assert stream.finish() == "\ufffd"


@given(texts, stop_lists, st.lists(st.integers(0, 200)))
def test_only_what_may_become_a_stop_is_held_back(text: str, stops: list[str], places: list[int]) -> None:
    stream, fed = TextStream(stops), b""
    for piece in cut(text.encode(), places):
        stream.feed(piece)
        fed += piece
        if stream.matched:
            return
        certain = fed.decode("utf-8", "ignore")
        held = certain[len(stream.text) :]
        assert certain.startswith(stream.text)
        assert not held or any(s.startswith(held) and s != held for s in stops)


def test_a_stop_ending_inside_a_token_cuts_the_token() -> None:
    assert joined([b"abc", b"xDEF"], ["DE"]) == ("abcx", "DE")


def test_a_stop_across_tokens_is_never_shown_in_part() -> None:
    stream = TextStream(["STOP"])
    assert [stream.feed(p) for p in (b"go S", b"T", b"OPS")] == ["go ", "", ""]
    assert stream.matched == "STOP"
    assert stream.finish() == ""


def test_the_first_stop_to_be_complete_wins() -> None:
    assert joined([b"abcd"], ["abcd", "c"]) == ("ab", "c")
    assert joined([b"abcd"], ["cd", "bcd"]) == ("a", "bcd")


def test_stops_are_text_and_not_patterns() -> None:
    assert joined([b"a.c"], [re.escape("."), "."]) == ("a", ".")
