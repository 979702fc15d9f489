"""Model shapes: the numbers and switches that define a decoder, presets, exact parameter counts, FLOPs."""

from typing import Literal

from pydantic import Field, model_validator

from mtl_common.config import Settings
from mtl_common.errors import ConfigError


class ModelShape(Settings):
    """A GPT decoder; the GPT-2 and Llama families are settings of the switches."""

    hidden: int = Field(gt=0, description="width of the residual stream")
    layers: int = Field(gt=0, description="transformer blocks")
    heads: int = Field(gt=0, description="query heads")
    kv_heads: int = Field(
        gt=0, description="key and value heads; fewer than heads is grouped-query attention"
    )
    head_dim: int = Field(gt=0, description="width of one head")
    ffn: int = Field(gt=0, description="width inside the feed-forward layer")
    vocab: int = Field(gt=0, description="true vocabulary size, without padding")
    seq: int = Field(gt=0, description="longest context")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_eps: float = Field(default=1e-5, gt=0)
    position: Literal["learned", "rope"] = "learned"
    rope_base: float = Field(default=10_000.0, gt=0)
    activation: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu_tanh"
    bias: bool = Field(default=True, description="biases in linear layers (and in layernorm)")
    tied: bool = Field(default=True, description="the output layer is the token embedding")

    @model_validator(mode="after")
    def _heads_fit(self) -> "ModelShape":
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads {self.heads} cannot be divided by kv_heads {self.kv_heads}")
        if self.position == "rope" and self.head_dim % 2:
            raise ConfigError(f"rotary positions need an even head_dim, not {self.head_dim}")
        return self
