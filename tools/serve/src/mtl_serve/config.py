"""The settings of a server, and what follows from them for one checkpoint. No torch: wrong ones fail before
a rank starts.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from mtl_common.checkpoint import Checkpoint, resolve
from mtl_common.config import Settings, validate
from mtl_common.errors import CheckpointError, ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape, check_layout
from mtl_serve.pages import pages_for
from mtl_serve.scheduler import Limits

ITEM_BYTES = {"fp32": 4, "bf16": 2}


class ServeSettings(Settings):
    """How to serve a checkpoint."""

    tp: int = Field(default=1, gt=0, description="tensor-parallel ranks")
    precision: Literal["stored", "fp32", "bf16"] = Field(
        default="stored", description="of weights and computation; stored is as the checkpoint has it"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(
        default=None, gt=0, description="a rank's threads; unset leaves one core free"
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=50051, ge=0, le=65535, description="0 takes a free one")
    context: int | None = Field(
        default=None, gt=1, description="longest prompt and answer; unset is the model's"
    )
    sequences: int = Field(default=16, gt=0, description="requests computed at once")
    queue: int = Field(default=64, ge=0, description="requests that may wait beside those")
    step_tokens: int = Field(
        default=512, gt=0, description="most tokens in one step; longer prompts go in chunks"
    )
    page_size: int = Field(default=32, gt=0, description="tokens in a page of the cache")
    cache_gib: float = Field(default=1.0, gt=0, description="key-value cache of a rank, in GiB")
    drain_seconds: float = Field(default=30.0, ge=0, description="how long requests may go on after SIGTERM")


@dataclass(frozen=True)
class Plan:
    """All that a rank needs to know to serve."""

    path: Path  # of the step directory
    shape: ModelShape
    precision: Literal["fp32", "bf16"]
    limits: Limits
    settings: ServeSettings

    @property
    def threads(self) -> int:
        """Threads a rank computes with."""
        return self.settings.threads or max(1, (os.cpu_count() or 1) // self.settings.tp - 1)


def _stored_precision(checkpoint: Checkpoint) -> Literal["fp32", "bf16"]:
    dtypes = {info.dtype for name, info in checkpoint.tensors.items() if name.startswith("model/")}
    return "bf16" if dtypes == {"bfloat16"} else "fp32"


def _limits(settings: ServeSettings, shape: ModelShape, item_bytes: int) -> Limits:
    context = min(settings.context or shape.seq, shape.seq)
    if settings.step_tokens < settings.sequences:
        raise ConfigError(
            f"step_tokens is {settings.step_tokens}, too few for {settings.sequences} sequences; raise it"
        )
    token_bytes = shape.layers * 2 * (shape.kv_heads // settings.tp) * shape.head_dim * item_bytes
    affordable = int(settings.cache_gib * 2**30 / token_bytes) // settings.page_size
    needed = pages_for(context, settings.page_size)
    if affordable < needed:
        raise ConfigError(
            f"a cache of {settings.cache_gib} GiB holds {affordable * settings.page_size} tokens, "
            f"fewer than the context of {context}; raise cache_gib or lower context"
        )
    pages = min(affordable, needed * settings.sequences)
    return Limits(settings.step_tokens, settings.sequences, context, settings.page_size, pages)


def plan(path: Path, settings: ServeSettings) -> Plan:
    """What serving the checkpoint at `path` takes.

    Raises CheckpointError for a checkpoint that cannot be used, ConfigError when tp or a limit does not fit
    it.
    """
    checkpoint = Checkpoint(resolve(path))
    if checkpoint.tokenizer is None:
        raise CheckpointError(
            f"{checkpoint.path} holds no tokenizer, so it cannot answer text; save it with one"
        )
    shape = validate(ModelShape, checkpoint.config["model"])
    check_layout(shape, Layout(tp=settings.tp))
    precision = settings.precision if settings.precision != "stored" else _stored_precision(checkpoint)
    return Plan(checkpoint.path, shape, precision, _limits(settings, shape, ITEM_BYTES[precision]), settings)
