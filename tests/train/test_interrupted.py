"""Runs that end early: killed, asked to stop, a rank lost. And runs that others start."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtl_common.checkpoint import Checkpoint, newest, verify
from mtl_parallel.launch import Ranks
from mtl_train.plan import Plan, prepare
from ranks import PRELOAD

Metrics = Callable[..., list[dict[str, Any]]]


def plan(bins: Path, out: Path, steps: int) -> Plan:
    shape = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 64, "layers": 2, "seq": 16}
    return prepare(
        {
            "model": shape,
            "data": {"bins": bins, "valid": 0.0},
            "batch": {"micro_batch": 1, "global_batch": 2},
            "layout": {"tp": 2},
            "checkpoint": {"every": 1, "keep_last": 1},
            "run": {"out": out, "steps": steps, "device": "cpu"},
        }
    )


def ranks(bins: Path, out: Path) -> Ranks:
    made = plan(bins, out, 10_000)
    arguments = (made.settings, made.layout, made.resume, made.header)
    return Ranks("mtl_train.loop:run", 2, arguments, preload=PRELOAD)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.005)


def saves(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoints").glob("iter_*")}


def killed_in_a_save(bins: Path, out: Path, delay: float) -> bool:
    """Goes on with the run until its first save, then kills all ranks `delay` seconds into the next one.

    Returns whether the kill left that save half written.
    """
    before, staged = saves(out), out / "checkpoints"
    with ranks(bins, out) as running:
        until(lambda: running.poll(0) or saves(out) - before)
        until(lambda: any(staged.glob(".tmp-iter_*")))
        time.sleep(delay)
        running.kill()
    return any(staged.glob(".tmp-iter_*"))


def test_a_kill_at_any_moment_leaves_a_checkpoint_to_go_on_from(bins: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    steps, half_written = [0], 0
    for _ in range(20):
        half_written += killed_in_a_save(bins, tmp_path, chance.uniform(0, 0.03))
        path = newest(tmp_path / "checkpoints")
        assert verify(path) == []
        steps.append(Checkpoint(path).step)
    assert steps == sorted(set(steps))  # every run loaded the last one's checkpoint and went further
    assert half_written >= 5


def assert_readable_without_torch(result: object) -> None:
    """A launcher that had to import torch for what its ranks return would end seconds late."""
    code = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], input=pickle.dumps(result)).returncode == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_asked_of_one_rank_stops_all_with_one_save(bins: Path, tmp_path: Path, rank: int) -> None:
    with ranks(bins, tmp_path) as running:
        until(lambda: saves(tmp_path))
        pid = running.pids[rank]
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
        until(lambda: running.poll(0.1), 30)
        assert {outcome.signal for outcome in running.results} == {signal.SIGTERM}
        step = running.results[0].step
    assert_readable_without_torch(running.results[0])
    assert saves(tmp_path) == {f"iter_{step:07d}"}
    assert verify(newest(tmp_path / "checkpoints")) == []


def started_ranks(launcher: subprocess.Popen[str]) -> list[int]:
    """Process ids of the ranks: children of the fork server, which is a child of the launcher."""

    def children(pid: int) -> list[int]:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    return sorted(rank for child in children(launcher.pid) for rank in children(child))


def lines_until(process: subprocess.Popen[str], start: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start):
            return lines
    raise AssertionError("".join(lines))


def test_a_killed_rank_ends_the_run_and_is_named(command: Any, tmp_path: Path) -> None:
    with command.started(tmp_path, "--tp", 2, "--steps", 100_000) as process:
        lines_until(process, "step      2/")
        pids = started_ranks(process)
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        began = time.monotonic()
        _, err = process.communicate(timeout=20)
        assert time.monotonic() - began < 10
        assert process.returncode == 1
        assert err == "error: rank 1 was killed by SIGKILL (the kernel does so when memory runs out)\n"
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_saves_and_goes_on(
    command: Any, tmp_path: Path, read_metrics: Metrics, number: int, code: int
) -> None:
    world = ("--tp", 2) if number == signal.SIGINT else ()
    with command.started(tmp_path, *world, "--steps", 1000) as process:
        lines_until(process, "step    2/")
        process.send_signal(number)
        if number == signal.SIGTERM:
            process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == code
    step = Checkpoint(newest(tmp_path / "checkpoints")).step
    assert step >= 2
    assert f"stopped as asked after step {step} of 1000" in out
    command.train(tmp_path, "--steps", step + 1, "--set", "schedule.steps=1000")
    assert [r["step"] for r in read_metrics(tmp_path)] == list(range(1, step + 2))


def test_torchrun_starts_ranks_and_dp_follows(command: Any, tmp_path: Path, read_metrics: Metrics) -> None:
    tool = Path(sys.executable).with_name("mtl-train")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
    ]
    arguments = command.line(tmp_path / "joined", "--steps", 3)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(tool), *arguments], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "ranks     2 as dp2" in done.stdout
    assert done.stdout.count("next: mtl-serve run") == 1
    command.train(tmp_path / "alone", "--steps", 3)
    joined, alone = read_metrics(tmp_path / "joined"), read_metrics(tmp_path / "alone")
    assert [r["loss"] for r in joined] == pytest.approx([r["loss"] for r in alone], rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (("--tp", "4"), "tp 4 x pp 1 does not fit the 2 ranks that were started"),
        (("--dp", "3"), "tp 1 x pp 1 x dp 3 does not fit the 2 ranks that were started"),
    ],
)
def test_a_world_that_does_not_fit_is_refused(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = command.call(command.line(tmp_path, *layout))
    assert result.code == 2
    assert says in result.err
