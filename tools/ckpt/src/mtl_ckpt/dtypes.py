"""Dtypes as numpy holds them, and casts between them. bfloat16 travels as the uint16 of its bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.errors import CheckpointError, ConfigError

Array = NDArray[Any]

CARRIERS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64),
}


def check_dtype(name: str | None) -> None:
    """Raises ConfigError for a dtype that models cannot be stored in; None means as it is."""
    from mtl_common.config import nearest

    if name is not None and name not in CARRIERS:
        raise ConfigError(
            f'no dtype "{name}"{nearest(name, CARRIERS)}; choose {", ".join(CARRIERS)} or leave it out'
        )


def _widen_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrow_bfloat16(values: Array) -> Array:
    """Rounds to nearest, ties to even; a NaN stays one."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def cast(array: Array, source: str, target: str, what: str) -> Array:
    """The same values in another dtype; raises CheckpointError, naming `what`, when one gets infinite."""
    if source == target:
        return array
    values = _widen_bfloat16(array) if source == "bfloat16" else array
    if target == "bfloat16":
        return _narrow_bfloat16(values)
    with np.errstate(over="ignore"):
        result = values.astype(CARRIERS[target])
    if np.isinf(result).any() and not np.isinf(values).any():
        raise CheckpointError(f"{what} has values too large for {target}; choose bfloat16 or float32")
    return result
