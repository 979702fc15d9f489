"""How long `--help` of every command takes: python bench/help_time.py

Claim: under 0.5 s each. Median of five runs, the first (which compiles bytecode) left out.
"""

import statistics
import subprocess
import time

COMMANDS = {
    "mtl-prep": ["train-tokenizer", "tokenize", "inspect"],
    "mtl-train": [],
    "mtl-ckpt": ["inspect", "verify", "reshard", "import", "export"],
    "mtl-serve": ["run", "generate"],
}


def seconds(words: list[str]) -> float:
    """One run's wall time."""
    began = time.perf_counter()
    subprocess.run([*words, "--help"], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Times and prints every command."""
    for tool, commands in COMMANDS.items():
        for command in [[], *([c] for c in commands)]:
            words = [tool, *command]
            seconds(words)
            print(f"{' '.join(words):28} {statistics.median(seconds(words) for _ in range(5)):.2f} s")


if __name__ == "__main__":
    main()
