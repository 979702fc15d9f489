"""A tiny model with noise on every parameter, its checkpoint, and a byte-level vocabulary."""

import json
from pathlib import Path

import torch

from mtl_common import checkpoint
from mtl_common.checkpoint import PartWriter
from mtl_common.shapes import ModelShape
from mtl_common.tokenizers.pieces import byte_characters
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_parallel.randomness import initialise
from mtl_parallel.sharding import sharded_parameters

END = "<|end|>"
TURN = "<|turn|>"
TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

LLAMA = ModelShape(
    hidden=48,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    vocab=261,
    seq=160,
    norm="rmsnorm",
    position="rope",
    activation="swiglu",
    bias=False,
)
GPT2 = LLAMA.model_copy(
    update=dict(kv_heads=6, norm="layernorm", position="learned", activation="gelu_tanh", bias=True)
)


def write_tokenizer(folder: Path, chat: bool = True) -> Path:
    """All 256 bytes, three merges, two special tokens: 261 ids. 256 is "he", 257 "ll", 258 "hell"."""
    characters = {byte: character for character, byte in byte_characters().items()}
    vocabulary = {characters[byte]: byte for byte in range(256)} | {"he": 256, "ll": 257, "hell": 258}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 259 + n, "content": name, **special} for n, name in enumerate((END, TURN))]
    model = {"type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": model,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = {"eos_token": END} | ({"chat_template": TEMPLATE} if chat else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def toy_model(shape: ModelShape, dtype: torch.dtype = torch.float32) -> GPT:
    """The whole model in one process; sharp enough that its greedy text is not one repeated token."""
    model = stage(shape, Mesh.single(), dtype)
    initialise(model, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model.eval().requires_grad_(False)


def write_checkpoint(folder: Path, shape: ModelShape, dtype: torch.dtype = torch.float32) -> Path:
    """A step directory with the toy model's weights and the tokenizer."""
    name = str(dtype).removeprefix("torch.")
    model = toy_model(shape, dtype)
    staging = checkpoint.begin(folder, 1)
    with PartWriter(staging, 0) as writer:
        for key, parameter, record in sharded_parameters(model):
            data = parameter.view(-1)[: record.volume].view(torch.uint8).numpy().data
            writer.write(f"model/{key}", name, record.shape, record.boxes, 0, record.volume, data)
    aliases = {"output_layer.weight": "embedding.word_embeddings.weight"} if shape.tied else {}
    config = {"model": shape.model_dump()}
    tokenizer = write_tokenizer(folder / "tokenizer")
    return checkpoint.commit(
        staging, layout="tp1", config=config, state={}, aliases=aliases, tokenizer=tokenizer
    )
