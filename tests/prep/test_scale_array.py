"""The tasks of an array job: disjoint shares of a corpus, in any order and at once, and the same bytes."""

import fcntl
import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.find import find
from mtl_prep.journal import Journal
from mtl_prep.running import stages
from mtl_prep.running.array_job import finish_shares, tokenize_share
from mtl_prep.running.plan import Plan, decide
from mtl_prep.running.shares import Share, parse_share, ranges
from mtl_prep.running.tokenize import tokenize
from preparing import all_bytes, json_lines, prep
from scaling import SIZES, done, gone, in_process, kill, request, run_tasks, write_tree


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "bins"
    tokenize(request(corpus, tokenizer, out))
    return out


def all_shares(of: int) -> list[Share]:
    return [Share(number, of) for number in range(1, of + 1)]


@pytest.mark.parametrize("of", [1, 3, 8])
def test_tasks_in_any_order_and_finish_give_the_same_bytes(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path, of: int
) -> None:
    run_tasks(corpus, tokenizer, tmp_path / "bins", list(reversed(all_shares(of))))
    finish_shares(tmp_path / "bins", 1, None)
    assert all_bytes(tmp_path / "bins") == all_bytes(unbroken)


def units(out: Path) -> list[str]:
    return Journal(out / "_work").names("unit-")


