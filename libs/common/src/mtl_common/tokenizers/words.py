"""WordPiece a word at a time: every word goes through the reference once, and its ids are remembered.

BERT's normalizing and cutting look at no character beyond a space, a line end or a mark such as a comma, so a
text's ids are those of its words. Real text repeats its words.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from mtl_common.tokenizers.engines import Engine
from mtl_common.tokenizers.flat import Encode, Flat, gathered

# A mark of ASCII or a Chinese character is a word of its own; so is what else stands between them and spaces.
ALONE = r"!-/:-@\[-`{-~"
CHINESE = "\u4e00-\u9fff"
KEPT_CHARACTERS = 1 << 25  # of words, which with all that belongs to them are about 300 MB


class _Numbers(dict[str, int]):
    """Word -> number, a new one for a word not seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        self.new.append(word)
        self[word] = number = len(self)
        return number


class WordMemory:
    """The ids of all words so far; forgotten when they are many."""

    def __init__(self, reference: Encode, alone: str = ALONE, kept: int = KEPT_CHARACTERS) -> None:
        self._reference, self._kept = reference, kept
        self._words = re.compile(rf"[{alone}]|[^ \t\n\r{alone}]+").findall
        self._forget()

    def _forget(self) -> None:
        self._numbers, self._size = _Numbers(), 0
        self._ids, self._offsets = np.empty(0, np.uint32), np.zeros(1, np.int64)

    def _learn(self) -> None:
        new, self._numbers.new = self._numbers.new, []
        try:
            ids, offsets = self._reference(new)
        except BaseException:
            self._forget()  # the numbers of words that have no ids
            raise
        self._size += sum(map(len, new))
        self._offsets = np.concatenate([self._offsets, offsets[1:] + len(self._ids)])
        self._ids = np.concatenate([self._ids, ids])

    def __call__(self, texts: Sequence[str]) -> Flat:
        """The ids of texts."""
        if self._size > self._kept:
            self._forget()
        found = [list(map(self._numbers.__getitem__, self._words(text))) for text in texts]
        if self._numbers.new:
            self._learn()
        counts = np.fromiter(map(len, found), np.int64, len(found))
        numbers = np.fromiter(chain.from_iterable(found), np.int64, int(counts.sum()))
        lengths = np.diff(self._offsets)[numbers]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        offsets = ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])]
        return gathered(self._ids, self._offsets[numbers], lengths), offsets


def words_engine(content: Mapping[str, Any], reference: Encode) -> Engine | None:
    """The engine for a tokenizer.json as BERT has it; None for words that may depend on others."""
    kinds = [(content.get(key) or {}).get("type") for key in ("normalizer", "pre_tokenizer", "model")]
    added = [token for token in content.get("added_tokens") or [] if not token.get("special")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"] or added:
        return None
    alone = ALONE + (CHINESE if content["normalizer"].get("handle_chinese_chars") else "")
    return Engine("words", WordMemory(reference, alone))
