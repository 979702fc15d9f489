"""mtl-ckpt: looks into checkpoints, proves them, rewrites them for other layouts and other programs."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mtl_common.command import next_command, run, tool

app = tool("mtl-ckpt", "Checkpoints to any layout and format, verified.")

CheckpointPath = Annotated[
    Path,
    typer.Argument(help="A checkpoint, a directory of checkpoints, or a run directory.", show_default=False),
]
Out = Annotated[Path, typer.Option("--out", help="A new directory.", show_default=False)]
DType = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, bfloat16, float16 or float64; as stored when left out."),
]


@app.command()
def inspect(
    checkpoint: CheckpointPath,
    every: Annotated[bool, typer.Option("--all", help="Every tensor, not one line for all layers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Show step, layout, model and tensors; reads the manifest only."""
    from mtl_ckpt.inspect import describe, kind_table, summary, tensor_table
    from mtl_common.checkpoint import Checkpoint, resolve

    found = Checkpoint(resolve(checkpoint))
    if as_json:
        print(json.dumps(describe(found), indent=2))
        return
    print(summary(found), tensor_table(found, every), kind_table(found), sep="\n\n")
    next_command(f"mtl-ckpt verify {checkpoint}")


def _check(path: Path, quick: bool = False) -> float:
    """Verifies a checkpoint and returns the seconds it took; CheckpointError says what is wrong."""
    from mtl_common.checkpoint import Checkpoint, verify
    from mtl_common.errors import CheckpointError
    from mtl_common.log import progress

    total = sum(file.size for file in Checkpoint(path).files.values())
    began = time.monotonic()
    with progress("verify", total, "bytes") as shown:
        problems = verify(path, not quick, lambda count: shown.advance(count))
    if len(problems) > 1:
        for problem in problems:
            print(f"problem: {problem}", file=sys.stderr)
        raise CheckpointError(f"{path} has {len(problems)} problems; restore it or use another checkpoint")
    if problems:
        raise CheckpointError(problems[0])
    return time.monotonic() - began


def _table(path: Path, **more: str) -> str:
    """One checkpoint in a table of one row."""
    from mtl_ckpt.report import size
    from mtl_common.checkpoint import Checkpoint
    from mtl_common.tables import table

    found = Checkpoint(path)
    facts = {
        "checkpoint": str(path),
        "layout": found.layout,
        "files": str(len(found.files)),
        "tensors": str(sum(not info.alias for info in found.tensors.values())),
        "size": size(sum(file.size for file in found.files.values())),
        **more,
    }
    return table([tuple(facts), tuple(facts.values())])


def _written(path: Path, began: float) -> str:
    """What was written since `began`, once it is verified."""
    seconds = time.monotonic() - began
    return _table(path, **{"written in": f"{seconds:.1f} s", "verified in": f"{_check(path):.1f} s"})


@app.command()
def verify(
    checkpoint: CheckpointPath,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes and coverage only, no hashes.")] = False,
) -> None:
    """Prove that a checkpoint is whole: sizes, that every tensor is full exactly once, and all hashes."""
    from mtl_common.checkpoint import resolve

    path = resolve(checkpoint)
    seconds = _check(path, quick)
    print(_table(path, **{"verified in": f"{seconds:.1f} s"}))
    print(f"{path} is whole{': sizes and coverage' if quick else ': sizes, coverage and all hashes'}")
    next_command(f"mtl-serve run {checkpoint}")


@app.command()
def reshard(
    checkpoint: CheckpointPath,
    to: Annotated[str, typer.Option("--to", help="The new layout, like tp2pp2.", show_default=False)],
    out: Out,
    memory: Annotated[int, typer.Option("--memory", help="MiB to use beyond the program itself.")] = 128,
) -> None:
    """Rewrite a checkpoint for another layout, optimizer state included, and verify the result."""
    from mtl_ckpt import reshard as work
    from mtl_common.checkpoint import Checkpoint, resolve
    from mtl_common.layout import Layout
    from mtl_common.log import progress

    layout = Layout.parse(to)
    found = Checkpoint(resolve(checkpoint))
    total = sum(info.bytes for info in found.tensors.values() if not info.alias)
    began = time.monotonic()
    with progress("reshard", total, "bytes") as shown:
        path = work.reshard(found, layout, out, memory << 20, lambda count: shown.advance(count))
    print(_written(path, began))
    next_command(f"mtl-serve run {out} --tp {layout.tp}")


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face directory, a .gguf file, or an installed package that holds one.",
            show_default=False,
        ),
    ],
    out: Out,
    dtype: DType = None,
) -> None:
    """Make a checkpoint of a GPT-2 or Llama model from another program."""
    from mtl_ckpt.dtypes import check_dtype
    from mtl_ckpt.importing import import_model, open_source
    from mtl_ckpt.shape import model_bytes
    from mtl_common.checkpoint import Checkpoint
    from mtl_common.log import progress

    check_dtype(dtype)
    began = time.monotonic()
    opened = open_source(source)
    with progress("import", model_bytes(opened.shape, dtype or opened.dtype), "bytes") as shown:
        path = import_model(opened, out, dtype, lambda count: shown.advance(count))
    print(_written(path, began))
    if Checkpoint(path).tokenizer is None:
        print(f"{source} has no tokenizer: the checkpoint has none either", file=sys.stderr)
    next_command(f"mtl-serve run {out}")


@app.command()
def export(
    checkpoint: CheckpointPath,
    out: Out,
    to: Annotated[str, typer.Option("--to", help="The format: hf.")] = "hf",
    dtype: DType = None,
    file_size: Annotated[float, typer.Option("--file-size", help="Largest file, in GB.", min=0.001)] = 5.0,
) -> None:
    """Make a directory that transformers opens."""
    from mtl_ckpt.dtypes import check_dtype
    from mtl_ckpt.exporting import export_model
    from mtl_ckpt.report import size
    from mtl_ckpt.shape import model_bytes, model_dtype, model_shape
    from mtl_common.checkpoint import Checkpoint, resolve
    from mtl_common.config import nearest
    from mtl_common.errors import UsageError
    from mtl_common.log import progress
    from mtl_common.tables import table

    if to != "hf":
        raise UsageError(f'no format "{to}"{nearest(to, ["hf"])}; the format is hf')
    check_dtype(dtype)
    found = Checkpoint(resolve(checkpoint))
    total = model_bytes(model_shape(found), dtype or model_dtype(found))
    with progress("export", total, "bytes") as shown:
        files = export_model(found, out, dtype, int(file_size * 1e9), lambda count: shown.advance(count))
    rows = [("file", "size"), *((name, size((out / name).stat().st_size)) for name in files)]
    print(table(rows))
    program = f"from transformers import pipeline; print(pipeline('text-generation', '{out}')('Hello'))"
    next_command(f'python -c "{program}"')


def main() -> NoReturn:
    """Runs the command line."""
    run(app)
