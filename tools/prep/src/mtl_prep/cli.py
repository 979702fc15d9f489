"""mtl-prep: from text to token bins."""

import shlex
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mtl_common.command import next_command, run, tool
from mtl_common.errors import UsageError
from mtl_prep import cli_bins, cli_curate
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

app = tool("mtl-prep", "From text to token bins.")


@app.command("train-tokenizer")
def train_tokenizer(
    corpus: Corpus,
    vocab_size: Annotated[int, typer.Option(help="Entries of the vocabulary, special tokens included.")],
    out: Annotated[
        Path,
        typer.Option(help="A directory, or a file ending in .json, .tiktoken or .model.", callback=here),
    ],
    kind: Annotated[
        str, typer.Option(help="bpe (of bytes, as GPT-2's), unigram or wordpiece (as BERT's).")
    ] = "bpe",
    format: Annotated[
        str, typer.Option(help="json for tokenizer.json; tiktoken (bpe); sentencepiece (bpe, unigram).")
    ] = "json",
    special: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN", help="A special token more; may be given again.")
    ] = None,
    fim: Annotated[bool, typer.Option("--fim", help="Add <|fim_prefix|>, middle, suffix, pad.")] = False,
    sentinels: Annotated[int, typer.Option(min=0, help="Add so many of T5's: <extra_id_0> and so on.")] = 0,
    sample: Annotated[
        str | None, typer.Option(help="Text to learn from, all over the corpus: 256MB; sentencepiece 32MB.")
    ] = None,
    text_key: TextKey = "text",
    split: Split = "file",
    errors: Errors = "bad",
) -> None:
    """Trains a tokenizer on a sample of a corpus, and measures what it makes of each kind of text."""
    from mtl_prep import report
    from mtl_prep.vocabulary import train as vocabulary

    wish = vocabulary.Wish(
        corpus=corpus,
        vocab_size=vocab_size,
        out=out,
        sample=sample,
        text_key=text_key,
        split=split,
        errors=errors,
        kind=kind,
        format=format,
        special=special or (),
        fim=fim,
        sentinels=sentinels,
    )
    print(report.trained(vocabulary.train(wish)))
    options = f"--tokenizer {out} --out bins{typed_again(text_key, split, errors)}"
    next_command(f"mtl-prep tokenize {shlex.join(corpus)} {options}")


@app.command("tokenize")
def tokenize_corpus(
    corpus: Corpus,
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, .tiktoken or .model file, or its directory.")
    ],
    out: Annotated[Path, typer.Option(help="The directory of the bins.", callback=here)],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    text_key: TextKey = "text",
    eod: Annotated[
        str | None, typer.Option(help="The end-of-document token, if not the tokenizer's own.")
    ] = None,
    split: Split = "file",
    errors: Errors = "bad",
    max_bad: MaxBad = "5%",
    shard_tokens: Annotated[int, typer.Option(min=1, max=1 << 30, help="Tokens a shard at most.")] = 1 << 27,
    shuffle_documents: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Put all documents in an order of this seed.")
    ] = None,
    shape: Shape = "text",
    keys: Keys = None,
    separator: Annotated[str, typer.Option(help="Between the source and the target of a pair.")] = r"\n",
    sentences: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Keep where sentences begin, as in en or de text.")
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="auto, gigatoken, fastokens, words or reference; the ids are the same.")
    ] = "auto",
    engine: Engine = "local",
    ray_address: RayAddress = None,
    curate: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Take the steps of a recipe first; see mtl-prep curate."),
    ] = None,
    task: TaskOf = None,
) -> None:
    """Turns a corpus into token bins; the same command continues an interrupted run."""
    import time

    from mtl_prep import report
    from mtl_prep.running import array_job, pool, shares, tokenize
    from mtl_prep.running.trouble import stoppable

    if curate is not None and task is not None:
        raise UsageError(
            "--curate does not go with --task, for documents of all tasks are compared; run mtl-prep curate "
            "with --task and mtl-prep finish first, then mtl-prep tokenize of what they make"
        )
    request = tokenize.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        out=out,
        workers=workers or (0 if engine == "ray" else pool.cores()),
        text_key=text_key,
        split=split,
        errors=errors,
        eod=eod,
        max_bad=max_bad,
        shard_tokens=shard_tokens,
        shuffle_documents=shuffle_documents,
        encoder=encoder,
        runs_on=engine,
        ray_address=ray_address,
        shape=shape,
        keys=keys,
        separator=separator,
        sentences=sentences,
    )
    if curate is not None:
        request = cli_curate.curated_first(curate, request)
    began = time.monotonic()
    with stoppable():
        if task is not None:
            part = array_job.tokenize_share(request, shares.parse_share(task))
            print(report.part(part, time.monotonic() - began))
            next_command(f"mtl-prep finish {out}, when all tasks are done")
            return
        outcome = tokenize.tokenize(request)
    print(report.tokenized(outcome, request, time.monotonic() - began))
    next_command(f"mtl-train --data {out} --model tiny --steps 200 --out runs/first")


@app.command("finish")
def finish_bins(
    out: Annotated[Path, typer.Argument(help="What was given to the tasks as --out.", callback=here)],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    max_bad: Annotated[
        str | None, typer.Option(help="Bad records allowed, if not as the tasks said.")
    ] = None,
) -> None:
    """Makes bins, or a clean corpus, of what the tasks of an array job did; names those that are not done."""
    import time

    from mtl_prep import report
    from mtl_prep.corpus.cleaned import is_clean
    from mtl_prep.running import array_job, pool
    from mtl_prep.running.trouble import stoppable

    if is_clean(out):
        cli_curate.finished(out, workers or pool.cores(), max_bad)
        return
    began = time.monotonic()
    with stoppable():
        outcome, request = array_job.finish_shares(out, workers or pool.cores(), max_bad)
    print(report.tokenized(outcome, request, time.monotonic() - began))
    next_command(f"mtl-train --data {out} --model tiny --steps 200 --out runs/first")


app.add_typer(cli_curate.app)
app.add_typer(cli_bins.app)


def main() -> NoReturn:
    """Runs the command line."""
    run(app)