def test_shares_are_disjoint_about_equal_and_together_the_whole(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    whole, found, sizes = tmp_path / "whole", Counter[str](), []
    for share in all_shares(4):
        out = tmp_path / str(share.number)
        sizes.append(tokenize_share(request(corpus, tokenizer, out), share).size)
        found.update(units(out))
    tokenize_share(request(corpus, tokenizer, whole), Share(1, 1))
    assert found == Counter(units(whole))
    assert len(found) > 15
    assert max(sizes) - min(sizes) < 3 * SIZES["part_bytes"]


def test_shares_do_not_depend_on_the_processes_of_a_task(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    for share in all_shares(3):
        one, several = tmp_path / f"one{share.number}", tmp_path / f"several{share.number}"
        tokenize_share(request(corpus, tokenizer, one, workers=1), share)
        tokenize_share(request(corpus, tokenizer, several, workers=3), share)
        assert units(one) == units(several) != []


def test_tasks_at_once_in_processes_give_the_same_bytes(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    running = [in_process(corpus, tokenizer, out, share=[number, 2]) for number in (1, 2)]
    for process in running:
        _, told = process.communicate(timeout=100)
        assert process.returncode == 0, told
    finish_shares(out, 1, None)
    assert all_bytes(out) == all_bytes(unbroken)


def test_tasks_of_two_sizes_of_job_may_be_mixed(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    run_tasks(corpus, tokenizer, out, [Share(2, 3), Share(1, 2), Share(2, 2)])
    finish_shares(out, 1, None)
    assert all_bytes(out) == all_bytes(unbroken)


def test_a_run_of_its_own_completes_what_tasks_began(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    run_tasks(corpus, tokenizer, tmp_path / "bins", [Share(2, 4)])
    tokenize(request(corpus, tokenizer, tmp_path / "bins"))
    assert all_bytes(tmp_path / "bins") == all_bytes(unbroken)


def test_finish_names_the_tasks_that_are_not_done(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    run_tasks(corpus, tokenizer, out, [Share(1, 6), Share(3, 6)])
    with pytest.raises(DataError, match=r"task 2,4-6 of 6 of .* is not done, \d+ units are left"):
        finish_shares(out, 1, None)
    run_tasks(corpus, tokenizer, out, [Share(number, 6) for number in (2, 4, 5, 6)])
    finish_shares(out, 1, None)
    assert all_bytes(out) == all_bytes(unbroken)


def test_a_finish_killed_before_it_tidied_up_is_finished(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    shutil.copytree(unbroken, out)
    (out / "_work" / "00").mkdir(parents=True)
    (out / "_work" / "00" / "unit-x.arrow").write_bytes(b"x")
    outcome, _ = finish_shares(out, 1, None)
    assert outcome.already
    assert all_bytes(out) == all_bytes(unbroken)


def test_a_task_done_again_does_nothing(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    assert tokenize_share(request(corpus, tokenizer, out), Share(1, 2)).tasks > 0
    before = all_bytes(out)
    assert tokenize_share(request(corpus, tokenizer, out), Share(1, 2)).tasks == 0
    assert all_bytes(out) == before


def test_finish_keeps_the_limit_of_bad_records_or_takes_another(
    corpus: Path, tokenizer: Path, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    run_tasks(corpus, tokenizer, out, all_shares(2), max_bad="1")
    with pytest.raises(DataError, match="more than --max-bad 1"):
        finish_shares(out, 1, None)
    finish_shares(out, 1, "2")
    assert all_bytes(out) == all_bytes(unbroken)


def test_another_request_is_refused_by_name(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    run_tasks(corpus, tokenizer, out, [Share(1, 3)])
    with pytest.raises(UsageError, match="made with --shard-tokens 70000, not 5"):
        run_tasks(corpus, tokenizer, out, [Share(2, 3)], shard_tokens=5)
    with pytest.raises(UsageError, match="made without --shuffle-documents"):
        run_tasks(corpus, tokenizer, out, [Share(2, 3)], shuffle_documents=1)


def held(path: Path, how: int) -> Callable[[], None]:
    lock = path.open("a+")
    fcntl.flock(lock, how)
    return lock.close


def test_who_may_write_at_the_same_time(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "bins"
    run_tasks(corpus, tokenizer, out, all_shares(2))
    release = held(out / "_work" / "lock", fcntl.LOCK_SH)  # as a running task does
    for start in (lambda: finish_shares(out, 1, None), lambda: tokenize(request(corpus, tokenizer, out))):
        with pytest.raises(UsageError, match="another mtl-prep is writing"):
            start()
    other = held(out / "_work" / "lock-1-2", fcntl.LOCK_EX)
    run_tasks(corpus, tokenizer, out, [Share(2, 2)])
    with pytest.raises(UsageError, match="task 1/2 is running already"):
        run_tasks(corpus, tokenizer, out, [Share(1, 2)])
    other()
    release()
    finish_shares(out, 1, None)


def test_of_tasks_that_start_at_once_one_writes_the_plan(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "_work").mkdir()
    plan = Plan(find([corpus]), "fingerprint", {"text_key": "text"}, 5)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: decide(tmp_path, plan, {"by": number}), range(32)))
    assert len({content["by"] for content in found}) == 1
    assert [path.name for path in (tmp_path / "_work").iterdir()] == ["plan.json"]


def test_the_commands(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.jsonl"  # small files would all be one unit
    large.write_bytes(json_lines(["words in a row " * 10_000] * 40))
    files = ("tokenize", corpus, large, "--tokenizer", tokenizer)
    common = (*files, "--out", "bins", "--workers", 1, "--max-bad", 2)
    done = prep(*common, "--task", "1/2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "task  1 of 2" in done.stdout
    assert "next: mtl-prep finish bins" in done.stdout
    early = prep("finish", "bins", cwd=tmp_path)
    assert early.returncode == 1
    assert "task 2 of 2 of bins is not done" in early.stderr
    assert prep(*common, "--task", "2/2", cwd=tmp_path).returncode == 0
    finished = prep("finish", "bins", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "64 documents + 3 bad" in finished.stdout
    assert prep("finish", "bins", cwd=tmp_path).returncode == 0
    assert prep("verify", "bins", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("text", ["3", "a/b", "-1/2", "/64", "1/2/3"])
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--task .* write it like 3/64"):
        parse_share(text)
    assert parse_share("3/64") == Share(3, 64)


def test_tasks_are_numbered_from_1() -> None:
    with pytest.raises(UsageError, match=r"--task 65/64 is none: 64 tasks are numbered from 1 to 64$"):
        parse_share("65/64")
    with pytest.raises(UsageError, match=r"--task 0/64 is none: .* from 1 to 64, so add 1 to those of an"):
        parse_share("0/64")
    with pytest.raises(UsageError, match="--task 1/0 is none"):
        parse_share("1/0")


def test_finish_without_a_run_or_from_elsewhere(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no unfinished run in"):
        finish_shares(tmp_path / "none", 1, None)
    monkeypatch.chdir(corpus.parent)
    out = tmp_path / "bins"
    run_tasks(Path(corpus.name), tokenizer, out, [Share(1, 1)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"begun in {corpus.parent}, and its corpus is named from there"):
        finish_shares(out, 1, None)


def test_ranges_are_those_of_slurm() -> None:
    assert ranges([5, 1, 2, 3, 9]) == "1-3,5,9"
    for size in range(6):
        for numbers in itertools.combinations(range(1, 8), size):
            parts = [part.split("-") for part in ranges(numbers).split(",") if part]
            assert tuple(n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)) == numbers


def test_tasks_and_finish_killed_at_random_moments_run_again(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    out, whole, chance, kills = tmp_path / "bins", tmp_path / "whole", random.Random(5), 0
    tokenize(request(corpus, tokenizer, whole, shuffle_documents=4))
    for share in ([2, 2], [1, 2], "finish"):
        for turn in range(3):
            aim = done(out) + chance.randint(1, 3)
            process = in_process(corpus, tokenizer, out, share=share, shuffle_documents=4)
            while turn < 2 and process.poll() is None and done(out) < aim:
                time.sleep(0.01)
            if turn < 2 and process.poll() is None:
                assert gone(kill(process)), "processes outlived the one that started them"
                kills += 1
                continue
            _, told = process.communicate(timeout=100)
            assert process.returncode == 0, told
            break
    assert kills >= 3
    assert all_bytes(out) == all_bytes(whole)


class Late(Journal):
    """A journal on a file server that shows notes of others after some looks."""

    looks = 0

    def refresh(self) -> None:
        self.looks += 1
        if self.looks > 3:
            super().refresh()


def test_notes_that_a_file_server_shows_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(tmp_path)
    Journal(tmp_path).write("unit-1", {})
    monkeypatch.setattr(stages.time, "sleep", lambda _: None)
    stages.catch_up(late, ["unit-1"], late.has)
    assert late.looks == 4
    monkeypatch.setattr(stages, "LATE", 0)
    with pytest.raises(DataError, match="notes of 1 finished pieces of work are not to be seen in"):
        stages.catch_up(late, ["unit-1", "unit-2"], late.has)
