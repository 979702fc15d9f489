"""The shape of the model that a checkpoint holds, and its size."""

from math import prod

from mtl_common.checkpoint import Checkpoint
from mtl_common.config import validate
from mtl_common.errors import CheckpointError
from mtl_common.shapes import ModelShape
from mtl_common.tensorfile import ITEM_BYTES
from mtl_common.tensors import model_tensors


def model_shape(checkpoint: Checkpoint) -> ModelShape:
    """The shape of a checkpoint's model; raises CheckpointError when it does not say."""
    values = checkpoint.config.get("model")
    if not isinstance(values, dict):
        raise CheckpointError(f"{checkpoint.path} does not say what its model is")
    return validate(ModelShape, values)


def model_bytes(shape: ModelShape, dtype: str) -> int:
    """The size of a model's tensors in one dtype."""
    return sum(prod(tensor.shape) for tensor in model_tensors(shape).values()) * ITEM_BYTES[dtype]
