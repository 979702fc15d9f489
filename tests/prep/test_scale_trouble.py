"""Signals, full and forbidden disks, processes that hang: one sentence, and a run that can be continued."""

import errno
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mtl_common.errors import DataError, RankError
from mtl_prep.journal import Journal
from mtl_prep.running import pool
from mtl_prep.running.tokenize import tokenize
from mtl_prep.running.trouble import disk_told
from preparing import all_bytes
from scaling import descendants, done, gone, request, wait_until, write_tree
from working import Odd

LIMIT = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of six units of the usual size, small units being no option of the command."""
    path = tmp_path_factory.mktemp("large") / "a.jsonl"
    line = b'{"text": "%s"}\n' % (b"words and words in a row, " * 400)
    path.write_bytes(line * 10_000)
    return path


def command(corpus: Path, tokenizer: Path, out: Path, *more: str) -> list[str]:
    tool = str(Path(sys.executable).with_name("mtl-prep"))
    return [tool, "tokenize", *map(str, (corpus, "--tokenizer", tokenizer, "--out", out)), *more]


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_soon_and_leaves_no_process(
    large: Path, tokenizer: Path, tmp_path: Path, workers: str, number: signal.Signals
) -> None:
    out = tmp_path / "bins"
    process = subprocess.Popen(
        command(large, tokenizer, out, "--workers", workers), stderr=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: process.poll() is not None or done(out) > 0)
    below = descendants(process.pid)
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert told.splitlines()[-1] == f"error: stopped by {number.name}; run again to continue"
    assert "Traceback" not in told
    assert gone(below)
    before = done(out)
    assert before > 0
    assert not (out / "manifest.json").exists()


def test_no_room_for_files_is_one_sentence_and_the_run_continues(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out, whole = tmp_path / "bins", tmp_path / "whole"
    arguments = command(corpus, tokenizer, out, "--workers", "1", "--max-bad", "2")[1:]
    code = f"{LIMIT}\nsys.argv[1:] = {arguments!r}\nfrom mtl_prep.cli import main\nmain()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    told = ended.stderr.splitlines()[-1]
    remedy = (
        "file too large; allow larger files, or choose a smaller --shard-tokens, and run again to continue"
    )
    assert told.startswith("error: ")
    assert remedy in told
    assert str(out) in ended.stderr
    for place in (out, whole):
        subprocess.run(
            command(corpus, tokenizer, place, "--max-bad", "2"), check=True, timeout=60, capture_output=True
        )
    assert all_bytes(out) == all_bytes(whole)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A file system of its own; skips the test where none can be mounted."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_sentence_and_the_run_continues_with_more_room(
    corpus: Path, tokenizer: Path, tmp_path: Path, workers: int
) -> None:
    tokenize(request(corpus, tokenizer, tmp_path / "whole", shuffle_documents=3))
    with small_disk(tmp_path / "disk", "300k"):
        out, told = tmp_path / "disk" / "bins", []
        for room in ("300k", "600k", "900k", "1200k", "1600k", "20m"):
            subprocess.run(["mount", "-o", f"remount,size={room}", str(tmp_path / "disk")], check=True)
            try:
                tokenize(request(corpus, tokenizer, out, shuffle_documents=3, workers=workers))
                break
            except DataError as error:
                told.append(str(error))
        assert len(told) >= 2
        assert all("no space left on device; free some space, and run again to continue" in t for t in told)
        assert all(str(tmp_path / "disk") in t for t in told)
        assert all_bytes(out) == all_bytes(tmp_path / "whole")


def test_a_forbidden_place_is_one_sentence(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m"):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(DataError, match=r"disk/bins: read-only file system; choose a file system that"):
            tokenize(request(corpus, tokenizer, tmp_path / "disk" / "bins"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EDQUOT, errno.EROFS])
def test_what_the_disk_says_has_path_and_remedy(number: int) -> None:
    with pytest.raises(DataError, match=r"^a/b: .*; .*, and run again to continue$"), disk_told(Path("out")):
        raise OSError(number, os.strerror(number), "a/b")
    with pytest.raises(DataError, match=r"^out: "), disk_told(Path("out")):
        raise OSError(number, os.strerror(number))
    with pytest.raises(FileNotFoundError), disk_told(Path("out")):
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_pool_does_every_task(workers: int) -> None:
    tasks = [3, 0, 5, 1, 1]
    assert sorted(pool.run(Odd(), tasks, workers)) == sorted(step for n in tasks for step in range(n))


def test_processes_that_stand_still_are_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STILL", 3.0)
    with pytest.raises(RankError, match=r"done anything for 3\.0 s: process \d+ is at hang"):
        list(pool.run(Odd(), [2, "hang", 2], 2))
    assert wait_until(lambda: not multiprocessing.active_children(), 15)


def test_a_process_gives_signs_of_life_only_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BEAT", 0.2)
    signs: list[float] = []
    pool.keep_telling(lambda: signs.append(time.monotonic()))
    until = time.process_time() + 0.5
    while time.process_time() < until:
        sum(range(1000))
    assert wait_until(lambda: len(signs) > 0, 10)
    time.sleep(0.5)
    before = len(signs)
    time.sleep(1)
    assert len(signs) - before <= 1
    monkeypatch.setattr(pool, "BEAT", 1e6)


@pytest.mark.parametrize(
    ("task", "kind", "part"),
    [
        ("die", RankError, "ended by signal 9, perhaps for want of memory; run again"),
        ("raise", OSError, "some/file"),
    ],
)
def test_a_worker_that_fails_is_told(task: str, kind: type[Exception], part: str) -> None:
    with pytest.raises(kind, match=part):
        list(pool.run(Odd(), [1, task], 2))
    assert wait_until(lambda: not multiprocessing.active_children(), 15)


def test_a_line_cut_by_a_kill_is_none(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.write("unit-1", {"size": 1})
    first.write("unit-2", {"size": 2})
    (log,) = tmp_path.glob("log-*")
    log.write_bytes(log.read_bytes()[:-3])
    again = Journal(tmp_path)
    assert again.names("unit-") == ["unit-1"]
    again.write("unit-2", {"size": 3})
    assert Journal(tmp_path).read("unit-2") == {"size": 3}
    assert Journal(tmp_path).read("unit-1") == {"size": 1}


def test_what_is_forgotten_may_be_noted_again_in_any_process(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.write("a", {"by": "one"})
    other.write("b", {"by": "other"})
    one.refresh()
    one.forget("b")
    other.refresh()
    assert (other.has("a"), other.has("b")) == (True, False)
    assert Journal(tmp_path).names("") == ["a"]
    third = Journal(tmp_path)
    third.write("b", {"by": "third"})
    third.forget("a")
    third.write("a", {"by": "third"})
    assert [Journal(tmp_path).read(name) for name in ("a", "b")] == [{"by": "third"}] * 2


def _note(place: tuple[str, int]) -> None:
    directory, number = place
    journal = Journal(Path(directory))
    for i in range(50):
        journal.write(f"unit-{number}-{i}", {"number": number, "i": i})


def test_many_processes_note_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as processes:
        list(processes.map(_note, [(str(tmp_path), number) for number in range(8)]))
    journal = Journal(tmp_path)
    assert len(journal.names("unit-")) == 400
    assert all(journal.read(f"unit-{n}-{i}") == {"number": n, "i": i} for n in range(8) for i in range(50))


def test_a_journal_that_cannot_be_written_stays_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("first", {"x": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
        with pytest.raises(OSError, match=r"(?i)no space|too large"):
            journal.write("second", {"x": "long" * 20})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not journal.has("second")
    journal.write("third", {"x": 3})
    assert Journal(tmp_path).names("") == ["first", "third"]
    assert Journal(tmp_path).read("third") == {"x": 3}


def test_a_journal_of_many_units_takes_little_memory(tmp_path: Path) -> None:
    count = 20_000
    with (tmp_path / "log-00000001-x").open("wb") as file:
        for i in range(count):
            file.write(b'unit-00000000-%08d\t{"size":1,"text":"%s"}\n' % (i, b"x" * 500))
    tracemalloc.start()
    journal = Journal(tmp_path)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(journal.names("unit-")) == count
    assert used / count < 300
