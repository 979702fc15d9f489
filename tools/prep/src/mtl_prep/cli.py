"""mtl-prep: from text to token bins."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mtl_common.command import next_command, run, tool
from mtl_prep import cli_bins, cli_curate

app = tool("mtl-prep", "From text to token bins.")

Corpus = Annotated[
    list[Path], typer.Argument(help="Files (.jsonl, .txt, source code; also .gz, .zst) or directories.")
]
TextKey = Annotated[str, typer.Option(help="The key of the text in JSON lines.")]


@app.command("train-tokenizer")
def train_tokenizer(
    corpus: Corpus,
    vocab_size: Annotated[int, typer.Option(help="Entries of the vocabulary, <|endoftext|> included.")],
    out: Annotated[Path, typer.Option(help="A directory, or a file ending in .json.")],
    sample: Annotated[str, typer.Option(help="Text to learn from, spread over the corpus.")] = "256MB",
    text_key: TextKey = "text",
) -> None:
    """Trains a byte-level BPE tokenizer of GPT-2's kind."""
    from mtl_prep import report, vocabulary

    print(report.trained(vocabulary.train(corpus, vocab_size, out, sample, text_key)))
    next_command(f"mtl-prep tokenize {' '.join(map(str, corpus))} --tokenizer {out} --out bins")


@app.command("tokenize")
def tokenize_corpus(
    corpus: Corpus,
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, .tiktoken or .model file, or its directory.")
    ],
    out: Annotated[Path, typer.Option(help="The directory of the bins.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    text_key: TextKey = "text",
    eod: Annotated[
        str | None, typer.Option(help="The end-of-document token, if not the tokenizer's own.")
    ] = None,
    max_bad: Annotated[str, typer.Option(help="Bad records allowed: a count, or a share such as 5%.")] = "5%",
    shard_tokens: Annotated[int, typer.Option(min=1, max=1 << 30, help="Tokens a shard at most.")] = 1 << 27,
    shuffle_documents: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Put all documents in an order of this seed.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="What a record is: text, chat, pair or qa; the answers count as labels.")
    ] = "text",
    keys: Annotated[
        str | None,
        typer.Option(help="Keys of another shape than text: messages; source,target; question,answer,context."),
    ] = None,
    separator: Annotated[str, typer.Option(help="Between the source and the target of a pair.")] = r"\n",
    sentences: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Keep where sentences begin, as in en or de text.")
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="auto, gigatoken, fastokens, words or reference; the ids are the same.")
    ] = "auto",
    engine: Annotated[str, typer.Option(help="What runs the processes: local or ray.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; else RAY_ADDRESS, or Ray is started here.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Do one share, such as 3/64, as a task of an array job; then finish.")
    ] = None,
) -> None:
    """Turns a corpus into token bins; the same command continues an interrupted run."""
    import time

    from mtl_prep import pool, report, shares, tokenize

    began = time.monotonic()
    request = tokenize.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        out=out,
        workers=workers or (0 if engine == "ray" else pool.cores()),
        text_key=text_key,
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
    if task is not None:
        part = tokenize.tokenize_share(request, shares.parse_share(task))
        print(report.part(part, time.monotonic() - began))
        next_command(f"mtl-prep finish {out}, when all tasks are done")
        return
    print(report.tokenized(tokenize.tokenize(request), request, time.monotonic() - began))
    next_command(f"mtl-train --data {out} --model tiny --steps 200 --out runs/first")


@app.command("finish")
def finish_bins(
    out: Annotated[Path, typer.Argument(help="What was given to the tasks as --out.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; else one a core.")] = None,
    max_bad: Annotated[
        str | None, typer.Option(help="Bad records allowed, if not as the tasks said.")
    ] = None,
) -> None:
    """Makes token bins of what the tasks of an array job did; names those that are not done."""
    import time

    from mtl_prep import pool, report, tokenize

    began = time.monotonic()
    outcome, request = tokenize.finish_shares(out, workers or pool.cores(), max_bad)
    print(report.tokenized(outcome, request, time.monotonic() - began))
    next_command(f"mtl-train --data {out} --model tiny --steps 200 --out runs/first")


app.add_typer(cli_curate.app)
app.add_typer(cli_bins.app)


def main() -> NoReturn:
    """Runs the command line."""
    run(app)
