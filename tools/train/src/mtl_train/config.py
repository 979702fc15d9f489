"""All settings of a training run, one frozen model a concern, and the checks that need no rank."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mtl_common.config import Settings
from mtl_common.errors import ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import ModelShape, check_layout
from mtl_parallel.settings import OptimizerSettings, Precision
from mtl_train.rates import Rate, Style


class DataSettings(Settings):
    """Where samples come from."""

    bins: Path = Field(description="directory of token bins")
    valid: float = Field(
        default=0.05, ge=0, lt=1, description="share of the tokens held back for validation, whole documents"
    )
    seed: int = Field(default=1234, ge=0, description="seed of the sample order")
    mask_eod: bool = Field(default=False, description="do not train on what follows the end of a document")


class BatchSettings(Settings):
    """How many samples at once."""

    micro_batch: int = Field(default=4, gt=0, description="samples a forward pass")
    global_batch: int = Field(default=16, gt=0, description="samples a step, over all ranks")


class ScheduleSettings(Settings):
    """The learning rate of every step."""

    lr: float = Field(default=1e-3, gt=0, description="learning rate at the end of the warm-up")
    style: Style = Field(default="cosine", description="how it decays")
    minimum: float = Field(default=0.1, ge=0, le=1, description="where it decays to, as a share of lr")
    warmup_steps: int | None = Field(
        default=None, ge=0, description="steps of the warm-up; a twentieth of the steps, at most 2000"
    )
    steps: int | None = Field(default=None, gt=0, description="step at which the decay ends; run.steps")


class LayoutSettings(Settings):
    """How the model and the work are divided among ranks."""

    tp: int = Field(default=1, gt=0, description="tensor-parallel ranks")
    pp: int = Field(default=1, gt=0, description="pipeline stages")
    dp: int | None = Field(
        default=None, gt=0, description="data-parallel ranks; what the world has left, or 1"
    )
    zero: Literal[0, 1] = Field(default=0, description="1 divides optimizer state among data-parallel ranks")
    schedule: Literal["1f1b", "gpipe"] = Field(default="1f1b", description="order of work in the pipeline")


class CheckpointSettings(Settings):
    """When to save, and what to keep."""

    every: int = Field(default=100, ge=0, description="steps between saves; 0 saves only at the end")
    keep_last: int = Field(default=2, gt=0, description="newest checkpoints to keep")


class ValidationSettings(Settings):
    """When to measure the loss on held-back documents."""

    every: int = Field(default=50, ge=0, description="steps between measurements; 0 measures only at the end")
    batches: int = Field(default=4, gt=0, description="global batches a measurement reads")


class RunSettings(Settings):
    """The run itself."""

    out: Path = Field(description="run directory; a run found there is continued")
    steps: int = Field(default=200, gt=0, description="optimizer steps from the very start")
    seed: int = Field(default=1, ge=0, description="seed of the initial weights")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto takes a GPU if there is one"
    )
    threads: int = Field(default=1, gt=0, description="CPU threads a rank computes with")
    bad_steps: int = Field(
        default=10, gt=0, description="steps in a row without a finite loss and gradient that end the run"
    )


class TrainSettings(Settings):
    """Everything that says what a run does."""

    preset: str = Field(default="tiny", description="model preset that model.* starts from")
    model: ModelShape
    data: DataSettings
    batch: BatchSettings = BatchSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Precision = Field(default="fp32", description="bf16 keeps fp32 master weights")
    layout: LayoutSettings = LayoutSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    validation: ValidationSettings = ValidationSettings()
    run: RunSettings

    @property
    def rate(self) -> Rate:
        """The learning rates, with what the schedule leaves open derived from the length of the run."""
        schedule = self.schedule
        steps = schedule.steps or self.run.steps
        warmup = min(2000, steps // 20) if schedule.warmup_steps is None else schedule.warmup_steps
        return Rate(schedule.lr, schedule.minimum * schedule.lr, warmup, steps, schedule.style)


def layout_of(settings: LayoutSettings, world: int | None) -> Layout:
    """The layout of a run, in a world that was started from outside or, with None, is still to be started.

    Raises ConfigError when the axes do not multiply out to the world.
    """
    tp, pp, dp = settings.tp, settings.pp, settings.dp
    if world is None:
        return Layout(tp=tp, dp=dp or 1, pp=pp)
    if world % (tp * pp) or (dp and tp * pp * dp != world):
        asked = f"tp {tp} x pp {pp}" + (f" x dp {dp}" if dp else "")
        raise ConfigError(
            f"{asked} does not fit the {world} ranks that were started; change the layout or start "
            f"{tp * pp * (dp or 1)} ranks"
        )
    return Layout(tp=tp, dp=world // (tp * pp), pp=pp)


def check(settings: TrainSettings, layout: Layout) -> None:
    """Raises ConfigError when the layout cannot divide the model or the batch."""
    check_layout(settings.model, layout)
    batch, micro = settings.batch.global_batch, settings.batch.micro_batch
    if batch % (micro * layout.dp):
        raise ConfigError(
            f"global batch {batch} cannot be divided by micro-batch {micro} x dp {layout.dp}; "
            f"choose a multiple of {micro * layout.dp}"
        )


def ignored(settings: TrainSettings, layout: Layout) -> list[str]:
    """A sentence for each setting that was chosen and has no effect here."""
    found = []
    if settings.layout.zero and layout.dp == 1:
        found.append("zero 1 has no effect at dp 1: there is nobody to share optimizer state with")
    if settings.layout.schedule != "1f1b" and layout.pp == 1:
        found.append(f"schedule {settings.layout.schedule} has no effect at pp 1: there is no pipeline")
    if settings.rate.warmup > settings.run.steps:
        found.append(
            f"the learning rate never reaches {settings.schedule.lr:g}: "
            f"it warms up for {settings.rate.warmup} steps, and the run has {settings.run.steps}"
        )
    return found
