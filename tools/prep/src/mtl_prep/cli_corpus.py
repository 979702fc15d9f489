"""The options of every command that reads a corpus."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtl_common.errors import UsageError

Corpus = Annotated[
    list[str],
    typer.Argument(help="Files, directories, patterns ('*.jsonl.zst'), URLs, or - for standard input."),
]
TextKey = Annotated[
    str, typer.Option(help="Key or column of the text; a path: data.0.body; one of several: text,content.")
]
Split = Annotated[
    Literal["file", "paragraph", "line"], typer.Option(help="What of a text file is a document.")
]
Errors = Annotated[
    Literal["bad", "replace"],
    typer.Option(help="What is not UTF-8 makes a record bad, or is replaced by U+FFFD and counted."),
]
Engine = Annotated[str, typer.Option(help="What runs the processes: local or ray.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Of a Ray cluster; else RAY_ADDRESS, or Ray is started here.")
]
TaskOf = Annotated[
    str | None, typer.Option(help="Do one share, such as 3/64, as a task of an array job; then finish.")
]
Shape = Annotated[
    str, typer.Option(help="What a record is: text, chat, pair or qa; the answers count as labels.")
]
Keys = Annotated[
    str | None,
    typer.Option(help="Keys of another shape than text: messages; source,target; question,answer,context."),
]
MaxBad = Annotated[str, typer.Option(help="Bad records allowed: a count, or a share such as 5%.")]


def here(path: Path | None) -> Path | None:
    """A path as it is; raises UsageError for a URL, which a corpus may be and nothing else."""
    url = re.match(r"(\w{2,}):/", str(path))  # Path makes one slash of two
    if url:
        address = f"{url[1]}://{str(path)[url.end() :]}"
        raise UsageError(f"{address} is a URL, and only a corpus may be one; use a directory, and copy it")
    return path


def typed_again(
    text_key: str, split: str = "file", errors: str = "bad", shape: str = "text", keys: str | None = None
) -> str:
    """The options of reading that are not the usual ones, as the next command needs them.

    >>> typed_again("data.body", errors="replace")
    ' --text-key data.body --errors replace'
    """
    options: dict[str, tuple[str | None, str | None]] = {
        "--text-key": (text_key, "text"),
        "--split": (split, "file"),
        "--errors": (errors, "bad"),
        "--shape": (shape, "text"),
        "--keys": (keys, None),
    }
    return "".join(
        f" {name} {shlex.quote(str(value))}" for name, (value, usual) in options.items() if value != usual
    )
