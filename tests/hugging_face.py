"""Small random models of transformers, every parameter noisy, and our model filled from a checkpoint.

Fresh norms are ones and fresh biases zeros, which would hide a swapped norm or a dropped bias: hence the
noise.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtl_common.checkpoint import Checkpoint, resolve
from mtl_common.shapes import ModelShape
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_parallel.sharding import sharded_parameters


def noisy(model: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.05)
    return model.eval()


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 101, "n_positions": 64}
    return noisy(GPT2LMHeadModel(GPT2Config(**{**sizes, **changes})))


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 101,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
    }
    return noisy(LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})))


def ours(path: Path) -> GPT:
    """Our model in one process, filled from a checkpoint."""
    checkpoint = Checkpoint(resolve(path))
    shape = ModelShape(**checkpoint.config["model"])
    model = stage(shape, Mesh.single())
    for name, parameter, sharding in sharded_parameters(model):
        local = torch.zeros(parameter.shape)
        filled = local.reshape(-1)[: sharding.volume].numpy()
        checkpoint.read(
            f"model/{name}",
            sharding.boxes,
            0,
            sharding.volume,
            filled.data,
            shape=sharding.shape,
            dtype="float32",
        )
        parameter.data.copy_(local)
    return model


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """Logits `(B, T, V)`, of transformers' model or of ours."""
    with torch.no_grad():
        if isinstance(model, GPT):
            return model(tokens)[..., : model.shape.vocab]
        return model(tokens).logits
