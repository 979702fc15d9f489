"""How long a training step takes beside transformers' and megatron-core's: python bench/train_step.py

Claims: one process is at least as fast as transformers in fp32 and bf16; tp2, pp2 and dp2 are at least as
fast as megatron-core. Both sides hold the same model, batch, dtype, threads (one a rank) and optimizer, and
step in turns (A B A B ...) in one run, so that a busy machine slows both alike. Peers get environments of
their own from the package registry, in bench/.venv-*. megatron-core has its CUDA calls mapped to the CPU
(bench/peers/megatron_step.py).
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = {
    "transformers": ["torch==2.13.0", "transformers==5.24.0"],
    "megatron": ["torch==2.13.0", "megatron-core==0.16.1", "psutil"],
}
WARM_UP = 2


@dataclass(frozen=True)
class Claim:
    """One comparison: how each side is started, and over how many ranks."""

    name: str
    ranks: int
    peer: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def _alone(name: str, ours: str, theirs: str) -> Claim:
    return Claim(name, 1, "transformers", ("--dtype", ours), ("--dtype", theirs))


def _together(name: str, layout: str, dtype: str = "fp32", zero: str = "0") -> Claim:
    options = ("--layout", layout, "--dtype", dtype, "--zero", zero, "--family", "megatron")
    return Claim(name, 2, "megatron", options, options)


CLAIMS = [
    _alone("fp32", "fp32", "fp32"),
    _alone("bf16", "bf16", "bf16"),
    _alone("bf16-autocast", "bf16", "autocast"),
    _together("tp2", "tp2"),
    _together("pp2", "pp2"),
    _together("dp2", "dp2"),
    _together("dp2-zero1", "dp2", zero="1"),
    _together("tp2-bf16", "tp2", "bf16"),
    _together("pp2-bf16", "pp2", "bf16"),
    _together("dp2-bf16", "dp2", "bf16"),
]


def environment(name: str) -> Path:
    """The peer's Python, its environment made when it is not there yet."""
    folder = HERE / f".venv-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {' '.join(ENVIRONMENTS[name])} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *ENVIRONMENTS[name]], check=True)
        (folder / "complete").touch()
    return python


class Side:
    """The ranks of one side, waiting for their turn."""

    def __init__(self, python: Path, script: str, ranks: int, options: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        self.script = script
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the ranks
        self.processes = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **meeting} if ranks > 1 else {}
            self.processes.append(
                subprocess.Popen(
                    [python, HERE / "peers" / script, *options],
                    env={**os.environ, "OMP_NUM_THREADS": "1", **place},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    text=True,
                )
            )
        self._answers()

    def step(self) -> dict[str, Any]:
        """One step: the slowest rank's seconds, CPU seconds and memory of all ranks, the last one's loss."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        answers = self._answers()
        return {
            "seconds": max(a["seconds"] for a in answers),
            "cpu": sum(a["cpu"] for a in answers),
            "loss": answers[-1]["loss"],
            "peak": sum(a["peak"] for a in answers),
        }

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for process in self.processes:
            assert process.stdout
            line = process.stdout.readline()
            while line and not line.startswith("{"):  # a library that talks on stdout
                line = process.stdout.readline()
            if not line:
                self.log.seek(0)
                raise SystemExit(f"a rank of {self.script} ended early:\n{self.log.read()[-2000:]}")
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        """Ends the ranks."""
        for process in self.processes:
            process.kill()
            process.wait()


def _median(steps: list[dict[str, Any]], what: str) -> float:
    return statistics.median(float(step[what]) for step in steps)


def _describe(steps: list[dict[str, Any]]) -> str:
    losses = f"loss {steps[0]['loss']:.3f} to {steps[-1]['loss']:.3f}"
    return f"{_median(steps, 'seconds') * 1e3:6.0f} ms {steps[-1]['peak']:5} MB {losses}"


def measure(claim: Claim, steps: int) -> float:
    """Prints one comparison and returns how many times as fast our step is.

    One process on one thread never waits, so that its CPU seconds are what it takes on a free machine;
    ranks are judged by wall time.
    """
    theirs = Side(environment(claim.peer), f"{claim.peer}_step.py", claim.ranks, claim.theirs)
    ours = Side(Path(sys.executable), "mtl_step.py", claim.ranks, claim.ours)
    try:
        pairs = [(ours.step(), theirs.step()) for _ in range(WARM_UP + steps)]
    finally:
        ours.close()
        theirs.close()
    mine, other = ([pair[i] for pair in pairs[WARM_UP:]] for i in (0, 1))
    wall, cpu = (_median(other, what) / _median(mine, what) for what in ("seconds", "cpu"))
    print(
        f"{claim.name:14} mtl {_describe(mine)} | {claim.peer} {_describe(other)}"
        f" | {wall:.2f} times as fast, by CPU seconds {cpu:.2f}",
        flush=True,
    )
    return cpu if claim.ranks == 1 else wall


def main() -> None:
    """Measures every claim, or those named; exits 1 when one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [claim.name for claim in CLAIMS]
    parser.add_argument("claims", nargs="*", choices=[[], *names], metavar="CLAIM", help=", ".join(names))
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each side (12)")
    options = parser.parse_args()
    chosen = [claim for claim in CLAIMS if not options.claims or claim.name in options.claims]
    slower = [claim.name for claim in chosen if measure(claim, options.steps) < 1]
    if slower:
        raise SystemExit(f"slower than the peer: {', '.join(slower)}")


if __name__ == "__main__":
    main()
