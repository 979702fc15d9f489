"""Training steps of mtl_parallel, in turns with a peer's: gradients emptied, micro-batches, clipping,
AdamW.
"""

import torch
import turns
import work

from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape
from mtl_parallel import collectives, pipeline
from mtl_parallel.launch import start
from mtl_parallel.models.gpt import stage
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.pipeline import MicroBatch
from mtl_parallel.randomness import initialise
from mtl_parallel.schedule import one_f_one_b
from mtl_parallel.settings import OptimizerSettings

SWITCHES = {
    "gpt2": {"position": "learned", "activation": "gelu_tanh"},
    "megatron": {"position": "rope", "activation": "gelu"},
}


def shape(family: str) -> ModelShape:
    """The decoder of `work`, with the switches of a peer."""
    plain = ModelShape(
        hidden=work.HIDDEN,
        layers=work.LAYERS,
        heads=work.HEADS,
        kv_heads=work.HEADS,
        head_dim=work.HIDDEN // work.HEADS,
        ffn=4 * work.HIDDEN,
        vocab=work.VOCAB,
        seq=work.SEQ,
    )
    return plain.model_copy(update=SWITCHES[family])


def main() -> None:
    """Builds the stage of this rank and serves steps."""
    options = work.parse()
    torch.set_num_threads(1)
    mesh = start(Layout.parse(options.layout), "cpu")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    model = stage(shape(options.family), mesh, dtype)
    initialise(model, 7)
    settings = OptimizerSettings(weight_decay=work.WEIGHT_DECAY, clip=work.CLIP)
    optimizer = Optimizer(model, mesh, settings, 1 if options.zero else 0)
    generator = torch.Generator().manual_seed(3)
    count = work.MICRO_BATCH * work.MICRO_BATCHES
    ids = torch.randint(0, work.VOCAB, (count, work.SEQ + 1), generator=generator)
    mask = torch.ones(work.MICRO_BATCH, work.SEQ)
    batches = [MicroBatch(part[:, :-1], part[:, 1:], mask) for part in torch.split(ids, work.MICRO_BATCH)]
    actions = one_f_one_b(mesh.pp.size, len(batches))[mesh.pp.rank]

    def step() -> float:
        valid = pipeline.valid_tokens(batches, mesh)
        optimizer.zero_grad(len(batches))
        loss = pipeline.run(model, mesh, actions, batches, 1 / valid)
        optimizer.reduce()
        optimizer.step(work.LR)
        return pipeline.total(loss, mesh) / valid

    turns.serve(step, before=lambda: collectives.barrier(mesh.world))


if __name__ == "__main__":
    main()
