"""Launched ranks: results, errors named by rank, kills, stops, and nobody left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mtl_common.errors import ConfigError, RankError
from mtl_common.layout import Layout
from mtl_parallel.launch import finish, launch, start
from ranks import run_ranks


def sum_over_ranks(offset: int) -> tuple[int, float]:
    mesh = start(Layout(tp=2, dp=2), "cpu")
    x = torch.tensor([float(mesh.world.rank + offset)])
    dist.all_reduce(x, group=mesh.tp.group)
    finish()
    return mesh.world.rank, x.item()


def wait_for_a_message() -> None:
    dist.recv(torch.zeros(1), src=(dist.get_rank() + 1) % dist.get_world_size())


def fail_on_rank_one(kind: str, folder: Path) -> None:
    if dist.get_rank() == 1:
        (folder / "failed").write_text(str(time.monotonic()))
        if kind == "config":
            raise ConfigError("heads 3 cannot be divided by tp 2")
        if kind == "bug":
            raise ZeroDivisionError("division by zero")
        if kind == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_a_message()


def wrong_layout() -> None:
    start(Layout(tp=4), "cpu")


def sleep_on_rank_one() -> None:
    if dist.get_rank() == 1:
        time.sleep(100)


def test_results_come_back_by_rank() -> None:
    assert run_ranks(4, sum_over_ranks, 10) == [(0, 21.0), (1, 21.0), (2, 25.0), (3, 25.0)]


def test_an_entry_can_be_named_as_text() -> None:
    assert launch("os:getcwd", 1) == [os.getcwd()]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("config", ConfigError, "rank 1: heads 3 cannot be divided by tp 2"),
        ("bug", RankError, "rank 1 failed: ZeroDivisionError: division by zero"),
        ("exit", RankError, "rank 1 ended with exit code 7 and gave no reason"),
        ("kill", RankError, "rank 1 was killed by SIGKILL (the kernel does so when memory runs out)"),
    ],
)
def test_the_rank_that_failed_is_named_not_those_that_lost_it(
    tmp_path: Path, kind: str, error: type, message: str
) -> None:
    with pytest.raises(error) as caught:
        run_ranks(3, fail_on_rank_one, kind, tmp_path)
    assert time.monotonic() - float((tmp_path / "failed").read_text()) < 10
    assert str(caught.value) == message
    if kind == "bug":
        assert "in fail_on_rank_one" in str(caught.value.__cause__)


def test_a_layout_of_another_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="layout tp4 has 4 ranks but the world has 2"):
        run_ranks(2, wrong_layout)


def test_a_limit_ends_ranks_that_hang() -> None:
    with pytest.raises(RankError, match=r"rank .*1 of 2 had not ended after"):
        run_ranks(2, sleep_on_rank_one, limit=2)


def test_a_rank_that_does_not_come_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("mtl_parallel.rank.SPEAK_EVERY", 1.0)
    with pytest.raises(RankError, match="rank 1 of 3 did not come within 3 s"):
        start(Layout(tp=3), "cpu", patience=3)
    told = capsys.readouterr().err
    assert told == "waiting for rank 1 of 3 for 1 s\nwaiting for rank 1 of 3 for 2 s\n"
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        start(Layout(tp=3), "cpu")


SCRIPT = """
import os, pathlib, sys, time
from mtl_parallel.launch import launch

def rank(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(100)

if __name__ == "__main__":
    launch(rank, 3, (sys.argv[1],))
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ranks_end_with_their_launcher(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = tmp_path / "ranks"
    folder.mkdir()
    launcher = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(folder)])
    until(lambda: len(list(folder.iterdir())) == 3, 60)
    launcher.send_signal(number)
    assert launcher.wait(10) == code
    pids = [int(file.name) for file in folder.iterdir()]
    until(lambda: not any(map(running, pids)), 5)
