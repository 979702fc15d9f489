"""GPT: one pipeline stage of a decoder, the GPT-2 and Llama families by the switches of its shape.

The module tree's paths are the global names of the parameters. Parameters are uninitialised memory until
`randomness.initialise` or a checkpoint fills them.
"""

import torch
from torch import Tensor, nn

from mtl_common.shapes import ModelShape, check_layout
from mtl_parallel.layers.attention import Attend, causal
from mtl_parallel.layers.embedding import PositionEmbedding, VocabParallelEmbedding, vocabulary_weight
from mtl_parallel.layers.linear import Product, linear, product
from mtl_parallel.layers.loss import cross_entropy
from mtl_parallel.layers.rope import Rotary
from mtl_parallel.mesh import Axis, Mesh
from mtl_parallel.models.block import Block, norm

EMBEDDING = "embedding.word_embeddings.weight"


class Embedding(nn.Module):
    """Token vectors, plus learned positions where the shape has them."""

    def __init__(self, shape: ModelShape, axis: Axis, tied: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(shape.vocab, shape.hidden, axis, tied=tied, dtype=dtype)
        learned = shape.position == "learned"
        self.position_embeddings = (
            PositionEmbedding(shape.seq, shape.hidden, dtype=dtype) if learned else None
        )

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """`(B, T)` -> `(B, T, H)`."""
        x: Tensor = self.word_embeddings(tokens)  # (B, T, H)
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions)
        return x


class Decoder(nn.Module):
    """The blocks of a stage, keyed by global layer number, and the final norm on the last stage."""

    def __init__(self, shape: ModelShape, axis: Axis, layers: range, last: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(i): Block(shape, axis, i, dtype) for i in layers})
        self.final_layernorm = norm(shape, dtype) if last else None

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        """`(B, T, H)` -> `(B, T, H)`."""
        for block in self.layers.values():
            x = block(x, turn, attend)
        return x if self.final_layernorm is None else self.final_layernorm(x)


class OutputLayer(nn.Module):
    """The weight `(Vp/tp, H)` that turns hidden states into logits, where it is not the embedding's own."""

    def __init__(self, shape: ModelShape, axis: Axis, dtype: torch.dtype) -> None:
        super().__init__()
        alias = EMBEDDING if shape.tied else None
        self.weight = vocabulary_weight(shape.vocab, shape.hidden, axis, dtype, alias, tied=shape.tied)


class GPT(nn.Module):
    """The layers `layers` of a decoder, with the embedding on the first stage and the logits on the last.

    Raises ConfigError when kv_heads or ffn cannot be divided by tp.
    """

    def __init__(
        self,
        shape: ModelShape,
        mesh: Mesh,
        *,
        layers: range,
        first: bool,
        last: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.shape, self.tp = shape, mesh.tp
        self.product: Product = product  # of the logits
        with mesh.device:
            rope = shape.position == "rope"
            self.rotary = Rotary(shape.head_dim, shape.seq, shape.rope_base) if rope else None
            apart = shape.tied and not (first and last)
            self.embedding = Embedding(shape, mesh.tp, apart, dtype) if first else None
            self.decoder = Decoder(shape, mesh.tp, layers, last, dtype)
            shared = shape.tied and first  # one stage holds both ends: the embedding is the output layer
            self.output_layer = OutputLayer(shape, mesh.tp, dtype) if last and not shared else None
        self.last = last

    @property
    def aliases(self) -> dict[str, str]:
        """Names, the same at every layout, that stand for another tensor of the model."""
        return {"output_layer.weight": EMBEDDING} if self.shape.tied else {}

    def hidden(self, x: Tensor, *, positions: Tensor | None = None, attend: Attend | None = None) -> Tensor:
        """`forward` without the logits, which a server wants of a few positions only: `(B, T, H)`."""
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        turn = None if self.rotary is None else self.rotary(positions)
        if self.embedding is not None:
            x = self.embedding(x, positions)
        return self.decoder(x, turn, attend or causal)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, *, positions: Tensor | None = None, attend: Attend | None = None) -> Tensor:
        """Tokens `(B, T)` on the first stage, hidden `(B, T, H)` elsewhere -> hidden, or logits at the end.

        Args:
            x: what this stage starts from.
            positions: `(T,)` or `(B, T)`; counted from 0 when not given.
            attend: the attention of each layer, called after rotation; causal over T when not given.

        Returns:
            `(B, T, H)`, or `(B, T, Vp/tp)` at the end: this rank's columns, padding behind `shape.vocab`.
        """
        x = self.hidden(x, positions=positions, attend=attend)
        return self.logits(x) if self.last else x

    @property
    def output_weight(self) -> nn.Parameter:
        """The weight of the logits, `(Vp/tp, H)`: the embedding's own where they are tied."""
        if self.output_layer is not None:
            return self.output_layer.weight
        assert self.embedding is not None
        return self.embedding.word_embeddings.weight

    def logits(self, x: Tensor) -> Tensor:
        """Normed hidden `(..., H)` -> `(..., Vp/tp)`."""
        if not torch.is_grad_enabled():
            return self.product(x, self.output_weight, None)
        return linear(x, self.output_weight, copied=self.tp)

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """The fp32 sum of the masked tokens' losses, the same on all tp ranks; consumes the logits."""
        return cross_entropy(logits, labels, mask, self.shape.vocab, self.tp)


def stage(shape: ModelShape, mesh: Mesh, dtype: torch.dtype = torch.float32) -> GPT:
    """This rank's stage of the model. Raises ConfigError when the layout cannot cut the shape."""
    check_layout(shape, mesh.layout)
    count = shape.layers // mesh.pp.size
    layers = range(mesh.pp.rank * count, (mesh.pp.rank + 1) * count)
    return GPT(shape, mesh, layers=layers, first=mesh.pp.first, last=mesh.pp.last, dtype=dtype)
