"""What the tests of mtl-prep share: bins made in this process, what they hold, and the installed command."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from mtl_common.bins import Bins
from mtl_common.tokenizers import load

Make = Callable[..., Bins]


def texts_of(bins: Bins) -> list[str]:
    """The documents as text, each without its end."""
    tokenizer = load(bins.tokenizer)
    documents = [bins.document(i).tolist() for i in range(len(bins))]
    assert all(ids[-1] == bins.eod for ids in documents)
    return [tokenizer.decode(ids[:-1]) for ids in documents]


def json_lines(records: Sequence[Any]) -> bytes:
    """Records as JSON lines: a string is a text, bytes are a line as it is."""
    written = []
    for record in records:
        value = {"text": record} if isinstance(record, str) else record
        written.append(record if isinstance(record, bytes) else orjson.dumps(value))
    return b"".join(line + b"\n" for line in written)


def bad_of(bins: Bins) -> dict[str, int]:
    """Reason -> count over all sources, and the check that records add up."""
    counts: dict[str, int] = {}
    for source in bins.manifest.sources:
        assert source.records == source.documents + sum(source.bad.values())
        for reason, count in source.bad.items():
            counts[reason] = counts.get(reason, 0) + count
    assert sum(source.documents for source in bins.manifest.sources) == len(bins)
    return counts


def shard_bytes(bins: Bins) -> list[bytes]:
    """The content of every shard file."""
    return [(bins.path / shard.file).read_bytes() for shard in bins.manifest.shards]


def all_bytes(directory: Path) -> dict[str, bytes]:
    """Relative name -> content of every file below."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def prep(
    *arguments: object, cwd: Path | None = None, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the installed mtl-prep; `given` is its standard input."""
    command = [str(Path(sys.executable).with_name("mtl-prep")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, input=given)
