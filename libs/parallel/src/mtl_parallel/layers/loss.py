"""Cross entropy over a vocabulary that is divided over the axis.

Works through blocks of rows that stay in the cache, in fp32 (fp64 for fp64 logits), and turns the logits into
their own gradient in place: no second tensor of `tokens x vocabulary` ever exists.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mtl_parallel.collectives import all_gather
from mtl_parallel.mesh import Axis

_CACHED = 1 << 17  # elements of a block on a CPU, half a megabyte in fp32
_LAUNCHED = 1 << 26  # elsewhere: enough that starting kernels costs nothing


def _blocks(x: Tensor) -> Iterator[slice]:
    step = max(1, (_CACHED if x.device.type == "cpu" else _LAUNCHED) // max(1, x.shape[1]))
    return (slice(start, start + step) for start in range(0, len(x), step))


def _exponentials(logits: Tensor, wide: torch.dtype, keep: bool) -> tuple[Tensor, Tensor]:
    """Every row's largest value m and its sum of exp(x - m), `(M,)` each; `keep` turns x into exp(x - m)."""
    top, total = torch.empty(2, len(logits), dtype=wide, device=logits.device)
    for block in _blocks(logits):
        values = logits[block].to(wide)
        torch.amax(values, 1, out=top[block])
        values = torch.sub(values, top[block, None], out=values if keep else None).exp_()
        torch.sum(values, 1, out=total[block])
        if keep and values.dtype != logits.dtype:
            logits[block] = values
    return top, total


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mask: Tensor, vocab: int, axis: Axis) -> Tensor:
        R = logits.shape[1]
        held = min(max(vocab - axis.rank * R, 0), R)  # this rank's rows of the vocabulary, without padding
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        local = labels - axis.rank * R
        here = (local >= 0) & (local < held)
        local = local.masked_fill(~here, 0)
        target = logits.gather(1, local[:, None]).squeeze(1).to(wide).masked_fill(~here, 0.0)  # (M,)
        keep = ctx.needs_input_grad[0]
        if held:
            top, total = _exponentials(logits[:, :held], wide, keep)
        else:
            top, total = torch.zeros_like(target), torch.zeros_like(target)
        everyone = all_gather(torch.stack((top + total.log(), target))[None], axis)  # (tp, 2, M)
        whole, target = everyone[:, 0].logsumexp(0), everyone[:, 1].sum(0)  # (M,)
        weight = mask.to(wide)
        if keep:
            ctx.held = held
            ctx.save_for_backward(logits, local, here, top - whole, target - whole, weight)
        return ((whole - target) * weight).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, local, here, share, logp, weight = ctx.saved_tensors
        scale = weight * grads[0]  # (M,)
        factor = (share.exp() * scale)[:, None]  # exp(x - m) -> softmax -> gradient
        exponentials = logits[:, : ctx.held]
        for block in _blocks(exponentials):
            if logits.dtype == factor.dtype:
                exponentials[block].mul_(factor[block])
            else:
                exponentials[block] = exponentials[block].to(factor.dtype).mul_(factor[block])
        logits[:, ctx.held :] = 0.0
        # The label's p - 1 is computed apart: a rounded p would leave little of it when p is near 1.
        (rows,) = here.nonzero(as_tuple=True)
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
    loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        flat, labels.reshape(-1), mask.reshape(-1), vocab, axis
    )
    return loss
