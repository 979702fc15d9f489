"""Real text as small bins, and the installed command, called in this process or started as one of its own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from corpus import make_bins, stdlib_texts, train_bpe
from ranks import warm

SHAPE = "model.hidden=32 model.heads=4 model.kv_heads=2 model.head_dim=8 model.ffn=64 model.layers=4"
BASE = ("--seq", "32", "--micro-batch", "2", "--global-batch", "8", "--lr", "3e-3", "--device", "cpu")
SMALL = [*BASE, *(part for key in SHAPE.split() for part in ("--set", key))]


@pytest.fixture(scope="session")
def bins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mtl_common.tokenizers import load

    folder = tmp_path_factory.mktemp("text")
    tokenizer = load(train_bpe(folder / "tokenizer.json", 301))
    documents = [tokenizer.encode(text[:4000]) for text in stdlib_texts(12)]
    assert tokenizer.eod is not None
    made = make_bins(folder / "bins", documents, tokenizer.vocab_size, eod=tokenizer.eod)
    tokenizer.save(made / "tokenizer")
    return made


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


class Command:
    """`mtl-train` on the small bins with a small model."""

    def __init__(self, bins: Path) -> None:
        self.bins = bins

    def line(self, out: Path, *more: object) -> list[str]:
        """The arguments of a run in `out`."""
        return ["--data", str(self.bins), "--out", str(out), *SMALL, *map(str, more)]

    def call(self, arguments: Sequence[str]) -> Result:
        """Runs the entry point in this process, where ranks start from the session's fork server."""
        from mtl_train.cli import main

        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["mtl-train", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main()
        return Result(int(end.value.code or 0), out.getvalue(), err.getvalue())

    def train(self, out: Path, *more: object) -> Result:
        """A run that must succeed."""
        result = self.call(self.line(out, *more))
        assert result.code == 0, result
        return result

    @contextlib.contextmanager
    def started(self, out: Path, *more: object) -> Iterator[subprocess.Popen[str]]:
        """A run as a process of its own, which is gone when the `with` ends."""
        command = [str(Path(sys.executable).with_name("mtl-train")), *self.line(out, *more)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def command(bins: Path) -> Command:
    warm()
    return Command(bins)


def metrics(out: Path, kind: str = "loss") -> list[dict[str, Any]]:
    """The records of a run that have this kind of number, without what depends on the clock."""
    clock = {"seconds", "tokens_per_second", "tflops_per_rank", "memory_mb"}
    lines = (out / "metrics.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [{k: v for k, v in r.items() if k not in clock} for r in records if kind in r]


@pytest.fixture(scope="session")
def read_metrics() -> Callable[..., list[dict[str, Any]]]:
    return metrics
