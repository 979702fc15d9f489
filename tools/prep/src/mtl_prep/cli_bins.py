"""The commands on finished bins."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mtl_common.command import next_command
from mtl_prep.cli_corpus import here

app = typer.Typer()

BinsPath = Annotated[Path, typer.Argument(help="The directory of the bins.", callback=here)]
Out = Annotated[Path, typer.Option(help="What to make; it must not exist.", callback=here)]
Seed = Annotated[int, typer.Option(help="Another number, other documents.")]
ShardTokens = Annotated[int, typer.Option(min=1, max=1 << 30, help="Tokens a shard at most.")]


def _train_on(path: Path) -> None:
    next_command(f"mtl-train --data {path} --model tiny --steps 200 --out runs/first")


@app.command("inspect")
def inspect_bins(
    path: BinsPath,
    samples: Annotated[int, typer.Option(min=0, help="Documents whose beginning is shown.")] = 1,
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the lengths of documents, into a .png or .svg file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows what token bins hold: sums, sources, lengths of documents, the beginning of some."""
    from mtl_prep.finished import bins_report, inspect, picture

    found = inspect.inspect(path, samples, seed)
    if plot is not None:
        picture.draw(found, plot)
    print(inspect.as_json(found) if json else bins_report.inspected(found, plot))
    if not json:
        _train_on(path)


@app.command("verify")
def verify_bins(path: BinsPath) -> None:
    """Proves that bins are whole: reads all of them, checks every hash and every rule of the format."""
    from mtl_prep.finished import bins_report, verify

    began = time.monotonic()
    print(bins_report.verified(path, verify.check(path), time.monotonic() - began))
    _train_on(path)


@app.command("convert")
def convert_bins(
    path: Annotated[
        Path, typer.Argument(help="Bins, or the prefix of Megatron's PREFIX.bin and PREFIX.idx.")
    ],
    out: Out,
    to: Annotated[
        str | None, typer.Option("--to", help="What to make of bins: megatron, parquet, jsonl.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer that made Megatron's files, to make bins of them.")
    ] = None,
    eod: Annotated[
        str | None, typer.Option(help="The end-of-document token of those, if not the tokenizer's own.")
    ] = None,
    add_eod: Annotated[
        bool, typer.Option("--add-eod", help="Put the end after documents of those that lack it.")
    ] = False,
    shard_tokens: ShardTokens = 1 << 27,
) -> None:
    """Turns bins into Megatron's .bin and .idx, parquet or JSON lines, and Megatron's files into bins."""
    from mtl_common.errors import UsageError
    from mtl_prep.finished import bins_report, convert, from_megatron

    if (to is None) == (tokenizer is None):
        raise UsageError("give --to for bins, or --tokenizer for Megatron's files")
    began = time.monotonic()
    if to is not None:
        print(bins_report.exported(convert.export(path, to, out), time.monotonic() - began))
        return
    assert tokenizer is not None
    request = from_megatron.Request(path, tokenizer, out, eod, add_eod, shard_tokens)
    print(bins_report.imported(from_megatron.from_megatron(request), time.monotonic() - began))
    next_command(f"mtl-prep verify {out}")


@app.command("merge")
def merge_bins(
    paths: Annotated[list[Path], typer.Argument(help="The directories of the bins, in the order wanted.")],
    out: Out,
    shard_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 30, help="Tokens a shard at most, if not as in the inputs.")
    ] = None,
    shuffle_documents: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEED", help="Put all documents in an order of this seed, as tokenize."),
    ] = None,
) -> None:
    """Makes one of several bins: the shards that tokenizing their corpora together would have given."""
    from mtl_prep.finished import bins_report, merge

    began = time.monotonic()
    made = merge.merge(merge.Request(paths, out, shard_tokens, shuffle_documents))
    print(bins_report.merged(out, made, time.monotonic() - began))
    next_command(f"mtl-prep verify {out}")


@app.command("split")
def split_bins(
    path: BinsPath,
    out: Out,
    parts: Annotated[
        str,
        typer.Option(help="Shares, train=0.98,valid=0.02, or patterns of source paths, code=*.py,rest=*."),
    ],
    seed: Seed = 0,
    contiguous: Annotated[
        bool, typer.Option("--contiguous", help="Cut in the order of documents instead of drawing.")
    ] = False,
) -> None:
    """Cuts bins into parts by documents, each part complete bins inside --out."""
    from mtl_prep.finished import bins_report, split

    began = time.monotonic()
    made = split.split(split.Request(path, out, parts, seed, contiguous))
    print(bins_report.split(out, made, time.monotonic() - began))
    _train_on(out / next(iter(made)))


@app.command("sample")
def sample_bins(
    path: BinsPath,
    out: Annotated[
        Path | None,
        typer.Option(help="Bins to make; without it the documents are printed.", callback=here),
    ] = None,
    documents: Annotated[int | None, typer.Option(min=1, help="How many documents; 3 if not said.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="How many tokens at most, in whole documents.")
    ] = None,
    seed: Seed = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Chooses documents at random: into new bins, or printed as text for people to read."""
    from mtl_common.errors import UsageError
    from mtl_prep.finished import bins_report, sample
    from mtl_prep.finished.reading import opened

    if (documents is not None and tokens is not None) or (json and out):
        raise UsageError("give --documents or --tokens, and --out or --json, not both")
    size = sample.Size(documents or 3, tokens)
    if out is None:
        for document in sample.documents(opened(path), size, seed):
            print(bins_report.document_line(document) if json else bins_report.document(document))
        return
    began = time.monotonic()
    print(bins_report.made(out, sample.sample(path, size, seed, out), time.monotonic() - began))
    _train_on(out)


@app.command("stats")
def show_stats(
    paths: Annotated[list[Path], typer.Argument(help="The directories of the bins.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, a line for each.")
    ] = False,
) -> None:
    """Counts everything: lengths, sources, shards, frequent tokens, how much of the vocabulary is used."""
    from mtl_prep.finished import stats, stats_report

    found = [stats.measured(path) for path in paths]
    print(stats.as_json(found) if json else stats_report.page(found))
    if not json:
        next_command(f"mtl-prep sample {paths[0]}")


@app.command("bench")
def bench_engines(
    corpus: Annotated[list[str], typer.Argument(help="A corpus, as for tokenize; its beginning is tried.")],
    tokenizer: Annotated[Path, typer.Option(help="As for tokenize.")],
    sample: Annotated[str, typer.Option(help="Text to try.")] = "20MB",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each encoder, every time on other text.")] = 3,
    text_key: Annotated[str, typer.Option(help="The key of the text in JSON lines.")] = "text",
) -> None:
    """Measures every encoder on your own text, beside a loop like that of Megatron's preprocess_data.py."""
    from mtl_prep.encoding import bench, bench_report
    from mtl_prep.vocabulary.train import parse_size

    request = bench.Request(corpus, tokenizer, parse_size(sample), rounds, text_key)
    print(bench_report.page(bench.bench(request)))
    next_command(f"mtl-prep tokenize {' '.join(corpus)} --tokenizer {tokenizer} --out bins")
