"""Import from and export to transformers: the same logits on both ways, the same tensors there and back."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hugging_face import gpt2, llama, logits_of, ours
from mtl_ckpt.exporting import export_model
from mtl_ckpt.importing import import_model, open_source
from mtl_common.checkpoint import Checkpoint, resolve, verify
from mtl_common.errors import CheckpointError, ConfigError

MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2 untied, erf gelu, odd sizes": lambda: gpt2(
        tie_word_embeddings=False, activation_function="gelu", n_inner=52, n_head=2
    ),
    "llama 4/2": lambda: llama(),
    "llama 4/4 tied": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama 4/1 with biases": lambda: llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "llama with wide heads": lambda: llama(head_dim=20),
}


def ignore(_: int) -> None: ...


def bring_in(directory: Path, out: Path, dtype: str | None = None) -> Path:
    return import_model(open_source(str(directory)), out, dtype, ignore)


def send_out(path: Path, out: Path, dtype: str | None = None, limit: int = 10**9) -> list[str]:
    return export_model(Checkpoint(resolve(path)), out, dtype, limit, ignore)


def reload(directory: Path, **options: object) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_equal_after_import_and_after_export(tmp_path, name) -> None:
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path / "hf")
    path = bring_in(tmp_path / "hf", tmp_path / "ours")
    assert verify(path) == []
    tokens = torch.randint(0, 101, (2, 64), generator=torch.Generator().manual_seed(1))
    expected = logits_of(theirs, tokens)
    torch.testing.assert_close(logits_of(ours(path), tokens), expected, rtol=1e-5, atol=1e-5)
    send_out(path, tmp_path / "again")
    again = reload(tmp_path / "again")
    assert type(again) is type(theirs)
    torch.testing.assert_close(logits_of(again, tokens), expected, rtol=0, atol=0)
    state = again.state_dict()
    for key, value in theirs.state_dict().items():
        assert torch.equal(state[key], value), key


def test_a_model_in_several_files_goes_both_ways(tmp_path) -> None:
    theirs = llama()
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    path = bring_in(tmp_path / "hf", tmp_path / "ours")
    files = send_out(path, tmp_path / "again", limit=20_000)
    assert len(files) > 2
    assert all((tmp_path / "again" / name).exists() for name in files)
    state = reload(tmp_path / "again").state_dict()
    for key, value in theirs.state_dict().items():
        assert torch.equal(state[key], value), key


def test_old_gpt2_files_without_prefix_and_with_buffers(tmp_path) -> None:
    theirs = gpt2()
    theirs.save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf/model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in safetensors.torch.load_file(path).items()}
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(tensors, path)
    imported = bring_in(tmp_path / "hf", tmp_path / "ours")
    tokens = torch.arange(64)[None]
    torch.testing.assert_close(
        logits_of(ours(imported), tokens), logits_of(theirs, tokens), rtol=1e-5, atol=1e-5
    )


def test_a_tied_output_layer_in_the_file_must_be_the_embedding(tmp_path) -> None:
    theirs = llama(tie_word_embeddings=True)
    theirs.save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf/model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(tensors, path)
    bring_in(tmp_path / "hf", tmp_path / "ours")
    tensors["lm_head.weight"][3, 5] += 1
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"lm_head.weight is tied to .* their values differ"):
        bring_in(tmp_path / "hf", tmp_path / "other")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_are_kept_or_cast(tmp_path, dtype) -> None:
    theirs = llama().to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "hf")
    kept = bring_in(tmp_path / "hf", tmp_path / "kept")
    assert {info.dtype for info in Checkpoint(kept).tensors.values()} == {dtype}
    wide = bring_in(tmp_path / "hf", tmp_path / "wide", "float32")
    send_out(wide, tmp_path / "again", dtype)
    state = reload(tmp_path / "again", dtype="auto").state_dict()
    for key, value in theirs.state_dict().items():
        assert state[key].dtype == value.dtype
        assert torch.equal(state[key], value), key


CHANGES = {
    "unknown type": (
        {"model_type": "llamma"},
        r'model_type "llamma" is not known \(did you mean "llama"\?\)',
    ),
    "scaled rotary": (
        {"rope_parameters": {"rope_type": "llama3"}},
        r"rotary positions are scaled \(llama3\)",
    ),
    "one bias": ({"attention_bias": True}, "attention_bias and mlp_bias differ"),
    "activation": ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    "heads": ({"num_key_value_heads": 3}, "heads 4 cannot be divided by kv_heads 3"),
    "no number": ({"hidden_size": "wide"}, "config.json"),
    "negative": ({"num_hidden_layers": -1}, "layers is -1"),
    "too many layers": ({"num_hidden_layers": 5}, r"lacks model.layers.3.input_layernorm.weight, .* more"),
    "too few layers": ({"num_hidden_layers": 2}, "has no place for: model.layers.2"),
    "another head size": ({"head_dim": 12}, r"q_proj.weight, .* do not make decoder.*linear_qkv.weight"),
    "another width": (
        {"intermediate_size": 32},
        r"gate_proj.weight, .* of \(48, 32\) and \(48, 32\) do not make decoder.*fc1.weight of \(64, 32\)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_imported_exactly_is_refused(tmp_path, name) -> None:
    llama().save_pretrained(tmp_path / "hf")
    config = tmp_path / "hf/config.json"
    change, message = CHANGES[name]
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        bring_in(tmp_path / "hf", tmp_path / "ours")


def test_a_shape_of_no_family_cannot_be_exported(tmp_path) -> None:
    llama().save_pretrained(tmp_path / "hf")
    checkpoint = Checkpoint(bring_in(tmp_path / "hf", tmp_path / "ours"))
    checkpoint.config["model"]["norm"] = "layernorm"
    with pytest.raises(ConfigError, match=r"gpt2 has no kv_heads 2.*; llama has no norm layernorm"):
        export_model(checkpoint, tmp_path / "out", None, 10**9, ignore)


@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.json"])
def test_the_tokenizer_travels_along(tmp_path, form) -> None:
    from tokenizers import ByteLevelBPETokenizer

    from mtl_common import tokenizers

    made = ByteLevelBPETokenizer()
    made.train_from_iterator([Path(__file__).read_text()] * 2, 400, special_tokens=["<|endoftext|>"])
    gpt2(vocab_size=400).save_pretrained(tmp_path / "hf")
    if form == "tokenizer.json":
        made.save(str(tmp_path / "hf/tokenizer.json"))
    else:
        made.save_model(str(tmp_path / "hf"))
    path = bring_in(tmp_path / "hf", tmp_path / "ours")
    send_out(path, tmp_path / "again")
    text = "def test_it(path): return 42  # \u00e9\n\n"
    for directory in (path / "tokenizer", tmp_path / "again"):
        found = tokenizers.load(directory)
        assert found.encode(text) == made.encode(text).ids
        assert found.decode(found.encode(text)) == text
        assert found.eod == 0
    assert json.loads((tmp_path / "again/config.json").read_text())["eos_token_id"] == 0
