"""Model shapes: the numbers and switches that define a decoder, presets, exact parameter counts, FLOPs."""

from typing import Any, Literal

from pydantic import Field, model_validator

from mtl_common.config import Settings, nearest
from mtl_common.errors import ConfigError
from mtl_common.layout import Layout, divide


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


def check_layout(shape: ModelShape, layout: Layout) -> None:
    """Raises ConfigError when the layout cannot cut the shape; costs nothing, so ask before ranks start."""
    for what in ("heads", "kv_heads", "ffn"):
        divide(getattr(shape, what), layout.tp, what, "tp")
    divide(shape.layers, layout.pp, "layers", "pp")


def _multiplied(shape: ModelShape) -> int:
    """Weights that a token is multiplied by: those of the blocks, and the output layer, tied or not."""
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.hidden
    ffn = (3 if shape.activation == "swiglu" else 2) * shape.ffn * shape.hidden
    return shape.layers * (attention + ffn) + shape.vocab * shape.hidden


def parameters(shape: ModelShape) -> int:
    """The exact number of parameters, a tied output layer counted once, padding not at all.

    >>> parameters(preset("gpt2-124m"))
    124439808
    """
    tables = 0 if shape.tied else shape.vocab * shape.hidden
    tables += shape.seq * shape.hidden if shape.position == "learned" else 0
    vectors = 2 if shape.norm == "layernorm" and shape.bias else 1
    norms = (2 * shape.layers + 1) * vectors * shape.hidden
    biases = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.hidden  # attention
    biases += (2 if shape.activation == "swiglu" else 1) * shape.ffn + shape.hidden  # feed-forward
    return _multiplied(shape) + tables + norms + (shape.layers * biases if shape.bias else 0)


def flops_per_token(shape: ModelShape, seq: int | None = None) -> int:
    """Model FLOPs of forward and backward for a token in a sequence of `seq` (default: the longest context).

    Megatron's convention: 6 for every weight a token is multiplied by, and attention over the whole square,
    12 L N D seq, though a causal mask needs half of it; recomputation does not count. With ffn 4H this is
    72 L H^2 (1 + seq/(6H) + V/(12 L H)): Korthikanti et al. 2022 (arXiv:2205.05198), appendix A.
    """
    attention = 12 * shape.layers * shape.heads * shape.head_dim * (seq or shape.seq)
    return 6 * _multiplied(shape) + attention


def _gpt(hidden: int, layers: int, heads: int, **more: Any) -> ModelShape:
    settings = {"vocab": 50257, "seq": 1024, **more}
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        **settings,
    )


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> ModelShape:
    settings = {"vocab": 32000, "seq": 4096, "tied": False, **more}
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=ffn,
        norm="rmsnorm",
        position="rope",
        activation="swiglu",
        bias=False,
        **settings,
    )


def _sc21(hidden: int, layers: int, heads: int) -> ModelShape:
    return _gpt(hidden, layers, heads, vocab=51200, seq=2048)


PRESETS: dict[str, ModelShape] = {
    "tiny": _gpt(128, 4, 4, vocab=4096, seq=128),
    "small": _gpt(256, 4, 8, vocab=4096, seq=256),
    "tiny-llama": _llama(128, 4, 4, 2, 384, vocab=4096, seq=128, tied=True),
    "gpt2-124m": _gpt(768, 12, 12),
    "gpt2-355m": _gpt(1024, 24, 16),
    "gpt2-774m": _gpt(1280, 36, 20),
    "gpt2-1.5b": _gpt(1600, 48, 25),
    "llama-1b": _llama(2048, 22, 32, 4, 5632, seq=2048),
    "llama-7b": _llama(4096, 32, 32, 32, 11008),
    "llama-70b": _llama(8192, 80, 64, 8, 28672),
    # Narayanan et al. 2021 (arXiv:2104.04473), table 1
    "sc21-1.7b": _sc21(2304, 24, 24),
    "sc21-3.6b": _sc21(3072, 30, 32),
    "sc21-7.5b": _sc21(4096, 36, 32),
    "sc21-18.4b": _sc21(6144, 40, 48),
    "sc21-39.1b": _sc21(8192, 48, 64),
    "sc21-76.1b": _sc21(10240, 60, 80),
    "sc21-145.6b": _sc21(12288, 80, 96),
    "sc21-310.1b": _sc21(16384, 96, 128),
    "sc21-529.6b": _sc21(20480, 105, 128),
    "sc21-1008b": _sc21(25600, 128, 160),
}


def preset(name: str) -> ModelShape:
    """The preset of that name; ConfigError names the nearest one."""
    if name not in PRESETS:
        raise ConfigError(
            f'no model preset "{name}"{nearest(name, PRESETS)}; the presets are {", ".join(PRESETS)}'
        )
    return PRESETS[name]
