"""What the tests of mtl-prep at scale share: a small corpus of every kind, requests, and processes."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from corpus import stdlib_texts
from mtl_prep.journal import Journal
from mtl_prep.running.array_job import tokenize_share
from mtl_prep.running.shares import Share
from mtl_prep.running.tokenize import Request
from preparing import json_lines

SIZES: dict[str, Any] = {"part_bytes": 40_000, "shard_tokens": 70_000, "piece_tokens": 30_000}
RUN = """
import json, sys, pathlib
from mtl_prep.running.shares import Share
from mtl_prep.running.array_job import finish_shares, tokenize_share
from mtl_prep.running.tokenize import Request, tokenize
corpus, tokenizer, out = map(pathlib.Path, sys.argv[1:4])
options = json.loads(sys.argv[4])
share = options.pop("share", None)
request = Request([corpus], tokenizer, out, **options)
if share == "finish":
    finish_shares(out, options["workers"], None)
elif share:
    tokenize_share(request, Share(*share))
else:
    tokenize(request)
"""


def write_tree(tree: Path, modules: int = 24) -> Path:
    """A tree of about 40 kB a module: plain and packed lines, source files, and some bad records."""
    texts = list(stdlib_texts(modules))
    third = modules // 3
    records = [*texts[:third], b"not json", "", *texts[third : third + 4]]
    (tree / "a.jsonl").write_bytes(json_lines(records))
    packed = json_lines(texts[third + 4 : -6])
    (tree / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(packed))
    (tree / "c.jsonl.gz").write_bytes(gzip.compress(json_lines([*texts[-6:-4], b'{"text": 1}'])))
    for i, text in enumerate(texts[-4:]):
        (tree / f"d{i}.py").write_text(text, "utf-8")
    return tree


def request(corpus: Path, tokenizer: Path, out: Path, **options: Any) -> Request:
    """A request with small units and shards."""
    return Request([corpus], tokenizer, out, **{"workers": 1, "max_bad": "2", **SIZES, **options})


def run_tasks(corpus: Path, tokenizer: Path, out: Path, shares: list[Share], **options: Any) -> None:
    """Does some tasks of an array job, one after the other."""
    for share in shares:
        tokenize_share(request(corpus, tokenizer, out, **options), share)


def in_process(corpus: Path, tokenizer: Path, out: Path, **options: Any) -> "subprocess.Popen[bytes]":
    """Starts a run in a process of its own; `share` is a task, or "finish"."""
    options = {"workers": 1, "max_bad": "2", **SIZES, **options}
    command = [sys.executable, "-c", RUN, *map(str, (corpus, tokenizer, out)), json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def descendants(pid: int) -> set[int]:
    """All processes below one, by /proc."""
    found: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            found |= set(map(int, children))
    except OSError:
        return set()
    return found.union(*map(descendants, found))


def doers(pid: int) -> list[int]:
    """The processes of Ray's below one that do pieces of work."""
    found = []
    for below in descendants(pid):
        try:
            name = Path(f"/proc/{below}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::do_task"):
            found.append(below)
    return found


def noted(directory: Path) -> int:
    """How many pieces of work a run has noted there; none when it ends just now, and removes them."""
    try:
        journal = Journal(directory)
    except FileNotFoundError:
        return 0
    return sum(len(journal.names(start)) for start in ("unit-", "run-", "range-", "shard-"))


def done(out: Path) -> int:
    """How many pieces of work of a run are finished."""
    return noted(out / "_work")


def wait_until(holds: Callable[[], bool], limit: float = 60) -> bool:
    """Waits until something holds; whether it did in time."""
    until = time.monotonic() + limit
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def gone(pids: set[int], limit: float = 15) -> bool:
    """Whether processes are gone in time."""
    return wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), limit)


def kill(process: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> set[int]:
    """Sends a signal to a process and waits for its end; returns what was below it."""
    below = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(number)
    process.communicate(timeout=60)
    return below
