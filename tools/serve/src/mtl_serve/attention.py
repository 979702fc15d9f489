"""The key-value cache of a rank, and attention over it for one flat batch of tokens.

One loop over the sequences of a step: there is no padding to pay for, and where a sequence's pages follow
one another its keys and values are views of the cache. A sequence that decodes has its query heads folded
into rows, one block for each key-value head: the CPU kernel reads keys once then, and is 7 to 17 times as
fast as with `enable_gqa`.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mtl_common.shapes import ModelShape
from mtl_serve.message import Part
from mtl_serve.scheduler import Limits


def new_cache(shape: ModelShape, tp: int, limits: Limits, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One allocation for all layers: (layers, 2, pages, page_size, K/tp, D), keys then values."""
    pages = (limits.pages, limits.page_size)
    return torch.empty(
        shape.layers, 2, *pages, shape.kv_heads // tp, shape.head_dim, dtype=dtype, device=device
    )


def _consecutive(pages: Sequence[int]) -> bool:
    return pages[-1] - pages[0] == len(pages) - 1 and all(b == a + 1 for a, b in pairwise(pages))


def _attend_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`q (1, N/tp, D), k (1, K/tp, L, D), v like k -> (1, N/tp, D)`."""
    _, N, D = q.shape
    folded = q.view(1, k.shape[1], -1, D)  # (1, K/tp, N/K, D)
    return scaled_dot_product_attention(folded, k, v).reshape(1, N, D)


def _attend_chunk(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`q (T, N/tp, D), k (1, K/tp, L, D), v like k, mask (T, L) -> (T, N/tp, D)`."""
    heads = q.transpose(0, 1).unsqueeze(0)  # (1, N/tp, T, D)
    found = scaled_dot_product_attention(heads, k, v, attn_mask=mask, enable_gqa=True)
    return found[0].transpose(0, 1)


class _Rows:
    """One part of the step: its rows of the batch, and where its keys and values lie."""

    def __init__(self, part: Part, start: int, page_size: int, device: torch.device) -> None:
        self.rows = slice(start, start + part.count)
        self.length = part.cached + part.count  # L
        first = part.pages[0] * page_size
        self.run = slice(first, first + self.length)
        self.table = None if _consecutive(part.pages) else torch.tensor(part.pages, device=device)
        self.mask = None
        if part.count > 1:
            positions = torch.arange(self.length, device=device)
            self.mask = positions <= positions[part.cached :, None]  # (count, L)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q (count, N/tp, D), k (1, K/tp, L, D), v like k -> (count, N/tp, D)`."""
        return _attend_one(q, k, v) if self.mask is None else _attend_chunk(q, k, v, self.mask)

    def gather(self, pages: Tensor) -> Tensor:
        """(pages, page_size, K/tp, D) -> (1, K/tp, L, D)."""
        if self.table is None:
            found = pages.flatten(0, 1)[self.run]
        else:
            found = pages.index_select(0, self.table).flatten(0, 1)[: self.length]
        return found.transpose(0, 1).unsqueeze(0)


def _slots(parts: Sequence[Part], page_size: int, device: torch.device) -> Tensor:
    """Where in the cache the new tokens go, (T,)."""
    slots = [
        part.pages[at // page_size] * page_size + at % page_size
        for part in parts
        for at in range(part.cached, part.cached + part.count)
    ]
    return torch.tensor(slots, device=device)


class PagedAttention:
    """The `Attend` of one step: stores the new keys and values, then attends to each sequence's own."""

    def __init__(self, cache: Tensor, parts: Sequence[Part]) -> None:
        page_size, device = cache.shape[3], cache.device
        self._cache = cache
        self._slots = _slots(parts, page_size, device)
        starts = accumulate((part.count for part in parts), initial=0)
        self._rows = [
            _Rows(part, start, page_size, device) for part, start in zip(parts, starts, strict=False)
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q (1, T, N/tp, D), k (1, T, K/tp, D), v like k -> (1, T, N/tp, D)`."""
        keys, values = self._cache[layer]
        keys.flatten(0, 1).index_copy_(0, self._slots, k[0])
        values.flatten(0, 1).index_copy_(0, self._slots, v[0])
        out = torch.empty_like(q)
        for part in self._rows:
            out[0, part.rows] = part.attend(q[0, part.rows], part.gather(keys), part.gather(values))
        return out
