"""What long work shows, and a metrics file that survives kills."""

import json
from pathlib import Path

import pytest

from mtl_common.log import JsonLines, duration, progress, quantity, read_json_lines


def test_plain_lines_tell_rate_and_time_left(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("tokenize", 4_000_000, "bytes", every=0.0) as shown:
        shown.advance(1_000_000)
        shown.advance(1_000_000, "3 bad records")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("tokenize: 1.0 MB of 4.0 MB (25%), ")
    assert "/s, " in lines[1]
    assert lines[1].endswith(" left, 3 bad records")


def test_lines_are_spaced(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("work", 1000, "steps", every=60.0) as shown:
        for _ in range(1000):
            shown.advance()
    assert capfd.readouterr().err == ""
    assert shown.done == 1000


def test_resumed_work_does_not_count_into_the_rate() -> None:
    with progress("work", 100, "steps", done=99, every=60.0) as shown:
        assert "99 of 100 steps (99%), 0 steps/s" in shown.line()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (3599.9, "1 h 0 min"), (90, "1 min 30 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (3.2e9, "3.2 GB"), (5e15, "5000.0 TB")],
)
def test_quantities(number: float, text: str) -> None:
    assert quantity(number, "bytes") == text


def test_records_append_over_runs(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        with JsonLines(path) as lines:
            lines.write({"step": step, "loss": 1 / step}, sync=True)
    assert list(read_json_lines(path)) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_a_record_is_whole_on_disk_after_write(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "m.jsonl") as lines:
        lines.write({"step": 1})
        assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n'


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2')
    with JsonLines(path) as lines:
        assert lines.records == [{"step": 1}]
        lines.write({"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_resumed_run_drops_the_steps_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"step": {i}}}\n' for i in range(5)))
    with JsonLines(path, keep=lambda record: record["step"] <= 2) as lines:
        lines.write({"step": 3})
    assert [r["step"] for r in read_json_lines(path)] == [0, 1, 2, 3]


def test_numbers_without_a_json_word_become_null(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "m.jsonl") as lines:
        lines.write({"loss": float("nan"), "norm": float("inf"), "lr": 0.1})
    text = (tmp_path / "m.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "loss": None,
        "norm": None,
        "lr": 0.1,
    }
