"""What kind of character each code point is, as tables that numpy looks whole texts up in."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

SPACE = 1  # what str.split splits at
LETTER = 2
WORDLY = 4  # a letter or digit: part of a word that is compared with others
ALONE = 8  # a word of its own in scripts that are written without spaces
SYMBOL = 16  # punctuation, and control characters
ENDING = 32  # ends a sentence in some script
CAPITAL = 64  # a letter that has a small one
PLAIN = 128  # neither a symbol nor a space

CODE_POINTS = 0x110000
LETTERS_END = 0x32400  # no letter, digit or space of Unicode 17 stands above
SMALL_END = 0x20000  # and no capital one
# datatrove's list of what counts as punctuation (utils/text.py), which FineWeb was made with
PUNCTUATION = (
    "!/\u2014\u201d:\uff05\uff11\u3008&(\u3001\u2501\\\u3010#%\u300c\u300d\uff0c\u3011\uff1b+^]~\u201c\u300a\u201e"
    "';\u2019{|\u2236\xb4[=-`*\uff0e\uff08\u2013\uff1f\uff01\uff1a$\uff5e\xab\u3009,><\u300b)?\uff09\u3002\u2026"
    '@_."}\u25ba\xbb'
)
CONTROLS = ((0, 9), (11, 32), (127, 160))
# Unicode's Sentence_Terminal, as datatrove lists it for FineWeb's rule on how lines end
ENDINGS = """
21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6
17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d
2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9
aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89
11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c
115c2-115c3 115c9-115d7 11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8
11f43-11f44 16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f 1da88
"""
# Thai, Lao, Myanmar, Khmer; kana, bopomofo; Han
WITHOUT_SPACES = ((0xE00, 0xF00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x3040, 0x3130), (0x31F0, 0x3200))
HAN = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x32000))


def _ranges(text: str) -> list[tuple[int, int]]:
    """`"21 61d-61f"` -> [(0x21, 0x22), (0x61d, 0x620)]."""
    ends = [part.partition("-") for part in text.split()]
    return [(int(first, 16), int(last or first, 16) + 1) for first, _, last in ends]


def _set(table: NDArray[np.uint8], flag: int, ranges: list[tuple[int, int]]) -> None:
    for start, stop in ranges:
        table[start:stop] |= np.uint8(flag)


@cache
def kinds() -> NDArray[np.uint8]:
    """(code points,) the flags of every character."""
    table = np.zeros(CODE_POINTS, np.uint8)
    for code in range(LETTERS_END):
        character = chr(code)
        if character.isalpha():
            table[code] = LETTER | WORDLY | CAPITAL * (character.lower() != character)
        elif character.isalnum():
            table[code] = WORDLY
        elif character.isspace():
            table[code] = SPACE
    _set(table, ALONE | WORDLY, [*WITHOUT_SPACES, *HAN])
    _set(table, SYMBOL, [*CONTROLS, *((ord(c), ord(c) + 1) for c in PUNCTUATION)])
    _set(table, ENDING | SYMBOL, _ranges(ENDINGS))
    table[(table & np.uint8(SYMBOL | SPACE)) == 0] |= np.uint8(PLAIN)
    return table


@cache
def small_letters() -> NDArray[np.bool_]:
    """(code points,) which are small letters."""
    table = np.zeros(CODE_POINTS, bool)
    table[:SMALL_END] = [chr(code).islower() for code in range(SMALL_END)]
    return table


@cache
def lowered() -> NDArray[np.uint32]:
    """(code points,) the small letter of every character that has a single one, else itself."""
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    for code in range(SMALL_END):
        small = chr(code).lower()
        if len(small) == 1:
            table[code] = ord(small)
    return table


@cache
def plain() -> NDArray[np.uint8]:
    """(code points,) the small letter of every character that has one of a byte, 255 for all others."""
    return np.minimum(lowered(), 255).astype(np.uint8)
