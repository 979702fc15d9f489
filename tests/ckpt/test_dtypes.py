"""Casts against torch's, over all values and special ones."""

import numpy as np
import pytest
import torch

from mtl_ckpt.dtypes import cast, check_dtype
from mtl_common.errors import CheckpointError, ConfigError


def some_floats() -> np.ndarray:
    bits = np.random.default_rng(3).integers(0, 2**32, 200_000, np.uint32)
    edges = np.array(
        [0x7F800000, 0xFF800000, 0x7FC00001, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 1, 0], np.uint32
    )
    return np.concatenate([bits, edges]).view(np.float32)


def test_float32_to_bfloat16_rounds_as_torch_does() -> None:
    values = some_floats()
    expected = torch.from_numpy(values).to(torch.bfloat16)
    found = torch.from_numpy(cast(values, "float32", "bfloat16", "x")).view(torch.bfloat16)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[~found.isnan()], expected[~expected.isnan()])


def test_bfloat16_to_float32_is_exact() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(cast(bits, "bfloat16", "float32", "x"), expected)


def test_a_value_too_large_for_float16_is_an_error() -> None:
    values = np.array([1.0, 70_000.0], np.float32)
    with pytest.raises(CheckpointError, match=r"linear.weight has values too large for float16"):
        cast(values, "float32", "float16", "linear.weight")
    assert cast(values[:1], "float32", "float16", "x").dtype == np.float16


def test_an_unknown_dtype_has_a_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r'no dtype "float23" \(did you mean "float32"\?\)'):
        check_dtype("float23")
