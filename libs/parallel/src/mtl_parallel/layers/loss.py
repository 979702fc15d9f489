"""Cross entropy over a vocabulary that is divided over the axis.

Works through blocks of rows that stay in the cache, in fp32 (fp64 for fp64 logits), and turns the logits into
their own gradient in place: no second tensor of `tokens x vocabulary` ever exists.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mtl_parallel.collectives import all_gather
from mtl_parallel.mesh import Axis

BLOCK_ELEMENTS = 1 << 18


def _blocks(x: Tensor) -> range:
    return range(0, len(x), max(1, BLOCK_ELEMENTS // x.shape[1]))


def _softmax(logits: Tensor, wide: torch.dtype, keep: bool) -> Tensor:
    """Log of the sum of exponentials of every row, `(M,)`; with `keep` the rows become their softmax."""
    sums = torch.empty(len(logits), dtype=wide, device=logits.device)
    step = _blocks(logits).step
    for start in _blocks(logits):
        block = logits[start : start + step]
        values = block.to(wide)
        torch.logsumexp(values, 1, out=sums[start : start + step])
        if keep:
            block.copy_(values.sub(sums[start : start + step, None]).exp_())
    return sums


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mask: Tensor, vocab: int, axis: Axis) -> Tensor:
        R = logits.shape[1]
        held = min(max(vocab - axis.rank * R, 0), R)  # rows of the vocabulary here; the rest is padding
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        local = labels - axis.rank * R
        here = (local >= 0) & (local < held)
        local = local.masked_fill(~here, 0)
        target = logits.gather(1, local[:, None]).squeeze(1).to(wide).masked_fill(~here, 0.0)  # (M,)
        keep = ctx.needs_input_grad[0]
        own = _softmax(logits[:, :held], wide, keep) if held else torch.full_like(target, -torch.inf)
        both = all_gather(torch.stack((own, target))[None], axis)  # (tp, 2, M)
        total, target = both[:, 0].logsumexp(0), both[:, 1].sum(0)  # (M,)
        weight = mask.to(wide)
        if keep:
            ctx.held = held
            ctx.save_for_backward(logits, local, here, own - total, target - total, weight)
        return ((total - target) * weight).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, local, here, share, logp, weight = ctx.saved_tensors
        scale = weight * grads[0]  # (M,)
        softmax = logits[:, : ctx.held]
        logits[:, ctx.held :] = 0.0
        step = _blocks(logits).step
        factor = (share.exp() * scale)[:, None]
        for start in _blocks(logits):
            block = softmax[start : start + step]
            block.copy_(block * factor[start : start + step])
        (rows,) = here.nonzero(as_tuple=True)
        # The label's entry p - 1 is computed apart: in bf16 it would lose what p lost when it was rounded.
        logits[rows, local[rows]] = (torch.expm1(logp) * scale)[rows].to(logits.dtype)
        return logits, None, None, None, None


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor, vocab: int, axis: Axis) -> Tensor:
    """The sum of the masked tokens' losses, an fp32 scalar (fp64 for fp64 logits), the same on all ranks.

    Args:
        logits: `(..., Vp/tp)`, this rank's columns. Consumed: with gradients on, they become the gradient.
        labels: `(...)` global token ids; anything where the mask is 0.
        mask: `(...)` 0 or 1, or any weight of the token.
        vocab: the true size; columns from there on are padding and get no probability and no gradient.
        axis: what the vocabulary is divided over. One small all-gather is all that is exchanged.
    """
    flat = logits.reshape(-1, logits.shape[-1])  # (M, Vp/tp)
    return _CrossEntropy.apply(flat, labels.reshape(-1), mask.reshape(-1), vocab, axis)  # type: ignore[no-any-return, no-untyped-call]
