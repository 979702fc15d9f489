"""Bins are the same bytes for any number of workers and any kill; a run continues only what it began."""

import fcntl
import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from corpus import stdlib_texts, train_bpe
from mtl_common.bins import Bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.find import check_unchanged, find
from mtl_prep.journal import Journal
from mtl_prep.running.tokenize import Request, tokenize
from preparing import Make, all_bytes, bad_of, json_lines
from scaling import done

RUN = "import sys, pathlib; from mtl_prep.running.tokenize import *; p = pathlib.Path; a = sys.argv\n"
RUN += "sizes = dict(part_bytes=40_000, shard_tokens=70_000)\n"
RUN += "tokenize(Request([p(a[1])], p(a[2]), p(a[3]), int(a[4]), max_bad='2', **sizes))"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with about a megabyte: plain and packed lines, source files, and some bad records."""
    tree = tmp_path_factory.mktemp("tree")
    texts = list(stdlib_texts(24))
    records = [*texts[:8], b"not json", "", *texts[8:12]]
    (tree / "a.jsonl").write_bytes(json_lines(records))
    (tree / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(json_lines(texts[12:18])))
    (tree / "c.jsonl.gz").write_bytes(gzip.compress(json_lines([*texts[18:20], b'{"text": 1}'])))
    for i, text in enumerate(texts[20:]):
        (tree / f"d{i}.py").write_text(text, "utf-8")
    return tree


def request(corpus: Path, tokenizer: Path, out: Path, **options: Any) -> Request:
    known: dict[str, Any] = {"workers": 1, "part_bytes": 40_000, "shard_tokens": 70_000, "max_bad": "2"}
    return Request([corpus], tokenizer, out, **{**known, **options})


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "bins"
    tokenize(request(corpus, tokenizer, out))
    return out


def test_the_corpus_exercises_units_and_shards(unbroken: Path) -> None:
    bins = Bins(unbroken)
    assert len(bins.manifest.shards) >= 4
    assert all(shard.tokens <= 70_000 or shard.documents == 1 for shard in bins.manifest.shards)
    assert bad_of(bins) == {"not JSON": 1, "empty": 1, "text not a string": 1}
    assert len(bins) == 24


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bytes(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path, workers: int
) -> None:
    tokenize(request(corpus, tokenizer, tmp_path / "bins", workers=workers))
    assert all_bytes(tmp_path / "bins") == all_bytes(unbroken)


def greedy(lengths: list[int], limit: int) -> list[list[int]]:
    """Documents into shards, one after the other."""
    shards: list[list[int]] = [[]]
    for length in lengths:
        if shards[-1] and sum(shards[-1]) + length > limit:
            shards.append([])
        shards[-1].append(length)
    return shards


@pytest.mark.parametrize("limit", [1, 7, 20, 64, 10_000])
def test_shards_are_cut_by_tokens_alone(make: Make, tmp_path: Path, limit: int) -> None:
    texts = ["x " * n for n in [3, 1, 1, 40, 2, 5, 5, 60, 61, 1, 1, 1, 30, 2]]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    bins = make(tmp_path / "a.jsonl", shard_tokens=limit, part_bytes=90)
    lengths = [len(bins.document(i)) for i in range(len(texts))]
    assert len(bins) == len(texts)
    wanted = greedy(lengths, limit)
    assert [shard.documents for shard in bins.manifest.shards] == [len(shard) for shard in wanted]
    assert [shard.tokens for shard in bins.manifest.shards] == [sum(shard) for shard in wanted]


def test_the_size_of_units_does_not_matter(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    tokenize(request(corpus, tokenizer, tmp_path / "bins", part_bytes=1 << 24))
    assert all_bytes(tmp_path / "bins") == all_bytes(unbroken)


def descendants(pid: int) -> set[int]:
    """All processes below one, by /proc."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return set()
    below = set(map(int, children))
    return below.union(*map(descendants, below))


