"""What a step is measured by, and the one line a person reads of it."""

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from mtl_common.shapes import ModelShape, flops_per_token


@dataclass(frozen=True)
class Step:
    """One optimizer step as it went.

    Args:
        step: counted from 1.
        samples: consumed since the very start, this step's included.
        loss: mean over the valid tokens of the global batch, before the update.
        lr: learning rate.
        norm: of the whole gradient, before clipping.
        skipped: whether the update was left out because loss or gradient was not finite.
        seconds: wall time.
        tokens: of the global batch, read by the model.
    """

    step: int
    samples: int
    loss: float
    lr: float
    norm: float
    skipped: bool
    seconds: float
    tokens: int


class Meter:
    """Turns steps into records and lines. Speed is of the whole world; memory is of this rank."""

    def __init__(self, shape: ModelShape, steps: int, world: int, device: torch.device) -> None:
        self._flops = flops_per_token(shape)
        self._steps = steps
        self._world = world
        self._device = device

    def _memory(self) -> int:
        """The most bytes this rank has held at once."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere

    def record(self, step: Step) -> dict[str, Any]:
        """The step for metrics.jsonl."""
        speed = step.tokens / step.seconds
        return {
            "step": step.step,
            "samples": step.samples,
            "loss": step.loss,
            "lr": step.lr,
            "grad_norm": step.norm,
            "skipped": step.skipped,
            "seconds": round(step.seconds, 6),
            "tokens_per_second": round(speed, 1),
            "tflops_per_rank": round(speed * self._flops / self._world / 1e12, 6),
            "memory_mb": self._memory() // 1_000_000,
        }

    def line(self, record: dict[str, Any]) -> str:
        """A record of `record` as one aligned line."""
        width = len(str(self._steps))
        return (
            f"step {record['step']:{width}}/{self._steps}  loss {record['loss']:8.4f}  "
            f"lr {record['lr']:.2e}  norm {record['grad_norm']:8.3f}  "
            f"{record['tokens_per_second']:10,.0f} tokens/s  "
            f"{record['tflops_per_rank']:8.4f} TFLOP/s/rank  {record['memory_mb']:6,} MB"
            + ("  SKIPPED: not finite" if record["skipped"] else "")
        )


class Stopwatch:
    """Seconds from lap to lap; waits for the device, so that its work is counted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
