"""The habits of every command line, seen from outside: exit codes, one-line errors, quick help."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = """
import os
import sys
from typing import Annotated
import typer
from mtl_common.command import next_command, run, tool
from mtl_common.errors import ConfigError, DataError

app = tool("mtl-common", "A tool for tests.")

@app.command()
def work(name: str, workers: Annotated[int, typer.Option(help="Processes.")] = 1) -> None:
    \"\"\"Does the work.\"\"\"
    if name == "data":
        raise DataError("corpus.jsonl is empty; give a corpus with text")
    if name == "config":
        raise ConfigError("tp is 0; it is 1 or more")
    if name == "file":
        open("/absent/file")
    if name == "bug":
        {}["key"]
    if name == "interrupt":
        raise KeyboardInterrupt
    next_command(f"mtl-serve run {name}")

@app.command()
def inspect(path: str) -> None:
    \"\"\"Looks.\"\"\"

run(app)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command") / "tool.py"
    path.write_text(TOOL)
    return path


def call(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=60
    )


def test_success_names_the_next_command(script: Path) -> None:
    done = call(script, "work", "runs/x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "next: mtl-serve run runs/x\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["work", "data"], 1, "error: corpus.jsonl is empty; give a corpus with text"),
        (["work", "config"], 2, "error: tp is 0; it is 1 or more"),
        (["work", "file"], 1, "error: /absent/file: no such file or directory"),
        (
            ["work", "bug"],
            1,
            "error: unexpected KeyError at tool.py:21: 'key'; run again with --debug for the traceback",
        ),
        (["work", "interrupt"], 130, "interrupted"),
        (["wrok", "x"], 2, "error: no such command 'wrok' (did you mean \"work\"?); see mtl-common --help"),
        (
            ["work", "x", "--worker", "2"],
            2,
            'error: no such option --worker (did you mean "--workers"?); see mtl-common work --help',
        ),
        (["work"], 2, "error: missing argument 'name'; see mtl-common work --help"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    script: Path, arguments: list[str], code: int, sentence: str
) -> None:
    done = call(script, *arguments)
    assert (done.returncode, done.stderr, done.stdout) == (code, sentence + "\n", "")


def test_a_wrong_value_names_the_option(script: Path) -> None:
    done = call(script, "work", "x", "--workers", "many")
    assert done.returncode == 2
    assert "'--workers'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback_and_the_sentence(script: Path) -> None:
    done = call(script, "work", "data", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("error: corpus.jsonl is empty; give a corpus with text\n")


@pytest.mark.parametrize("arguments", [["--version"], ["work", "--version"]])
def test_version_of_tool_and_command(script: Path, arguments: list[str]) -> None:
    done = call(script, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mtl-common ")


def test_nothing_typed_shows_help_and_is_a_usage_error(script: Path) -> None:
    done = call(script)
    assert done.returncode == 2
    assert "work" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["work", "--help"]])
def test_help_comes_quickly(script: Path, arguments: list[str]) -> None:
    times = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = call(script, *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.returncode == 0
        assert "--debug" in done.stdout
    # The least processor time of four: other work may share the machine.
    assert min(times) < 0.5
