"""Libraries that encode faster than the reference does: fastokens, and gigatoken where it is installed."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.tokenizers.engines import TURBO, Build, Doubts, Engine, holding
from mtl_common.tokenizers.flat import Flat

# Code points whose general category is another in Unicode 17 than in 16: gigatoken has tables of the former,
# tiktoken, tokenizers and fastokens of the latter. All but U+0295 were unassigned before.
NEW_IN_UNICODE_17 = (
    "0295 088f 0c5c 0cdc 1acf-1add 1ae0-1aeb 20c1 2b96 a7ce-a7cf a7d2 a7d4 a7f1 fbc3-fbd2 fd90-fd91 "
    "fdc8-fdce 10940-10959 10ec5-10ec7 10ed0-10ed8 10efa-10efb 11b60-11b67 11db0-11ddb 11de0-11de9 "
    "16ea0-16eb8 16ebb-16ed3 16ff2-16ff6 187f8-187ff 18d09-18d1e 18d80-18df2 1ccfa-1ccfc 1ceba-1ced0 "
    "1cee0-1cef0 1e6c0-1e6de 1e6e0-1e6f5 1e6fe-1e6ff 1f6d8 1f777-1f77a 1f8d0-1f8d8 1fa54-1fa57 1fa8a "
    "1fa8e 1fac8 1facd 1faea 1faef 1fbfa 2b73a-2b73f 2cea2-2cead 323b0-33479"
)
# PCRE2, the regular expressions of fastokens, takes the Mongolian vowel separator for a space.
SPACE_TO_PCRE2 = "\u180e"

KEPT_MEMORY = 1 << 27  # bytes that gigatoken may add to the process by what it remembers of words
KEPT_CHARACTERS = 1 << 30  # the bound where the memory of a process cannot be read


def fastokens_engine(build: Callable[[Any], Any]) -> Engine | None:
    """fastokens, as `build` makes it from its class of tokenizers; None where it refuses the vocabulary."""
    import fastokens

    try:
        library = build(fastokens.Tokenizer)
    except ValueError:
        return None

    def encode(texts: Sequence[str]) -> Flat:
        ids, offsets = library.encode_batch_flat(list(texts), split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64)

    def doubts(texts: Sequence[str]) -> Any:
        return np.fromiter((SPACE_TO_PCRE2 in text for text in texts), bool, len(texts))

    return Engine("fastokens", encode, doubts)


def _resident() -> int:
    """The bytes of memory that this process holds, 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Renewed:
    """gigatoken, built anew when its memory of words, which never shrinks, has grown too large."""

    def __init__(
        self, build: Callable[[], Any], memory: int = KEPT_MEMORY, characters: int = KEPT_CHARACTERS
    ) -> None:
        self._build, self._memory, self._characters = build, memory, characters
        self._library: Any = None
        self._start()

    def _start(self) -> None:
        self._library = None  # the old one goes before the new one comes
        self._library = self._build()
        self._before, self._encoded = _resident(), 0

    def __call__(self, texts: Sequence[str]) -> Flat:
        """The ids of texts, on the thread that asks: had it threads, a forked process would hang."""
        if self._encoded > self._characters or _resident() - self._before > self._memory:
            self._start()
        self._encoded += sum(map(len, texts))
        assert self._library is not None
        found = self._library.encode_batch(list(texts), parallel=False).layout
        return np.asarray(found.content.data), np.asarray(found.offsets.data)


def _narrow_vectors() -> bool:
    """Whether this is an x86 machine with AVX2 and nothing wider."""
    try:
        facts = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return False
    return "avx2" in facts and "avx512f" not in facts


def fastest_first(gigatoken: Build, fastokens: Build) -> dict[str, Build]:
    """The two by their measured speed on byte-level BPE, one thread.

    With AVX-512 gigatoken is ahead (GPT-2 190 to 112 MB/s, cl100k 190 to 128), with AVX2 fastokens (97 to 78,
    83 to 57).
    """
    both: list[tuple[str, Build]] = [(TURBO, gigatoken), ("fastokens", fastokens)]
    return dict(reversed(both) if _narrow_vectors() else both)


def gigatoken_engine(build: Callable[[Any], Any], doubts: Doubts | None = None) -> Engine | None:
    """gigatoken, as `build` makes it from its class of tokenizers; None where it refuses or is not installed.

    `doubts` are by default texts with characters that are new in Unicode 17.
    """
    if importlib.util.find_spec("gigatoken") is None:
        return None
    import gigatoken

    try:
        encode = Renewed(lambda: build(gigatoken.Tokenizer))
    except (RuntimeError, ValueError):
        return None
    return Engine(TURBO, encode, doubts or holding(NEW_IN_UNICODE_17))
