"""Logits, loss and gradients equal those of transformers' own GPT-2 and Llama, weights copied by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hugging_face import gpt2, llama
from mtl_common.shapes import ModelShape
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage

CONTEXT = 256
Map = Iterator[tuple[str, Tensor]]
"""Our name, and their tensor or its gradient laid out our way."""


def grouped(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """Rows of q, k and v, by group: its queries, its key, its value."""
    parts = (x.reshape(groups, -1, *x.shape[1:]) for x in (q, k, v))
    return torch.cat(tuple(parts), dim=1).flatten(0, 1)


def gpt2_tensors(model: Any, value: Any) -> Map:
    body = model.transformer
    yield "embedding.word_embeddings.weight", value(body.wte.weight)
    yield "embedding.position_embeddings.weight", value(body.wpe.weight)
    for i, block in enumerate(body.h):
        layer = f"decoder.layers.{i}."
        heads = model.config.n_head
        for kind in ("weight", "bias"):
            # Conv1D keeps its weight as (in, out).
            q, k, v = value(getattr(block.attn.c_attn, kind)).t().chunk(3)
            yield f"{layer}self_attention.linear_qkv.{kind}", grouped(q, k, v, heads)
            yield f"{layer}self_attention.linear_proj.{kind}", value(getattr(block.attn.c_proj, kind)).t()
            yield f"{layer}mlp.linear_fc1.{kind}", value(getattr(block.mlp.c_fc, kind)).t()
            yield f"{layer}mlp.linear_fc2.{kind}", value(getattr(block.mlp.c_proj, kind)).t()
            yield f"{layer}input_layernorm.{kind}", value(getattr(block.ln_1, kind))
            yield f"{layer}pre_mlp_layernorm.{kind}", value(getattr(block.ln_2, kind))
    for kind in ("weight", "bias"):
        yield f"decoder.final_layernorm.{kind}", value(getattr(body.ln_f, kind))


def llama_tensors(model: Any, value: Any) -> Map:
    body = model.model
    yield "embedding.word_embeddings.weight", value(body.embed_tokens.weight)
    for i, block in enumerate(body.layers):
        layer, attention, mlp = f"decoder.layers.{i}.", block.self_attn, block.mlp
        q, k, v = (value(x.weight) for x in (attention.q_proj, attention.k_proj, attention.v_proj))
        groups = model.config.num_key_value_heads
        yield f"{layer}self_attention.linear_qkv.weight", grouped(q, k, v, groups)
        yield f"{layer}self_attention.linear_proj.weight", value(attention.o_proj.weight)
        gate_up = torch.cat((value(mlp.gate_proj.weight), value(mlp.up_proj.weight)))
        yield f"{layer}mlp.linear_fc1.weight", gate_up
        yield f"{layer}mlp.linear_fc2.weight", value(mlp.down_proj.weight)
        yield f"{layer}input_layernorm.weight", value(block.input_layernorm.weight)
        yield f"{layer}pre_mlp_layernorm.weight", value(block.post_attention_layernorm.weight)
    yield "decoder.final_layernorm.weight", value(body.norm.weight)
    if not model.config.tie_word_embeddings:
        yield "output_layer.weight", value(model.lm_head.weight)


SIZES: dict[str, Any] = {
    "hidden": 64,
    "layers": 3,
    "heads": 4,
    "head_dim": 16,
    "vocab": 101,
    "seq": CONTEXT,
}
THEIRS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_positions": CONTEXT},
    "gpt2-erf": {"n_embd": 64, "n_positions": CONTEXT, "activation_function": "gelu"},
    "llama": {"hidden_size": 64, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False},
    "llama-tied": {"hidden_size": 64, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True},
}


def shape_of(name: str) -> ModelShape:
    if name.startswith("gpt2"):
        activation = "gelu" if name == "gpt2-erf" else "gelu_tanh"
        return ModelShape(kv_heads=4, ffn=256, activation=activation, **SIZES)
    return ModelShape(
        kv_heads=2,
        ffn=48,
        norm="rmsnorm",
        position="rope",
        rope_base=50_000.0,
        activation="swiglu",
        bias=False,
        tied=name == "llama-tied",
        **SIZES,
    )


def pair(name: str, dtype: torch.dtype) -> tuple[Any, GPT, Any]:
    """Their model, ours with the same weights, and the tensor map of the family."""
    build, tensors = (gpt2, gpt2_tensors) if name.startswith("gpt2") else (llama, llama_tensors)
    theirs = build(**THEIRS[name]).to(dtype)
    ours = stage(shape_of(name), Mesh.single(), dtype)
    parameters = dict(ours.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()  # the vocabulary's padding
        for key, full in tensors(theirs, lambda tensor: tensor.detach()):
            parameter = parameters.pop(key)
            parameter.view(-1)[: full.numel()] = full.reshape(-1)
    assert not parameters
    return theirs, ours, tensors


def tokens() -> Tensor:
    return torch.randint(0, 101, (2, CONTEXT), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", THEIRS)
def test_logits_equal_theirs(name: str) -> None:
    theirs, ours, _ = pair(name, torch.float32)
    with torch.no_grad():
        wanted, logits = theirs(tokens()).logits, ours(tokens())[..., :101]
    assert wanted.std() > 0.1
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("gpt2", torch.float64, 1e-9),
        ("llama", torch.float32, 2e-5),  # their rms norm works in fp32 whatever the dtype
        ("llama-tied", torch.float32, 2e-5),
    ],
)
def test_gradients_equal_theirs(name: str, dtype: torch.dtype, tolerance: float) -> None:
    theirs, ours, tensors = pair(name, dtype)
    labels, mask = tokens().roll(-1, 1), tokens() % 3 > 0
    each = F.cross_entropy(theirs(tokens()).logits.flatten(0, 1), labels.flatten(), reduction="none")
    wanted = (each * mask.flatten()).sum()
    loss = ours.loss(ours(tokens()), labels, mask)
    torch.testing.assert_close(loss, wanted, rtol=tolerance, atol=0)
    wanted.backward()
    loss.backward()
    parameters = dict(ours.named_parameters())
    for key, full in tensors(theirs, lambda tensor: tensor.grad):
        gradient = parameters[key].grad
        assert gradient is not None
        gradient = gradient.view(-1)[: full.numel()].view(full.shape)
        worst = float((gradient - full).abs().max() / full.abs().max())
        assert worst < tolerance, key
