"""Matrix products in bf16 on a CPU without bf16 instructions, with the weight kept in blocks of columns.

Few rows: a product of one row with a matrix is a sum of the matrix's rows, weighted by that row, and the
fastest such sum in torch is `embedding_bag`: it widens bf16 in registers. Over blocks of 32 columns it reads
memory in order, and takes two thirds of the time of torch's own bf16 product (SmolLM2's layers: 18 against 27
ms; memory allows 16). More rows: blocks are widened in the cache and multiplied in fp32, as
`mtl_parallel.layers.linear.product` does it for a plain weight.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 32  # columns of a block; a row of it is a cache line
FEW = 3  # rows up to which the weight is rather read once for each than widened
CACHED = 1 << 17  # elements to widen at a time: half a megabyte in fp32


class ColumnBlocks:
    """A product with one weight `(out, in)`, whatever weight it is called with."""

    def __init__(self, weight: Tensor) -> None:
        self._outputs, self._inputs = weight.shape
        self._count = -(-self._outputs // WIDTH)  # C
        padded = F.pad(weight.detach(), (0, 0, 0, self._count * WIDTH - self._outputs))
        self._blocks = padded.view(self._count, WIDTH, -1).transpose(1, 2).contiguous()  # (C, in, WIDTH)
        self._table = self._blocks.flatten(0, 1)  # (C in, WIDTH)
        self._ids = torch.arange(len(self._table), dtype=torch.int32)
        self._starts = self._ids[:: self._inputs].contiguous()

    def __call__(self, x: Tensor, _: Tensor, bias: Tensor | None) -> Tensor:
        """`(..., in) -> (..., out)`."""
        count = x.numel() // self._inputs  # M
        if count == 1:
            out = self._row(x)
        elif count <= FEW:
            out = torch.cat([self._row(row) for row in x.reshape(count, -1)])
        else:
            out = self._wide(x.reshape(count, -1))
        out = out.view(*x.shape[:-1], self._count * WIDTH)
        if self._count * WIDTH > self._outputs:
            out = out.narrow(-1, 0, self._outputs)
        return out if bias is None else out + bias

    def _row(self, x: Tensor) -> Tensor:
        """One row of any shape -> `(C, WIDTH)`."""
        weights = x.view(1, -1).expand(self._count, self._inputs).flatten()
        return torch.embedding_bag(self._table, self._ids, self._starts, per_sample_weights=weights)[0]

    def _wide(self, x: Tensor) -> Tensor:
        """`(M, in) -> (M, C WIDTH)`."""
        wide, out = x.float(), torch.empty(self._count, len(x), WIDTH)
        step = max(1, CACHED // (self._inputs * WIDTH))
        for blocks, part in zip(torch.split(self._blocks, step), torch.split(out, step), strict=True):
            torch.matmul(wide, blocks.float(), out=part)
        return out.to(x.dtype).transpose(0, 1).reshape(len(x), -1)
