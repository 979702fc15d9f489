"""Kills mtl-prep at random moments and compares the bytes: python bench/prep_kills.py --kills 50

Claim: after any number of SIGKILLs, of the whole run or of one of its processes, the same command completes
the bins with the bytes of an unbroken run; with 1, 2 or 4 workers, as tasks of an array job, in the order of
the corpus or of a seed. The corpus is Python's own library: plain, packed and a tree, with some bad records.
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
import zstandard

RUN = """
import json, pathlib, sys
from mtl_prep.running.shares import Share
from mtl_prep.running.array_job import finish_shares, tokenize_share
from mtl_prep.running.tokenize import Request, tokenize
asked = json.loads(sys.argv[1])
task, out, paths = asked.pop("task"), pathlib.Path(asked.pop("out")), map(pathlib.Path, asked.pop("paths"))
request = Request([next(paths)], next(paths), out, **asked)
if task == "finish":
    finish_shares(out, asked["workers"], None)
elif task:
    tokenize_share(request, Share(*task))
else:
    tokenize(request)
"""
SIZES = {"part_bytes": 60_000, "shard_tokens": 200_000, "piece_tokens": 50_000, "max_bad": "5"}
PATIENCE = 5  # kills of one command, after which it may finish


@dataclass(frozen=True)
class Place:
    """The corpus and the tokenizer of all runs."""

    corpus: Path
    tokenizer: Path

    def start(self, out: Path, task: object, workers: int, seed: int | None) -> "subprocess.Popen[bytes]":
        """Begins a command in a process group of its own."""
        paths = [str(self.corpus), str(self.tokenizer)]
        asked = {"paths": paths, "out": str(out), "task": task, "workers": workers, **SIZES}
        asked["shuffle_documents"] = seed
        command = [sys.executable, "-c", RUN, json.dumps(asked)]
        return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)


def make(directory: Path) -> Place:
    """Writes a corpus of about 4 MB and a small tokenizer."""
    corpus = directory / "corpus"
    corpus.mkdir()
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]
    lines = [orjson.dumps({"text": file.read_text("utf-8")}) + b"\n" for file in files]
    (corpus / "a.jsonl").write_bytes(b"".join([*lines[:50], b"no json\n", b'{"text": ""}\n']))
    (corpus / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines[50:80])))
    (corpus / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[80:90])))
    for file in files[90:]:
        shutil.copy(file, corpus)
    tool = [str(Path(sys.executable).with_name("mtl-prep")), "train-tokenizer", str(corpus)]
    more = ["--vocab-size", "2000", "--sample", "1MB", "--out", str(directory / "tokenizer")]
    subprocess.run([*tool, *more], check=True, stdout=subprocess.DEVNULL)
    return Place(corpus, directory / "tokenizer")


def digests(out: Path) -> dict[str, str]:
    """Name -> hash of every file below."""
    files = (path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def below(pid: int) -> list[int]:
    """All processes below one."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        children = [Path(f"/proc/{pid}/task/{t}/children").read_text().split() for t in threads]
    except OSError:
        return []
    found = [int(child) for each in children for child in each]
    return [*found, *(pid for child in found for pid in below(child))]


def kill(process: "subprocess.Popen[bytes]", chance: random.Random) -> str:
    """Kills a run, its group, or one of its processes; says which."""
    others = below(process.pid)
    how = chance.choice(["all", "parent", "one"] if others else ["parent"])
    if how == "all":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid if how == "parent" else chance.choice(others), signal.SIGKILL)
    process.communicate(timeout=60)
    return how


def finished(place: Place, out: Path, tasks: list[object], seed: int | None, chance: random.Random) -> int:
    """Runs the tasks to the end, killed on the way; gives how often."""
    kills = 0
    for task in tasks:
        for turn in range(PATIENCE + 1):
            process = place.start(out, task, chance.choice([1, 2, 4]), seed)
            until = time.monotonic() + chance.uniform(0.3, 5) if turn < PATIENCE else None
            while process.poll() is None and (until is None or time.monotonic() < until):
                time.sleep(0.01)
            if process.poll() is None:
                kill(process, chance)
                kills += 1
                continue
            _, told = process.communicate()
            if process.returncode == 0:
                break
            raise SystemExit(f"{task} failed: {told.decode()}")
    return kills


def main() -> None:
    """Kills until there were enough kills; fails at the first difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("other-bytes"), help="where other bytes are kept")
    asked = parser.parse_args()
    chance, kills, runs = random.Random(asked.seed), 0, 0
    with tempfile.TemporaryDirectory() as directory:
        place = make(Path(directory))
        wanted = {}
        for seed in (None, 7):
            out = Path(directory) / f"whole-{seed}"
            place.start(out, None, 1, seed).communicate()
            wanted[seed] = digests(out)
        while kills < asked.kills:
            seed, out = chance.choice([None, 7]), Path(directory) / f"run-{runs}"
            of = chance.choice([1, 2, 3])
            numbers = chance.sample(range(1, of + 1), of)
            tasks: list[object] = [None] if of == 1 else [*([n, of] for n in numbers), "finish"]
            more = finished(place, out, tasks, seed, chance)
            kills, runs = kills + more, runs + 1
            other = sorted({name for name, _ in wanted[seed].items() ^ digests(out).items()})
            told = f"other bytes in {', '.join(other)}" if other else "same bytes"
            print(f"{of} tasks, order {seed}, {more} kills: {told}", flush=True)
            if other:
                shutil.copytree(out, asked.keep, dirs_exist_ok=True)
                raise SystemExit(f"the bins are kept in {asked.keep}")
            shutil.rmtree(out)
    print(f"{kills} kills in {runs} runs, every time the bytes of an unbroken run")


if __name__ == "__main__":
    main()
