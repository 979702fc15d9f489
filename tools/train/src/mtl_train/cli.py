"""The command `mtl-train`: from token bins to checkpoints.

    mtl-train --data bins/ --model tiny --tp 2 --pp 2 --steps 200 --out runs/x

Starts its ranks itself, or is one of those that torchrun or srun started. The same command again continues a
run that was stopped. Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 and 143 saved and stopped
by Ctrl-C and SIGTERM.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mtl_common.command import next_command, run, tool

if TYPE_CHECKING:
    from mtl_train.plan import Outcome, Plan

app = tool("mtl-train", "From token bins to checkpoints.")


def _go(plan: "Plan") -> "Outcome":
    """Runs the plan: as the rank that this process is, or by starting ranks."""
    from mtl_parallel.launch import joined, launch

    args = (plan.settings, plan.layout, plan.resume, plan.header)
    if joined() or plan.layout.world == 1:
        from mtl_train.loop import run as run_rank

        return run_rank(*args)
    outcomes: list[Outcome] = launch(
        "mtl_train.loop:run",
        plan.layout.world,
        args,
        threads=plan.settings.run.threads,
        preload=("mtl_train.loop", "torch.fx.experimental.symbolic_shapes"),
    )
    return outcomes[0]


@app.command()
def train(
    data: Annotated[Path | None, typer.Option(help="Directory of token bins.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; a run found there is continued.")] = None,
    model: Annotated[str | None, typer.Option(help="Model preset. [default: tiny]")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps. [default: 200]")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sample. [default: the model's context]")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks. [default: 1]")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages. [default: 1]")] = None,
    dp: Annotated[
        int | None, typer.Option(help="Data-parallel ranks. [default: what the world has left]")
    ] = None,
    zero: Annotated[
        int | None, typer.Option(help="1 divides optimizer state among dp ranks. [default: 0]")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Pipeline order, 1f1b or gpipe. [default: 1f1b]")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Samples a forward pass. [default: 4]")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Samples a step. [default: 16]")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. [default: 0.001]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16. [default: fp32]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. [default: auto]")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints. [default: 100]")] = None,
    validate_every: Annotated[
        int | None, typer.Option(help="Steps between validations. [default: 50]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings, as config.toml of a run.")
    ] = None,
    set: Annotated[list[str], typer.Option("--set", help="section.key=value; may be repeated.")] = [],  # noqa: B006
) -> int:
    """Train a GPT on token bins; the same command again continues a run that was stopped."""
    from mtl_parallel.launch import place
    from mtl_train.plan import prepare

    options: dict[str, Any] = {
        "preset": model,
        "model": {"seq": seq},
        "data": {"bins": data},
        "batch": {"micro_batch": micro_batch, "global_batch": global_batch},
        "schedule": {"lr": lr},
        "precision": precision,
        "layout": {"tp": tp, "pp": pp, "dp": dp, "zero": zero, "schedule": schedule},
        "checkpoint": {"every": save_every},
        "validation": {"every": validate_every},
        "run": {"out": out, "steps": steps, "device": device},
    }
    here = place()
    plan = prepare(options, config, set, here.world if here else None)
    speaks = here is None or here.rank == 0
    if speaks:
        print("\n".join(plan.header))
        print("".join(f"warning: {line}\n" for line in plan.warnings), end="", file=sys.stderr, flush=True)
    if plan.step >= plan.settings.run.steps:
        if speaks:
            print(f"{plan.settings.run.out} has its {plan.step} steps already; ask for more with --steps")
            next_command(f"mtl-serve run {plan.settings.run.out}")
        return 0
    outcome = _go(plan)
    if outcome.signal:
        return 128 + outcome.signal
    if speaks:
        next_command(f"mtl-ckpt inspect {plan.settings.run.out}")
        next_command(f"mtl-serve run {plan.settings.run.out}")
    return 0


def main() -> NoReturn:
    """The entry point of the command."""
    run(app)
