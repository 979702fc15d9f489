"""Every command explains itself quickly: no heavy library is imported before a command runs."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "pyarrow", "grpc", "numpy", "tokenizers"]
COMMANDS = {
    "mtl-prep": ["train-tokenizer", "tokenize", "inspect"],
    "mtl-train": [],
    "mtl-ckpt": ["inspect", "verify", "reshard", "import", "export"],
    "mtl-serve": ["run", "generate"],
}
LINES = [
    [tool, *command] for tool, commands in COMMANDS.items() for command in [[], *([c] for c in commands)]
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_help_exits_0_and_shows_usage(words: list[str]) -> None:
    shown = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "Usage:" in shown.stdout
    assert "--help" in shown.stdout


@pytest.mark.parametrize("tool", COMMANDS)
def test_help_imports_nothing_heavy(tool: str) -> None:
    module = tool.replace("-", "_") + ".cli"
    program = f"import sys, {module}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.split() == []


@pytest.mark.parametrize("tool", COMMANDS)
def test_an_unknown_option_is_a_usage_error_with_a_suggestion(tool: str) -> None:
    command = COMMANDS[tool][:1]
    shown = subprocess.run([tool, *command, "--hepl"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2
    assert "--help" in shown.stderr
