"""The shape of the model that a checkpoint holds."""

from mtl_common.checkpoint import Checkpoint
from mtl_common.config import validate
from mtl_common.errors import CheckpointError
from mtl_common.shapes import ModelShape


def model_shape(checkpoint: Checkpoint) -> ModelShape:
    """The shape of a checkpoint's model; raises CheckpointError when it does not say."""
    values = checkpoint.config.get("model")
    if not isinstance(values, dict):
        raise CheckpointError(f"{checkpoint.path} does not say what its model is")
    return validate(ModelShape, values)
