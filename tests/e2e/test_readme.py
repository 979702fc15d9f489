"""The README is true: its blocks run as they stand, in order, in an empty folder with a small corpus."""

import re
import subprocess
import sysconfig
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def blocks() -> list[str]:
    """The shell and Python blocks, each as a piece of shell."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [text if kind == "sh" else f"python - <<'END'\n{text}END\n" for kind, text in found]


def test_every_block_runs(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for source in ("argparse.py", "ast.py", "asyncio/base_events.py", "difflib.py", "unittest/mock.py"):
        text = Path(sysconfig.get_path("stdlib"), source).read_text("utf-8")
        (corpus / source.replace("/", "_")).write_text(text, "utf-8")
    stop = "trap 'kill -TERM $(jobs -p) 2>/dev/null; wait' EXIT"
    script = "\n".join(["set -euo pipefail", stop, *blocks()])
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert len(blocks()) >= 5
    answers = ran.stdout.rsplit("mtl-serve generate", 1)[-1]
    assert len(answers.strip()) > 10  # two completions
