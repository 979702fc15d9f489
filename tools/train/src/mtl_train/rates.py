"""The learning rate of every step: a warm-up from zero, then a decay from the peak to the minimum.

A pure function of the step and the settings, so a resumed run needs no state for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Style = Literal["cosine", "linear", "constant"]

# share of the way from minimum to peak, at progress 0..1 through the decay
DECAYS: Mapping[Style, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + cos(pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda _: 1.0,
}


@dataclass(frozen=True)
class Rate:
    """Rises linearly to `peak` at step `warmup`, decays to `minimum` at step `steps`, and stays there.

    The formulas are those of Megatron-LM's scheduler.

    >>> rate = Rate(peak=1.0, minimum=0.0, warmup=2, steps=4, style="linear")
    >>> [rate.at(step) for step in (1, 2, 3, 4, 5)]
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """

    peak: float
    minimum: float
    warmup: int
    steps: int
    style: Style

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.minimum + (self.peak - self.minimum) * DECAYS[self.style](progress)
