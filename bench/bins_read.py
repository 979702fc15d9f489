"""How fast bins are read, beside a raw file of ids: python bench/bins_read.py [--dir DISK]

Claims: the first sample after opening 1,000 shards comes within 50 ms; a warm random sample of 2,049 ids
takes at most 5 us with its copy to int64; a cold one reads the pages that it lies on and nothing else. The
bins are made here, of random ids. Cold means that the kernel was told to drop the files from its cache; it
counts how often a reader then waits for the disk, and what it reads there (getrusage).
"""

import argparse
import mmap
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from mtl_common.bins import Bins, Writer
from mtl_common.tables import table

SAMPLE = 2049
VOCABULARY = 50_257
DOCUMENT = 1000  # ids
TURN = 500  # warm samples of one reader before the next one's turn; others every time
COLD = 300  # samples: so few that reading ahead does not bring in the whole file
Read = Callable[[int], object]


def tokenizer(path: Path) -> Path:
    """A tokenizer of the right size that stands for any: words are numbers."""
    from tokenizers import Tokenizer, models

    words = {str(number): number for number in range(1, VOCABULARY)}
    library = Tokenizer(models.WordLevel({"<|endoftext|>": 0, **words}, unk_token="<|endoftext|>"))
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(path))
    return path


def make(place: Path, tokens: int, shards: int) -> Path:
    """Bins of random ids, and beside them the same ids in one raw file."""
    words, generator = tokenizer(place / "tokenizer.json"), np.random.default_rng(1)
    with Writer(place / "bins", words, shard_tokens=max(DOCUMENT, tokens // shards)) as writer:
        for _ in range(tokens // DOCUMENT):
            writer.add(generator.integers(1, VOCABULARY, DOCUMENT - 1))
    bins = Bins(place / "bins", shuffled=False)
    with (place / "raw.bin").open("wb") as file:
        for index in range(len(bins.manifest.shards)):
            file.write(bins.shard(index).tokens.data)
    return bins.path


def opened(path: Path, rounds: int) -> Iterator[float]:
    """Seconds from nothing to the first sample, several times."""
    for _ in range(rounds):
        began = time.perf_counter()
        bins = Bins(path)
        bins.window(bins.tokens // 2, SAMPLE).astype(np.int64)
        yield time.perf_counter() - began


def microseconds(read: Read, starts: list[int]) -> float:
    """Mean time of a sample."""
    began = time.perf_counter()
    for start in starts:
        read(start)
    return (time.perf_counter() - began) / len(starts) * 1e6


def drop(directory: Path) -> None:
    """Puts files out of the kernel's cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def cold(place: Path, reader: Callable[[Path], Read], starts: list[int]) -> tuple[float, float, float]:
    """Of a sample that is not in memory: mean microseconds, waits of a fault for the disk, and kB read."""
    drop(place)
    read = reader(place)
    before = resource.getrusage(resource.RUSAGE_SELF)
    spent = microseconds(read, starts)
    after = resource.getrusage(resource.RUSAGE_SELF)
    size = (after.ru_inblock - before.ru_inblock) * 512 / 1000  # a block of this count is 512 bytes
    return spent, (after.ru_majflt - before.ru_majflt) / len(starts), size / len(starts)


def from_bins(place: Path) -> Read:
    """Our reader."""
    bins = Bins(place / "bins")
    return lambda start: bins.window(start, SAMPLE).astype(np.int64)


def from_memmap(place: Path) -> Read:
    """A map by numpy of a raw file, as Megatron's loaders and nanoGPT's have it."""
    ids = np.memmap(place / "raw.bin", np.uint16, "r")
    return lambda start: ids[start : start + SAMPLE].astype(np.int64)


def from_advised(place: Path) -> Read:
    """A map of a raw file that is told of random reads."""
    with (place / "raw.bin").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    ids = np.frombuffer(memory, np.uint16)
    return lambda start: ids[start : start + SAMPLE].astype(np.int64)


def from_pread(place: Path) -> Read:
    """One call of the system a sample."""
    file = os.open(place / "raw.bin", os.O_RDONLY)
    return lambda start: np.frombuffer(os.pread(file, 2 * SAMPLE, 2 * start), np.uint16).astype(np.int64)


READERS = {
    "mtl bins": from_bins,
    "numpy memmap, raw file": from_memmap,
    "mmap told of random reads, raw file": from_advised,
    "pread, raw file": from_pread,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--shards", type=int, default=1000, help="shards of the bins that are opened")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to be measured")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=asked.dir))
    try:
        report(place, asked)
    finally:
        shutil.rmtree(place)


def report(place: Path, asked: argparse.Namespace) -> None:
    (place / "many").mkdir()
    (place / "few").mkdir()
    spent = sorted(opened(make(place / "many", asked.shards * 3000, asked.shards), asked.rounds))
    print(f"first sample after opening {asked.shards:,} shards: best {spent[0] * 1e3:.1f} ms, ", end="")
    print(f"median {spent[len(spent) // 2] * 1e3:.1f} ms\n")
    make(place / "few", asked.tokens, 4)
    generator = np.random.default_rng(2)
    starts = generator.integers(0, asked.tokens - SAMPLE, 20_000).tolist()
    rows = [("a random sample of 2,049 ids as int64", "warm, us", "cold, us", "waits", "kB read")]
    found = {name: cold(place / "few", reader, starts[:COLD]) for name, reader in READERS.items()}
    readers = {name: reader(place / "few") for name, reader in READERS.items()}
    warm = dict.fromkeys(READERS, float("inf"))
    for _ in range(asked.rounds):  # the first touches all pages
        for first in range(0, len(starts), TURN):
            for name, read in readers.items():  # in short turns, so that a busy machine slows all alike
                warm[name] = min(warm[name], microseconds(read, starts[first : first + TURN]))
    for name, (alone, waits, size) in found.items():
        rows.append((name, f"{warm[name]:.2f}", f"{alone:.0f}", f"{waits:.2f}", f"{size:.1f}"))
    print(table(rows))


if __name__ == "__main__":
    main()
