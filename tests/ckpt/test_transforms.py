"""Transforms: every chain has an inverse, and each puts rows where it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl_ckpt.families import GGUF_LLAMA, GPT2, LLAMA, sources
from mtl_ckpt.transforms import join, split
from mtl_common.shapes import ModelShape
from mtl_common.tensors import model_tensors


def shape_of(heads: int = 4, kv_heads: int = 4, head_dim: int = 6, **changes: object) -> ModelShape:
    sizes = {"hidden": 8, "layers": 2, "ffn": 10, "vocab": 11, "seq": 5}
    return ModelShape(**{**sizes, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **changes})


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape)


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4).map(lambda half: 2 * half),
    st.booleans(),
    st.sampled_from([GPT2, LLAMA, GGUF_LLAMA]),
)
def test_every_rule_of_every_family_leads_there_and_back(groups, queries, head_dim, bias, family) -> None:
    changes = {"position": "rope", "activation": "swiglu", "norm": "rmsnorm"} if family is not GPT2 else {}
    queries = queries if changes else 1
    shape = shape_of(groups * queries, groups, head_dim, bias=bias or not changes, tied=False, **changes)
    tensors = model_tensors(shape)
    for item in sources(family, shape):
        full = numbered(tensors[item.name].shape)
        parts = split(item.transforms, full, shape)
        assert len(parts) == len(item.parts)
        assert (join(item.transforms, parts, shape) == full).all()


def test_group_goes_by_queries_key_value() -> None:
    shape = shape_of(heads=4, kv_heads=2, head_dim=1)
    parts = [np.array([0, 1, 2, 3]), np.array([10, 11]), np.array([20, 21])]
    assert join(["group"], parts, shape).tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_halves_takes_rotary_pairs_apart() -> None:
    shape = shape_of(heads=2, kv_heads=1, head_dim=4)
    parts = [np.arange(8), np.arange(4), np.arange(4)]
    assert join(["halves", "stack"], parts, shape).tolist() == [
        0,
        2,
        1,
        3,
        4,
        6,
        5,
        7,
        0,
        2,
        1,
        3,
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("family", [GPT2, LLAMA, GGUF_LLAMA])
def test_names_of_a_family_are_distinct(family) -> None:
    changes = {"position": "rope", "activation": "swiglu", "norm": "rmsnorm"} if family is not GPT2 else {}
    names = [part for item in sources(family, shape_of(tied=False, **changes)) for part in item.parts]
    assert len(names) == len(set(names))
