"""The one place that says in which order a model is wrapped."""

from mtl_parallel import randomness
from mtl_parallel.mesh import Mesh
from mtl_parallel.models.gpt import GPT, stage
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.precision import PARAMETER_DTYPES
from mtl_train.config import TrainSettings


def build(settings: TrainSettings, mesh: Mesh) -> tuple[GPT, Optimizer]:
    """This rank's stage with its first weights, and the optimizer that owns its memory.

    Shape -> stage -> layers in the precision's dtype -> initial values -> flat memory, master weights, ZeRO.
    """
    model = stage(settings.model, mesh, dtype=PARAMETER_DTYPES[settings.precision])
    randomness.initialise(model, settings.run.seed)
    return model, Optimizer(model, mesh, settings.optimizer, settings.layout.zero)
