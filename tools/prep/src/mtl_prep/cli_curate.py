"""The command that makes a clean corpus."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtl_common.command import next_command
from mtl_prep.cli_corpus import (
    Corpus,
    Engine,
    Errors,
    Keys,
    MaxBad,
    RayAddress,
    Shape,
    Split,
    TaskOf,
    TextKey,
    here,
    typed_again,
)

if TYPE_CHECKING:
    from mtl_prep.curate.request import Request
    from mtl_prep.running import tokenize

app = typer.Typer()

CLEAN = "clean"  # inside of bins, what `tokenize --curate` makes them of


def _curated(request: "Request") -> bool:
    """Makes a clean corpus, unless it is there, and shows what was removed; whether anything stays."""
    from mtl_prep.curate import report, run
    from mtl_prep.running.trouble import stoppable

    began = time.monotonic()
    with stoppable():
        outcome = run.curate(request)
    print(report.curated(outcome, request, time.monotonic() - began))
    return outcome.manifest.kept.documents > 0


def curated_first(recipe: Path, wish: "tokenize.Request") -> "tokenize.Request":
    """Makes a clean corpus inside of the bins that are wished for; gives the wish for bins of it."""
    from dataclasses import replace

    from mtl_common.bins import MANIFEST
    from mtl_prep.curate.request import Request
    from mtl_prep.running.pieces import WORK
    from mtl_prep.running.plan import check_place, undone_if_refused
    from mtl_prep.running.tokenize import check_tokenizer

    check_tokenizer(wish)
    request = Request(
        recipe=recipe,
        corpus=wish.corpus,
        out=wish.out / CLEAN,
        workers=wish.workers,
        text_key=wish.text_key,
        max_bad=wish.max_bad,
        split=wish.split,
        errors=wish.errors,
        runs_on=wish.runs_on,
        ray_address=wish.ray_address,
        shape=wish.shape,
        keys=wish.keys,
    )
    with undone_if_refused(wish.out):
        if not (wish.out / MANIFEST).exists():
            check_place(wish.out)
            # the run that comes next knows it as its own
            (wish.out / WORK).mkdir(parents=True, exist_ok=True)
        _curated(request)
    return replace(wish, corpus=[str(request.out)])


def finished(out: Path, workers: int, max_bad: str | None) -> None:
    """Ends what the tasks of an array job did, and says what comes next."""
    from mtl_prep.curate import array_job, report
    from mtl_prep.running.trouble import stoppable

    began = time.monotonic()
    with stoppable():
        outcome, request = array_job.finish_shares(out, workers, max_bad)
    print(report.curated(outcome, request, time.monotonic() - began))
    _tokenize_next(request, outcome.manifest.kept.documents > 0)


def _tokenize_next(request: "Request", something: bool) -> None:
    if not something:
        next_command(f"nothing is left; mend the recipe, see {request.out}/removed for what each step took")
        return
    again = typed_again(request.text_key, shape=request.shape, keys=request.keys)
    options = f"--tokenizer TOKENIZER --out bins{again}"
    next_command(f"mtl-prep tokenize {shlex.quote(str(request.out))} {options}")


@app.command("curate")
def curate_corpus(
    recipe: Annotated[Path, typer.Argument(help="A TOML file with a table for each step, in order.")],
    corpus: Corpus,
    out: Annotated[Path, typer.Option(help="The directory of the clean corpus.", callback=here)],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    text_key: TextKey = "text",
    split: Split = "file",
    errors: Errors = "bad",
    max_bad: MaxBad = "5%",
    shard_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of JSON in a shard, and the rest of its last record.")
    ] = 1 << 28,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    task: TaskOf = None,
    shape: Shape = "text",
    keys: Keys = None,
) -> None:
    """Removes and mends documents by the steps of a recipe; the same command continues an interrupted run."""
    from mtl_prep.curate import array_job, report
    from mtl_prep.curate.request import Request
    from mtl_prep.running.pool import cores
    from mtl_prep.running.shares import parse_share
    from mtl_prep.running.trouble import stoppable

    request = Request(
        recipe=recipe,
        corpus=corpus,
        out=out,
        workers=workers or (0 if engine == "ray" else cores()),
        text_key=text_key,
        max_bad=max_bad,
        shard_bytes=shard_bytes,
        split=split,
        errors=errors,
        runs_on=engine,
        ray_address=ray_address,
        shape=shape,
        keys=keys,
    )
    if task is None:
        _tokenize_next(request, _curated(request))
        return
    began = time.monotonic()
    with stoppable():
        part = array_job.curate_share(request, parse_share(task))
    print(report.part(part, time.monotonic() - began))
    next_command(f"mtl-prep finish {out}, when all tasks are done")
