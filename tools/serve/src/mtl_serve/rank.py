"""What one rank of a server does, from start to end."""

import asyncio
import signal
import sys

import torch

from mtl_common import tokenizers
from mtl_common.checkpoint import Checkpoint
from mtl_common.command import next_command
from mtl_common.layout import Layout
from mtl_common.shapes import parameters
from mtl_parallel import launch, state
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import stage
from mtl_serve.address import address
from mtl_serve.attention import Cache
from mtl_serve.config import Plan
from mtl_serve.host import Host
from mtl_serve.quicken import quicken
from mtl_serve.runner import Leader, Line, Runner, follow

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(plan: Plan, mesh: Mesh) -> Runner:
    """This rank's model and cache. Raises CheckpointError for weights that cannot be read."""
    dtype = DTYPES[plan.precision]
    model = stage(plan.shape, mesh, dtype).eval().requires_grad_(False)
    state.load(plan.path, model, None, mesh)
    quicken(model)
    return Runner(model, Cache(plan.shape, mesh.tp.size, plan.limits, dtype, mesh.device))


def _announce(plan: Plan, port: int) -> None:
    where = address(plan.settings.host, port)
    size = f"{parameters(plan.shape) / 1e6:.1f}M parameters"
    facts = f"{size}, {plan.precision}, tp {plan.settings.tp}, context {plan.limits.context}"
    print(f"ready: {plan.path} ({facts}) on {where}")
    next_command(f'mtl-serve generate "Once upon a time" --server {where}')
    sys.stdout.flush()


async def _host(plan: Plan, mesh: Mesh) -> None:
    folder = Checkpoint(plan.path).tokenizer
    assert folder is not None, "a plan is made for a checkpoint with a tokenizer"
    line = Line(mesh.tp, plan.limits)

    def ready(port: int) -> None:
        # Until now SIGTERM just ended this rank, as it does the others.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, host.stop)
        _announce(plan, port)

    host = Host(plan, tokenizers.load(folder), lambda: Leader(load(plan, mesh), line), ready)
    await host.run()


def main(plan: Plan) -> None:
    """The entry of every rank: rank 0 hosts, the others follow it."""
    mesh = launch.start(Layout(tp=plan.settings.tp), plan.settings.device)
    try:
        if mesh.tp.first:
            asyncio.run(_host(plan, mesh))
        else:
            runner = load(plan, mesh)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 says when to leave
            follow(runner, Line(mesh.tp, plan.limits))
    finally:
        launch.finish()
