"""Maps between the tensors of other programs and ours, each with its inverse.

A transform takes and returns a list of arrays; its inverse leads back. Names of transforms stand in
`families`. Values are only moved, so any dtype will do. Rows are dim 0; a bias has only rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mtl_ckpt.dtypes import Array
from mtl_common.shapes import ModelShape

Step = Callable[[list[Array], ModelShape], list[Array]]


def transpose(parts: list[Array], shape: ModelShape) -> list[Array]:
    """`(in, out)` <-> `(out, in)`, its own inverse."""
    return [part.T for part in parts]


def stack(parts: list[Array], shape: ModelShape) -> list[Array]:
    """Several arrays -> one, their rows one after another."""
    return [np.concatenate(parts)]


def halves(parts: list[Array], shape: ModelShape) -> list[Array]:
    """One array -> its upper and its lower rows."""
    return np.split(parts[0], 2)


def thirds(parts: list[Array], shape: ModelShape) -> list[Array]:
    """One array -> three with equally many rows."""
    return np.split(parts[0], 3)


def group(parts: list[Array], shape: ModelShape) -> list[Array]:
    """Queries `(N D, H)`, keys and values `(K D, H)` -> one array, by key-value group.

    A group is its query heads, its key, its value. With H left out, the same for biases.
    """
    rest = parts[0].shape[1:]
    grouped = [part.reshape(shape.kv_heads, -1, *rest) for part in parts]  # (K, heads of a group * D, H)
    return [np.concatenate(grouped, axis=1).reshape(-1, *rest)]


def ungroup(parts: list[Array], shape: ModelShape) -> list[Array]:
    """The inverse of `group`."""
    rest, D = parts[0].shape[1:], shape.head_dim
    grouped = parts[0].reshape(shape.kv_heads, -1, *rest)
    queries = shape.heads // shape.kv_heads * D
    return [part.reshape(-1, *rest) for part in np.split(grouped, [queries, queries + D], axis=1)]


def _swap(part: Array, head_dim: int, outer: int) -> Array:
    heads = part.reshape(-1, outer, head_dim // outer, *part.shape[1:])
    return heads.swapaxes(1, 2).reshape(part.shape)


def to_halves(parts: list[Array], shape: ModelShape) -> list[Array]:
    """Rows of queries and keys: rotary pairs side by side -> first halves, then second halves of a head."""
    q, k, *rest = parts
    return [
        _swap(q, shape.head_dim, shape.head_dim // 2),
        _swap(k, shape.head_dim, shape.head_dim // 2),
        *rest,
    ]


def to_pairs(parts: list[Array], shape: ModelShape) -> list[Array]:
    """The inverse of `to_halves`."""
    q, k, *rest = parts
    return [_swap(q, shape.head_dim, 2), _swap(k, shape.head_dim, 2), *rest]


@dataclass(frozen=True)
class Transform:
    """A step towards our tensors, and the way back."""

    forward: Step
    backward: Step


TRANSFORMS = {
    "transpose": Transform(transpose, transpose),
    "stack": Transform(stack, halves),
    "thirds": Transform(thirds, stack),
    "group": Transform(group, ungroup),
    "halves": Transform(to_halves, to_pairs),
}


def join(names: Sequence[str], parts: list[Array], shape: ModelShape) -> Array:
    """Tensors of another program -> one of ours."""
    for name in names:
        parts = TRANSFORMS[name].forward(parts, shape)
    (joined,) = parts
    return joined


def split(names: Sequence[str], full: Array, shape: ModelShape) -> list[Array]:
    """The inverse of `join`."""
    parts = [full]
    for name in reversed(names):
        parts = TRANSFORMS[name].backward(parts, shape)
    return parts
