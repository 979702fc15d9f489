"""The shape of the model that a checkpoint holds, and what it takes."""

from mtl_common.checkpoint import Checkpoint
from mtl_common.config import validate
from mtl_common.errors import CheckpointError
from mtl_common.shapes import ModelShape, parameters
from mtl_common.tensorfile import ITEM_BYTES


def model_shape(checkpoint: Checkpoint) -> ModelShape:
    """The shape of a checkpoint's model; raises CheckpointError when it does not say."""
    values = checkpoint.config.get("model")
    if not isinstance(values, dict):
        raise CheckpointError(f"{checkpoint.path} does not say what its model is")
    return validate(ModelShape, values)


def model_bytes(shape: ModelShape, dtype: str) -> int:
    """The size of a model's tensors in one dtype; 4 bytes an element for a dtype that is not ours."""
    return parameters(shape) * ITEM_BYTES.get(dtype, 4)


def model_dtype(checkpoint: Checkpoint) -> str:
    """What the model's tensors are stored in."""
    return next(
        (info.dtype for key, info in checkpoint.tensors.items() if key.startswith("model/")), "float32"
    )
