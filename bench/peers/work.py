"""The work that all sides of the training benchmark do: one decoder, one batch of random tokens."""

import argparse
from dataclasses import dataclass

LAYERS, HIDDEN, HEADS, SEQ, VOCAB = 4, 256, 8, 256, 4096
MICRO_BATCH, MICRO_BATCHES = 4, 4  # a step is 16 sequences a data-parallel rank
LR, WEIGHT_DECAY, CLIP = 1e-4, 0.1, 1.0


@dataclass(frozen=True)
class Work:
    """What the command line asks for."""

    dtype: str
    layout: str
    zero: int
    family: str


def parse() -> Work:
    """Reads the options that every peer knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp32", "bf16", "autocast"], default="fp32")
    parser.add_argument("--layout", default="tp1")
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--family", choices=["gpt2", "megatron"], default="gpt2")
    options = parser.parse_args()
    return Work(options.dtype, options.layout, options.zero, options.family)
