"""Every tensor of a model shape: its global name, its full shape, and how a layout cuts it. Pure arithmetic.

What the layers of mtl_parallel declare one by one, as a table for tools that build no model. The rule of each
cut is here once, for both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mtl_common.boxes import Box
from mtl_common.layout import Layout, divide
from mtl_common.shapes import ModelShape

Cut = Literal["copies", "rows", "gated rows", "columns", "vocabulary"]
"""How tp cuts a tensor: not at all; dim 0; each half of dim 0 (gate, then up); the last dim; padded rows."""

VOCABULARY_MULTIPLE = 64
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"


def vocabulary_rows(vocab: int, size: int) -> int:
    """Rows each of `size` ranks holds of a vocabulary, padding included: equal, and a multiple of 64.

    >>> vocabulary_rows(50257, 1), vocabulary_rows(101, 2)
    (50304, 64)
    """
    return -(-vocab // (size * VOCABULARY_MULTIPLE)) * VOCABULARY_MULTIPLE


def _rows(shape: tuple[int, ...], start: int, stop: int) -> Box:
    return Box((start, *(0,) * (len(shape) - 1)), (stop - start, *shape[1:]))


def cut_boxes(cut: Cut, shape: tuple[int, ...], rank: int, size: int) -> tuple[Box, ...]:
    """The boxes of the full tensor that one of `size` ranks holds, in the order of its memory.

    Raises ConfigError when the dim cannot be divided.

    >>> [(b.offset, b.size) for b in cut_boxes("gated rows", (8, 3), 1, 2)]
    [((2, 0), (2, 3)), ((6, 0), (2, 3))]
    """
    if cut == "copies":
        return (Box.full(shape),)
    if cut == "vocabulary":
        count = vocabulary_rows(shape[0], size)
        start, stop = (min(edge, shape[0]) for edge in (rank * count, (rank + 1) * count))
        return (_rows(shape, start, stop),) if stop > start else ()
    if cut == "columns":
        width = divide(shape[-1], size, "input features", "tp")
        return (Box((*(0,) * (len(shape) - 1), rank * width), (*shape[:-1], width)),)
    parts = 2 if cut == "gated rows" else 1
    half = shape[0] // parts
    height = divide(half, size, "output features", "tp")
    starts = [part * half + rank * height for part in range(parts)]
    return tuple(_rows(shape, start, start + height) for start in starts)


@dataclass(frozen=True)
class ModelTensor:
    """A tensor of a model: where it is along the depth (`layer`, or before or after all of them), and its
    cut.
    """

    shape: tuple[int, ...]
    cut: Cut
    layer: int | Literal["before", "after"]

    def stage(self, layers: int, pp: int) -> int:
        """The pipeline stage that holds it, of a model of `layers` blocks."""
        if isinstance(self.layer, str):
            return 0 if self.layer == "before" else pp - 1
        return self.layer // divide(layers, pp, "layers", "pp")


def _norm(shape: ModelShape, layer: int | Literal["after"]) -> dict[str, ModelTensor]:
    names = ("weight", "bias") if shape.norm == "layernorm" and shape.bias else ("weight",)
    return {name: ModelTensor((shape.hidden,), "copies", layer) for name in names}


def _linear(outputs: int, inputs: int, cut: Cut, layer: int, bias: bool) -> dict[str, ModelTensor]:
    found = {"weight": ModelTensor((outputs, inputs), cut, layer)}
    if bias:  # a sum over tp adds its bias once: every rank has all of it
        found["bias"] = ModelTensor((outputs,), "copies" if cut == "columns" else cut, layer)
    return found


def _block(shape: ModelShape, layer: int) -> dict[str, dict[str, ModelTensor]]:
    gated = shape.activation == "swiglu"
    attention = shape.heads * shape.head_dim
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    fc1 = (2 if gated else 1) * shape.ffn

    def linear(outputs: int, inputs: int, cut: Cut) -> dict[str, ModelTensor]:
        return _linear(outputs, inputs, cut, layer, shape.bias)

    return {
        "input_layernorm": _norm(shape, layer),
        "self_attention.linear_qkv": linear(qkv, shape.hidden, "rows"),
        "self_attention.linear_proj": linear(shape.hidden, attention, "columns"),
        "pre_mlp_layernorm": _norm(shape, layer),
        "mlp.linear_fc1": linear(fc1, shape.hidden, "gated rows" if gated else "rows"),
        "mlp.linear_fc2": linear(shape.hidden, shape.ffn, "columns"),
    }


def _all(shape: ModelShape) -> Iterator[tuple[str, ModelTensor]]:
    table = (shape.vocab, shape.hidden)
    yield EMBEDDING, ModelTensor(table, "vocabulary", "before")
    if shape.position == "learned":
        positions = ModelTensor((shape.seq, shape.hidden), "copies", "before")
        yield "embedding.position_embeddings.weight", positions
    for layer in range(shape.layers):
        for module, parts in _block(shape, layer).items():
            for part, tensor in parts.items():
                yield f"decoder.layers.{layer}.{module}.{part}", tensor
    for part, tensor in _norm(shape, "after").items():
        yield f"decoder.final_layernorm.{part}", tensor
    if not shape.tied:
        yield OUTPUT, ModelTensor(table, "vocabulary", "after")


def model_tensors(shape: ModelShape) -> dict[str, ModelTensor]:
    """Global name -> tensor, in the order of the forward pass; a tied output layer is not among them."""
    return dict(_all(shape))


def aliases(shape: ModelShape) -> dict[str, str]:
    """The names that stand for another tensor of the model."""
    return {OUTPUT: EMBEDDING} if shape.tied else {}


def held_boxes(tensor: ModelTensor, layers: int, layout: Layout, rank: int) -> tuple[Box, ...]:
    """What a rank of a layout holds of a tensor; nothing when it is on another stage."""
    place = layout.place(rank)
    if tensor.stage(layers, layout.pp) != place["pp"]:
        return ()
    return cut_boxes(tensor.cut, tensor.shape, place["tp"], layout.tp)
