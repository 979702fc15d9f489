"""Trains byte-level BPE tokenizers: GPT-2's cutting of text, every byte a token, <|endoftext|> the first id.

The sample is drawn by a hash of each document's place, so the same corpus and size give the same tokenizer.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from mtl_common.errors import DataError, UsageError
from mtl_common.log import progress
from mtl_common.tokenizers import load
from mtl_prep.corpus import Split, find
from mtl_prep.units import Errors, Reading, documents

END = "<|endoftext|>"
SMALLEST = 257  # 256 bytes and the end of a document
PACKED_RATIO = 4  # text is about four times its packed size
PART_BYTES = 1 << 24  # read at a time
MEASURED = 1 << 22  # characters that the compression is measured on
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Trained:
    """A new tokenizer: asked-for and true size of its vocabulary, and what it makes of its own sample."""

    path: Path
    asked: int
    vocab_size: int
    documents: int
    characters: int
    bytes_per_token: float


def parse_size(text: str) -> int:
    """`"256MB"` -> 256_000_000; raises UsageError for what is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.strip().upper())
    if not found or not float(found[1]):
        raise UsageError(f"--sample {text} is no size; write it like 256MB")
    return round(float(found[1]) * UNITS[found[2]])


class Sample:
    """The documents to learn from, as an iterator that counts what it gave."""

    def __init__(self, reading: Reading, size: int) -> None:
        self.documents = self.characters = 0
        self.first: list[str] = []
        self._reading = reading
        text = sum(source.size * (PACKED_RATIO if source.packing else 1) for source in reading.sources)
        self._share = min(1.0, size / max(text, 1))
        self.expected = min(size, text)

    def _drawn(self, place: tuple[int, int]) -> bool:
        return xxhash.xxh3_64_intdigest(b"%d:%d" % place) < self._share * 2**64

    def __iter__(self) -> Iterator[str]:
        with progress("read", self.expected, "bytes") as shown:
            for found in documents(self._reading):
                for text, place in zip(found.texts, found.places, strict=True):
                    if self._share == 1.0 or self._drawn(place):
                        shown.advance(len(text))
                        self._count(text)
                        yield text

    def _count(self, text: str) -> None:
        if self.characters < MEASURED:
            self.first.append(text[:MEASURED])
        self.documents, self.characters = self.documents + 1, self.characters + len(text)


def _train(texts: Sample, vocab_size: int, path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if not texts.documents:
        raise DataError("no documents in the corpus, or none in so small a sample; see --sample")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def _place(out: Path) -> Path:
    """The file to write; raises UsageError when it is there already."""
    path = out if out.suffix == ".json" else out / "tokenizer.json"
    if path.exists():
        raise UsageError(f"{path} exists; choose another --out or remove it")
    return path


def train(
    corpus: Sequence[str | Path],
    vocab_size: int,
    out: Path,
    sample: str,
    text_key: str,
    split: Split = "file",
    errors: Errors = "bad",
) -> Trained:
    """Trains a tokenizer and writes it to `out`, a .json file or a directory that transformers also opens.

    Raises UsageError for a vocabulary below 257 or an existing `out`, DataError for a corpus not to be read.
    """
    if vocab_size < SMALLEST:
        raise UsageError(
            f"--vocab-size {vocab_size} is too small: 256 bytes and {END} are {SMALLEST} entries"
        )
    path = _place(out)
    reading = Reading(find(corpus, split).sources, text_key, PART_BYTES, errors)
    texts = Sample(reading, parse_size(sample))
    _train(texts, vocab_size, path)
    if path.parent == out:
        facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": END}
        (out / "tokenizer_config.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    tokenizer = load(path)
    tokens = len(tokenizer.encode_batch(texts.first)[0])
    size = sum(len(text.encode()) for text in texts.first)
    return Trained(
        path, vocab_size, tokenizer.vocab_size, texts.documents, texts.characters, size / max(tokens, 1)
    )
