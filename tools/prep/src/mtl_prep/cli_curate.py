"""The command that makes a clean corpus."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mtl_common.command import next_command
from mtl_prep.cli_corpus import Corpus, Errors, MaxBad, Split, TextKey, typed_again

app = typer.Typer()

CLEAN = "clean"  # inside of bins, what `tokenize --curate` makes them of


def curated(
    recipe: Path,
    corpus: list[str],
    out: Path,
    workers: int,
    text_key: str,
    max_bad: str,
    split: Literal["file", "paragraph", "line"] = "file",
    errors: Literal["bad", "replace"] = "bad",
) -> Path:
    """Makes a clean corpus inside `out`, unless it is there, shows what was removed; gives its directory."""
    import time

    from mtl_prep.curate import report, run
    from mtl_prep.running.pieces import WORK

    began, clean = time.monotonic(), out / CLEAN
    request = run.Request(recipe, corpus, clean, workers, text_key, max_bad, split=split, errors=errors)
    if not out.exists():
        (out / WORK).mkdir(parents=True)  # so that the run that comes next knows that `out` is its own
    print(report.curated(run.curate(request), request, time.monotonic() - began))
    return clean


@app.command("curate")
def curate_corpus(
    recipe: Annotated[Path, typer.Argument(help="A TOML file with a table for each step, in order.")],
    corpus: Corpus,
    out: Annotated[Path, typer.Option(help="The directory of the clean corpus.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    text_key: TextKey = "text",
    split: Split = "file",
    errors: Errors = "bad",
    max_bad: MaxBad = "5%",
    shard_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of JSON in a shard, and the rest of its last record.")
    ] = 1 << 28,
) -> None:
    """Removes and mends documents by the steps of a recipe; the same command continues an interrupted run."""
    import time

    from mtl_prep.curate import report, run
    from mtl_prep.running.pool import cores

    began = time.monotonic()
    request = run.Request(
        recipe, corpus, out, workers or cores(), text_key, max_bad, shard_bytes, split=split, errors=errors
    )
    print(report.curated(run.curate(request), request, time.monotonic() - began))
    next_command(f"mtl-prep tokenize {out} --tokenizer TOKENIZER --out bins{typed_again(text_key)}")
