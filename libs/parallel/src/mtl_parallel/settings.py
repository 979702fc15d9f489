"""What can be set about an optimizer and a precision. No torch, so that a command line reads it at once."""

from typing import Literal

from pydantic import Field

from mtl_common.config import Settings

Precision = Literal["fp32", "bf16"]


class OptimizerSettings(Settings):
    """AdamW and clipping."""

    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the gradients' running mean")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the squared gradients' running mean")
    eps: float = Field(default=1e-8, gt=0, description="what is added to the root of the second moment")
    weight_decay: float = Field(
        default=0.1, ge=0, description="decoupled weight decay; biases and norms are left alone"
    )
    bucket: int = Field(
        default=8 << 20, gt=0, description="elements of gradients that are reduced together, at least"
    )
    clip: float = Field(default=1.0, ge=0, description="largest global gradient norm; 0 does not clip")
