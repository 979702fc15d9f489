"""config.json of Hugging Face models <-> our shapes. What we would compute differently is refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtl_ckpt.families import GPT2, LLAMA, Family
from mtl_common.config import nearest, validate
from mtl_common.errors import CheckpointError, ConfigError
from mtl_common.shapes import ModelShape

Config = Mapping[str, Any]

# The tanh form has several names (transformers, activations.py).
_GELUS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def _require(config: Config, **wanted: Any) -> None:
    """Raises CheckpointError unless each key is absent, null or the one value that we can compute."""
    for key, value in wanted.items():
        if config.get(key) not in (None, value):
            raise CheckpointError(f"{key} is {config[key]!r}; only {value!r} can be imported")


def _shape(**values: Any) -> ModelShape:
    return validate(ModelShape, values)


def gpt2_shape(config: Config) -> ModelShape:
    """The shape of a GPT2LMHeadModel; keys that are left out have transformers' defaults."""
    _require(
        config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    activation = config.get("activation_function", "gelu_new")
    if activation not in _GELUS:
        raise CheckpointError(
            f"activation_function is {activation!r}; only {', '.join(_GELUS)} can be imported"
        )
    hidden, heads = config.get("n_embd", 768), config.get("n_head", 12)
    return _shape(
        hidden=hidden,
        layers=config.get("n_layer", 12),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=config.get("n_inner") or 4 * hidden,
        vocab=config.get("vocab_size", 50257),
        seq=config.get("n_positions", 1024),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation=_GELUS[activation],
        tied=config.get("tie_word_embeddings", True),
    )


def gpt2_config(shape: ModelShape) -> dict[str, Any]:
    """The config.json of a shape, as far as the family can say it."""
    return {
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.ffn,
        "vocab_size": shape.vocab,
        "n_positions": shape.seq,
        "layer_norm_epsilon": shape.norm_eps,
        "activation_function": "gelu" if shape.activation == "gelu" else "gelu_new",
        "tie_word_embeddings": shape.tied,
    }


def _rope_base(config: Config) -> Any:
    rope: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"rotary positions are scaled ({kind}); only unscaled ones can be imported")
    return rope.get("rope_theta", config.get("rope_theta", 10_000.0))


def llama_shape(config: Config) -> ModelShape:
    """The shape of a LlamaForCausalLM; keys that are left out have transformers' defaults."""
    _require(config, hidden_act="silu", partial_rotary_factor=1.0)
    bias = bool(config.get("attention_bias"))
    if bias != bool(config.get("mlp_bias")):
        raise CheckpointError("attention_bias and mlp_bias differ; only both or none can be imported")
    hidden, heads = config.get("hidden_size", 4096), config.get("num_attention_heads", 32)
    return _shape(
        hidden=hidden,
        layers=config.get("num_hidden_layers", 32),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=config.get("intermediate_size", 11008),
        vocab=config.get("vocab_size", 32000),
        seq=config.get("max_position_embeddings", 2048),
        norm="rmsnorm",
        norm_eps=config.get("rms_norm_eps", 1e-6),
        position="rope",
        rope_base=_rope_base(config),
        activation="swiglu",
        bias=bias,
        tied=config.get("tie_word_embeddings", False),
    )


def llama_config(shape: ModelShape) -> dict[str, Any]:
    """The config.json of a shape, as far as the family can say it."""
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.seq,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "hidden_act": "silu",
        "attention_bias": shape.bias,
        "mlp_bias": shape.bias,
        "tie_word_embeddings": shape.tied,
    }


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers: its name, its family's tensor names, and its config both ways."""

    name: str
    family: Family
    shape: Callable[[Config], ModelShape]
    config: Callable[[ModelShape], dict[str, Any]]


ARCHITECTURES = {
    "gpt2": Architecture("GPT2LMHeadModel", GPT2, gpt2_shape, gpt2_config),
    "llama": Architecture("LlamaForCausalLM", LLAMA, llama_shape, llama_config),
}


def architecture(model_type: object) -> Architecture:
    """The architecture of a config.json's model_type; raises CheckpointError with the nearest one."""
    name = str(model_type)
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f'model_type "{name}" is not known{nearest(name, ARCHITECTURES)}; known are {known}'
        )
    return ARCHITECTURES[name]


def _differences(shape: ModelShape, candidate: Architecture) -> list[str]:
    """The settings that do not survive a way through the candidate's config."""
    back = candidate.shape(candidate.config(shape)).model_dump()
    return [f"{key} {value}" for key, value in shape.model_dump().items() if value != back[key]]


def suited(shape: ModelShape) -> tuple[str, Architecture]:
    """The model_type and architecture that can hold a shape; raises ConfigError when none can."""
    misfits = []
    for model_type, candidate in ARCHITECTURES.items():
        differences = _differences(shape, candidate)
        if not differences:
            return model_type, candidate
        misfits.append(f"{model_type} has no {', '.join(differences)}")
    raise ConfigError(f"no family of Hugging Face models can hold this shape: {'; '.join(misfits)}")
