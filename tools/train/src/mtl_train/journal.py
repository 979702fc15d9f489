"""What a run writes into its directory while it goes: log.txt for people, metrics.jsonl for machines.

Both continue what an earlier, stopped part of the same run wrote. Only one process may write a run.
"""

import fcntl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from mtl_common.errors import MtlError
from mtl_common.log import JsonLines


class Journal:
    """The journal of the run in directory `out`, continued after `step`; records of later steps are dropped.

    Raises MtlError when another process has it open.
    """

    def __init__(self, out: Path, step: int) -> None:
        self._log = (out / "log.txt").open("a", encoding="utf-8", buffering=1)
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._log.close()
            raise MtlError(
                f"{out} is being written by another run; wait for it, or give another --out"
            ) from None
        self._metrics = JsonLines(out / "metrics.jsonl", keep=lambda record: record["step"] <= step)

    def note(self, lines: Iterable[str]) -> None:
        """Writes lines to the log only."""
        self._log.writelines(f"{line}\n" for line in lines)

    def say(self, line: str) -> None:
        """Prints a line, and writes it to the log."""
        print(line, flush=True)
        self.note([line])

    def record(self, record: dict[str, Any]) -> None:
        """Appends a record to the metrics."""
        self._metrics.write(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.close()
        self._log.close()


class Silence(Journal):
    """The journal of the ranks that do not write one."""

    def __init__(self) -> None:
        pass

    def note(self, lines: Iterable[str]) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def record(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        pass
