"""What long work shows: a bar on a terminal, plain lines elsewhere, and JSON lines for machines."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


def duration(seconds: float) -> str:
    """A span of time as a person would say it.

    >>> duration(4.25), duration(75), duration(7380)
    ('4.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def quantity(number: float, unit: str) -> str:
    """A count with its unit; bytes are scaled by powers of 1000.

    >>> quantity(12_345_678, "bytes"), quantity(1500, "steps")
    ('12.3 MB', '1,500 steps')
    """
    if unit != "bytes":
        return f"{number:,.0f} {unit}"
    if number < 1000:
        return f"{number:.0f} bytes"
    power = min(int(math.log10(number) // 3), 4)
    return f"{number / 1000**power:.1f} {('', 'kB', 'MB', 'GB', 'TB')[power]}"


class Progress:
    """How far a piece of work has come, its rate and the time left."""

    def __init__(
        self, what: str, total: int, unit: str, done: int, show: Callable[["Progress"], None]
    ) -> None:
        self.what, self.total, self.unit, self.done, self.note = what, total, unit, done, ""
        self._first, self._began, self._show = done, time.monotonic(), show

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """Counts `amount` more units as done; `note` is shown at the end of the line."""
        self.done += amount
        self.note = self.note if note is None else note
        self._show(self)

    def line(self) -> str:
        """One line of text: `tokenize: 40.0 MB of 120.0 MB (33%), 20.0 MB/s, 4.0 s left`; seconds alone."""
        if self.unit == "seconds":
            return f"{self.what}: {duration(self.done)}"
        passed = time.monotonic() - self._began
        rate = (self.done - self._first) / passed if passed > 0 else 0.0
        done, whole = quantity(self.done, self.unit), quantity(self.total, self.unit)
        if self.total and self.unit != "bytes":
            done = f"{self.done:,}"  # the whole tells the unit
        share = f" of {whole} ({self.done / self.total:.0%})" if self.total else ""
        pace = f"{rate:.3g} {self.unit}" if rate < 10 and self.unit != "bytes" else quantity(rate, self.unit)
        text = f"{self.what}: {done}{share}, {pace}/s"
        if rate and self.total > self.done:
            text += f", {duration((self.total - self.done) / rate)} left"
        return f"{text}, {self.note}" if self.note else text


def _plain(stream: TextIO, every: float) -> Callable[[Progress], None]:
    last = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print(progress.line(), file=stream, flush=True)

    return show


@contextmanager
def _bar(total: int, done: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total or None, completed=done)
        yield lambda p: bar.update(task, completed=p.done, description=p.line())


@contextmanager
def progress(what: str, total: int, unit: str, *, done: int = 0, every: float = 5.0) -> Iterator[Progress]:
    """Shows the work inside the `with` on stderr: a bar on a terminal, elsewhere a line each `every` seconds.

    `total` 0 means that the end is not known; `done` is what an earlier, interrupted run had finished.
    """
    if sys.stderr.isatty():
        with _bar(total, done) as show:
            yield Progress(what, total, unit, done, show)
    else:
        yield Progress(what, total, unit, done, _plain(sys.stderr, every))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines:
    """An append-only file of JSON records, one a line, whole after every write.

    Opening an existing file continues it: a last line cut by a kill is dropped, and so are the records that
    `keep` refuses (a resumed run drops the steps it is about to repeat). Numbers unknown to JSON (nan,
    inf) become null.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] | None = None) -> None:
        self.path = path
        self.records = [r for r in read_json_lines(path) if keep is None or keep(r)] if path.exists() else []
        whole = "".join(json.dumps(record) + "\n" for record in self.records)
        if not path.exists() or path.read_text("utf-8") != whole:
            staged = path.with_name(f".{path.name}.tmp")
            staged.write_text(whole, "utf-8")
            os.replace(staged, path)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Appends one record; with `sync` it is on the disk when this returns."""
        self._file.write(json.dumps({k: _finite(v) for k, v in record.items()}) + "\n")
        if sync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON lines file; a last line without a newline was cut by a kill, and is none."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