def start(corpus: Path, tokenizer: Path, out: Path, workers: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", RUN, *map(str, (corpus, tokenizer, out, workers))]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ended(pids: set[int], limit: float) -> bool:
    until = time.monotonic() + limit
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def kill_after(process: "subprocess.Popen[bytes]", out: Path, more: int, delay: float) -> set[int]:
    """Kills the process some time after it has done `more` pieces of work; returns what was below it."""
    aim = done(out) + more
    below: set[int] = set()
    while process.poll() is None and done(out) < aim:
        below |= descendants(process.pid)
        time.sleep(0.005)
    time.sleep(delay)
    below |= descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    return below


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_and_continued(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path, workers: int
) -> None:
    out, chance = tmp_path / "bins", random.Random(workers)
    for turn in range(4):
        process = start(corpus, tokenizer, out, workers)
        below = kill_after(process, out, chance.randint(0, 6), chance.random() * 0.05)
        assert ended(below, 10), "worker processes outlived the one that started them"
        if turn > 0 and (out / "manifest.json").exists():
            break
        with pytest.raises(DataError, match=r"holds no finished token bins|no such directory"):
            Bins(out)
    tokenize(request(corpus, tokenizer, out, workers=workers))
    assert all_bytes(out) == all_bytes(unbroken)


def test_a_killed_worker_is_told_and_the_run_continues(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    command = [sys.executable, "-c", RUN, *map(str, (corpus, tokenizer, out, 2))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not done(out):
        time.sleep(0.005)
    workers = [pid for pid in descendants(process.pid) if is_worker(pid)]
    for pid in workers[:1]:
        os.kill(pid, signal.SIGKILL)
    _, told = process.communicate(timeout=60)
    if process.returncode:  # it may have been done just before
        assert "RankError: a worker process ended by signal 9" in told
    tokenize(request(corpus, tokenizer, out, workers=2))
    assert all_bytes(out) == all_bytes(unbroken)


def is_worker(pid: int) -> bool:
    """Whether a process is a fork of the fork server: its parent runs the same command line."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return False


def begun(corpus: Path, tokenizer: Path, out: Path) -> None:
    """Leaves a run unfinished: all units are done."""
    with pytest.raises(DataError, match="more than --max-bad 0"):
        tokenize(request(corpus, tokenizer, out, max_bad="0"))


def test_a_run_refused_for_bad_records_goes_on_with_a_larger_limit(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    begun(corpus, tokenizer, out)
    count = done(out)
    assert count > 5
    times = {path: path.stat().st_mtime_ns for path in (out / "_work").glob("*/unit-*")}
    assert times
    with pytest.raises(DataError, match="more than --max-bad 1"):
        tokenize(request(corpus, tokenizer, out, max_bad="1"))
    assert {path: path.stat().st_mtime_ns for path in times} == times
    tokenize(request(corpus, tokenizer, out, max_bad="2"))
    assert all_bytes(out) == all_bytes(unbroken)


def test_work_whose_file_was_lost_is_done_again(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    begun(corpus, tokenizer, out)
    first, second, *_ = sorted((out / "_work").glob("*/unit-*.arrow"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    tokenize(request(corpus, tokenizer, out))
    assert all_bytes(out) == all_bytes(unbroken)


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines(["a", "b"]))
    sources = find([path]).sources
    check_unchanged(sources)
    path.write_bytes(json_lines(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read"):
        check_unchanged(sources)


def test_other_options_are_refused_by_name(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    begun(corpus, tokenizer, out)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"text_key": "content"}, r'made with --text-key "text", not "content"'),
        ({"shard_tokens": 5}, r"made with --shard-tokens 70000, not 5"),
        ({"part_bytes": 5}, "begun by another version of mtl-prep"),
    ]
    for options, part in refused:
        with pytest.raises(UsageError, match=part):
            tokenize(request(corpus, tokenizer, out, **options))
    other = train_bpe(tmp_path / "tokenizer.json", 900)
    with pytest.raises(UsageError, match="made with another --tokenizer"):
        tokenize(request(corpus, other, out))


def test_a_changed_corpus_is_refused_by_name(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "bins"
    shutil.copytree(corpus, tree)
    begun(tree, tokenizer, out)
    for name, content, state in [
        ("d0.py", "x", "has changed"),
        ("new.py", "x", "is new"),
        ("a.jsonl", "", "is gone"),
    ]:
        shutil.rmtree(tree)
        shutil.copytree(corpus, tree)
        if content:
            (tree / name).write_text(content)
        else:
            (tree / name).unlink()
        with pytest.raises(UsageError, match=rf"{name} {state} since .*bins was begun"):
            tokenize(request(tree, tokenizer, out))


def test_finished_bins_are_known_again(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    first = tokenize(request(corpus, tokenizer, out))
    before = all_bytes(out)
    again = tokenize(request(corpus, tokenizer, out, workers=2))
    assert (first.already, again.already) == (False, True)
    assert again.manifest == first.manifest
    assert all_bytes(out) == before
    with pytest.raises(UsageError, match='made with --text-key "text", not "x"'):
        tokenize(request(corpus, tokenizer, out, text_key="x"))
    assert all_bytes(out) == before


def test_a_kill_between_manifest_and_tidying_is_harmless(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    tokenize(request(corpus, tokenizer, out))
    (out / "_work").mkdir()
    Journal(out / "_work").write("unit-00000000-00000000", {})
    assert tokenize(request(corpus, tokenizer, out)).already
    assert not (out / "_work").exists()


def test_a_directory_of_something_else_is_left_alone(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(UsageError, match="holds something else"):
        tokenize(request(corpus, tokenizer, tmp_path))
    with pytest.raises(UsageError, match="holds something else"):
        tokenize(request(corpus, tokenizer, tmp_path / "precious.txt"))
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_two_runs_do_not_write_the_same_bins(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    (out / "_work").mkdir(parents=True)
    with (out / "_work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another mtl-prep is writing"):
            tokenize(request(corpus, tokenizer, out))
    tokenize(request(corpus, tokenizer, out))
    assert len(Bins(out)) == 24


def test_a_full_disk_is_one_error_and_the_run_continues(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    # a limit on the size of files stands in for a full disk: both fail inside a write
    out = tmp_path / "bins"
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
    code = limit + RUN
    command = [sys.executable, "-c", code, *map(str, (corpus, tokenizer, out, 1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "OSError" in done.stderr
    with pytest.raises(DataError, match="no finished token bins"):
        Bins(out)
    tokenize(request(corpus, tokenizer, out))
    assert all_bytes(out) == all_bytes(unbroken)
