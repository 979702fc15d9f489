"""How fast each engine encodes a user's own text, beside the loop that most tools are built around.

One thread each; sides take turns, so that a busy machine slows all alike, and each turn has text that was not
there before; what counts is the time of the processor, so that waiting for others does not. The loop is that
of Megatron's preprocess_data.py without its pipes between processes: a line is parsed, its text encoded alone
to a list of ids, and the list made bytes.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mtl_common.bins import dtype_for
from mtl_common.errors import DataError, UsageError
from mtl_common.log import progress
from mtl_common.tokenizers import AUTO, ENGINES, Flat, Tokenizer, load
from mtl_prep.corpus.find import find
from mtl_prep.corpus.units import Reading, documents

FEED = 1 << 22  # characters encoded at a time
FEW = 1 << 20  # bytes that sides are warmed up with
TURN = 1.0  # seconds of the processor that a side may take at a time
LOOP = "loop"

Work = Callable[[Sequence[str]], object]


@dataclass(frozen=True)
class Request:
    """A corpus, a tokenizer, and how much text to try how often."""

    corpus: Sequence[str | Path]
    tokenizer: Path
    size: int
    rounds: int = 3
    text_key: str = "text"


@dataclass(frozen=True)
class Side:
    """What one way of encoding did: megabytes a second of one core, and how many documents had other ids.

    `absent` says why it could not be tried; `differing` is None for what was not compared.
    """

    name: str
    start: float = 0.0  # seconds until it could encode
    rate: float = 0.0
    compared: int = 0
    differing: int | None = None
    absent: str = ""


@dataclass(frozen=True)
class Result:
    """The sides, the loop last, and the text they were given."""

    sides: tuple[Side, ...]
    documents: int
    size: int  # bytes
    library: str
    chosen: str


def _texts(request: Request) -> list[str]:
    """The first documents of a corpus, up to a size; raises DataError when there are none."""
    texts: list[str] = []
    left = request.size
    for found in documents(Reading(find(request.corpus).sources, request.text_key, FEW)):
        for text in found.texts:
            if left <= 0:
                return texts
            texts.append(text)
            left -= len(text.encode())
    if not texts:
        raise DataError(f"no documents in {', '.join(map(str, request.corpus))}; see --text-key")
    return texts


def _first(texts: Sequence[str], size: float) -> Sequence[str]:
    """The first documents of about `size` bytes, one at least."""
    total = np.cumsum([len(text.encode()) for text in texts])
    return texts[: max(1, int(np.searchsorted(total, size, "right")))]


def _in_feeds(encode: Callable[[Sequence[str]], Flat], texts: Sequence[str]) -> list[Flat]:
    """Texts encoded as `tokenize` does it, some megabytes at a time."""
    flats, start, size = [], 0, 0
    for i, text in enumerate(texts, 1):
        size += len(text)
        if size >= FEED or i == len(texts):
            flats.append(encode(texts[start:i]))
            start, size = i, 0
    return flats


def _loop(tokenizer: Tokenizer, lines: Sequence[str]) -> bytes:
    """Lines of JSON, each parsed, encoded alone to a list, ended, and made bytes."""
    dtype, eod = dtype_for(tokenizer.vocab_size), tokenizer.eod or 0
    pieces = []
    for line in lines:
        ids: list[int] = tokenizer.reference([json.loads(line)["text"]])[0].tolist()
        ids.append(eod)
        pieces.append(np.array(ids, dtype).tobytes())
    return b"".join(pieces)


def _seconds(work: Work, texts: Sequence[str]) -> float:
    began = time.process_time()
    work(texts)
    return max(time.process_time() - began, 1e-9)


def _size(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _opened(tokenizer: Path) -> tuple[dict[str, Tokenizer], list[Side]]:
    """The engines that encode this vocabulary exactly, and those that do not."""
    engines, sides = dict[str, Tokenizer](), []
    for name in ENGINES:
        if name == AUTO:
            continue
        began = time.process_time()
        try:
            engines[name] = load(tokenizer, engine=name, one_thread=True)
        except UsageError as error:
            why = str(error).removeprefix(f"--encoder {name} ").removesuffix("; leave it out")
            sides.append(Side(name, absent=why))
            continue
        sides.append(Side(name, start=time.process_time() - began))
    return engines, sides


def _compared(encode: Callable[[Sequence[str]], Flat], texts: Sequence[str], right: Sequence[Flat]) -> int:
    """How many documents have other ids than the right ones."""
    given, expected = _in_feeds(encode, texts), right
    wrong = 0
    for one, other in zip(given, expected, strict=True):
        ends = zip(one[1][:-1], one[1][1:], other[1][:-1], other[1][1:], strict=True)
        wrong += sum(not np.array_equal(one[0][a:b], other[0][c:d]) for a, b, c, d in ends)
    return wrong


def _rates(sides: dict[str, tuple[Work, Sequence[str]]], rounds: int) -> dict[str, float]:
    """Megabytes a second of each side; every round has other texts, since engines remember words.

    The first texts warm all sides up, and tell how much a slow one can do in its turn.
    """
    sizes, spent = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0.0)
    with progress("bench", rounds * len(sides), "turns") as shown:
        allowed = {}
        for name, (work, texts) in sides.items():
            few = _first(texts, FEW)
            allowed[name] = _size(few) / _seconds(work, few) * TURN
        for number in range(rounds):
            for name, (work, texts) in sides.items():
                fresh = texts[len(_first(texts, FEW)) :] or texts
                given = _first(fresh[number::rounds] or fresh, allowed[name])
                spent[name] += _seconds(work, given)
                sizes[name] += _size(given)
                shown.advance(1, name)
    return {name: sizes[name] / spent[name] / 1e6 for name in sides}


def bench(request: Request) -> Result:
    """Tries every engine on the beginning of a corpus; raises DataError when it holds no documents."""
    # libraries of Rust would start a thread a core
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    texts = _texts(request)
    engines, sides = _opened(request.tokenizer)
    reference = engines["reference"]
    work: dict[str, tuple[Work, Sequence[str]]] = {
        name: (partial(_in_feeds, tokenizer.encode_batch), texts) for name, tokenizer in engines.items()
    }
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    work[LOOP] = (partial(_loop, reference), lines)
    rates = _rates(work, request.rounds)
    few = _first(texts, rates["reference"] * 1e6 * TURN)
    right = _in_feeds(reference.reference, few)
    done = []
    for side in sides:
        if side.absent:
            done.append(side)
            continue
        wrong = _compared(engines[side.name].encode_batch, few, right)
        done.append(Side(side.name, side.start, rates[side.name], len(few), wrong))
    done.append(Side(LOOP, rate=rates[LOOP]))
    chosen = load(request.tokenizer, engine=AUTO, one_thread=True).engine
    return Result(tuple(done), len(texts), _size(texts), reference.library, chosen)
