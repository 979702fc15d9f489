"""Families of models, as data: what each calls our modules' tensors, and the transforms in between.

A module's `.weight` and `.bias` go the same way. `{layer}` is the number of a block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mtl_common.shapes import ModelShape
from mtl_common.tensors import model_tensors


@dataclass(frozen=True)
class Rule:
    """Which modules of a family make one of ours, by which transforms."""

    modules: tuple[str, ...]
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A naming of models.

    Names may come without `prefix`. Tensors whose name ends in one of `ignored` are constants that old files
    carry.
    """

    name: str
    rules: Mapping[str, Rule]
    prefix: str = ""
    ignored: tuple[str, ...] = ()

    def full_name(self, name: str) -> str:
        """The name with its prefix."""
        known = name.startswith((self.prefix, "lm_head."))
        return name if known else self.prefix + name

    def ignores(self, name: str) -> bool:
        """Whether a tensor is one of the constants."""
        return any(name.endswith(ending) for ending in self.ignored)


@dataclass(frozen=True)
class Source:
    """Where one of our tensors comes from: tensors of the family, joined by transforms."""

    name: str
    parts: tuple[str, ...]
    transforms: tuple[str, ...]


def sources(family: Family, shape: ModelShape) -> Iterator[Source]:
    """For each tensor of a model, in our order, where it comes from and goes to."""
    for name, tensor in model_tensors(shape).items():
        module, _, part = name.rpartition(".")
        layer = str(tensor.layer)
        rule = family.rules[module.replace(f".{layer}.", ".{layer}.")]
        parts = tuple(f"{template.format(layer=layer)}.{part}" for template in rule.modules)
        yield Source(name, parts, rule.transforms)


GPT2 = Family(
    "gpt2",
    {
        "embedding.word_embeddings": Rule(("transformer.wte",)),
        "embedding.position_embeddings": Rule(("transformer.wpe",)),
        "decoder.layers.{layer}.input_layernorm": Rule(("transformer.h.{layer}.ln_1",)),
        "decoder.layers.{layer}.self_attention.linear_qkv": Rule(
            ("transformer.h.{layer}.attn.c_attn",), ("transpose", "thirds", "group")
        ),
        "decoder.layers.{layer}.self_attention.linear_proj": Rule(
            ("transformer.h.{layer}.attn.c_proj",), ("transpose",)
        ),
        "decoder.layers.{layer}.pre_mlp_layernorm": Rule(("transformer.h.{layer}.ln_2",)),
        "decoder.layers.{layer}.mlp.linear_fc1": Rule(("transformer.h.{layer}.mlp.c_fc",), ("transpose",)),
        "decoder.layers.{layer}.mlp.linear_fc2": Rule(("transformer.h.{layer}.mlp.c_proj",), ("transpose",)),
        "decoder.final_layernorm": Rule(("transformer.ln_f",)),
        "output_layer": Rule(("lm_head",)),
    },
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
)

LLAMA = Family(
    "llama",
    {
        "embedding.word_embeddings": Rule(("model.embed_tokens",)),
        "decoder.layers.{layer}.input_layernorm": Rule(("model.layers.{layer}.input_layernorm",)),
        "decoder.layers.{layer}.self_attention.linear_qkv": Rule(
            (
                "model.layers.{layer}.self_attn.q_proj",
                "model.layers.{layer}.self_attn.k_proj",
                "model.layers.{layer}.self_attn.v_proj",
            ),
            ("group",),
        ),
        "decoder.layers.{layer}.self_attention.linear_proj": Rule(("model.layers.{layer}.self_attn.o_proj",)),
        "decoder.layers.{layer}.pre_mlp_layernorm": Rule(("model.layers.{layer}.post_attention_layernorm",)),
        "decoder.layers.{layer}.mlp.linear_fc1": Rule(
            ("model.layers.{layer}.mlp.gate_proj", "model.layers.{layer}.mlp.up_proj"), ("stack",)
        ),
        "decoder.layers.{layer}.mlp.linear_fc2": Rule(("model.layers.{layer}.mlp.down_proj",)),
        "decoder.final_layernorm": Rule(("model.norm",)),
        "output_layer": Rule(("lm_head",)),
    },
    prefix="model.",
    ignored=(".rotary_emb.inv_freq",),
)

GGUF_LLAMA = Family(
    "GGUF llama",
    {
        "embedding.word_embeddings": Rule(("token_embd",)),
        "decoder.layers.{layer}.input_layernorm": Rule(("blk.{layer}.attn_norm",)),
        "decoder.layers.{layer}.self_attention.linear_qkv": Rule(
            ("blk.{layer}.attn_q", "blk.{layer}.attn_k", "blk.{layer}.attn_v"), ("halves", "group")
        ),
        "decoder.layers.{layer}.self_attention.linear_proj": Rule(("blk.{layer}.attn_output",)),
        "decoder.layers.{layer}.pre_mlp_layernorm": Rule(("blk.{layer}.ffn_norm",)),
        "decoder.layers.{layer}.mlp.linear_fc1": Rule(
            ("blk.{layer}.ffn_gate", "blk.{layer}.ffn_up"), ("stack",)
        ),
        "decoder.layers.{layer}.mlp.linear_fc2": Rule(("blk.{layer}.ffn_down",)),
        "decoder.final_layernorm": Rule(("output_norm",)),
        "output_layer": Rule(("output",)),
    },
)
