"""What a command line asks for, resolved and checked before any rank starts, and before torch is imported.

A run directory that holds checkpoints is continued. The rule for settings that differ from the saved ones:
the command is right, and what it changes is told. Refused is what the weights do not fit: another model or
tokenizer. Silent is what does not change the result: layout, micro-batch, when to save, validate and stop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from mtl_common import checkpoint
from mtl_common.bins import Bins, Manifest, read_manifest
from mtl_common.config import Settings, changed, resolve
from mtl_common.errors import ConfigError
from mtl_common.layout import Layout
from mtl_common.shapes import parameters, preset
from mtl_train.config import TrainSettings, check, ignored, layout_of
from mtl_train.order import split

QUIET = (
    "preset",
    "layout",
    "checkpoint",
    "validation",
    "run",
    "batch.micro_batch",
    "data.bins",
    "optimizer.bucket",
)


class _Bins(Settings):
    model_config = ConfigDict(extra="ignore")
    bins: Path | None = None


class _Out(Settings):
    model_config = ConfigDict(extra="ignore")
    out: Path | None = None


class _First(Settings):
    """What must be known before the rest can be resolved."""

    model_config = ConfigDict(extra="ignore")
    preset: str = "tiny"
    data: _Bins = _Bins()
    run: _Out = _Out()


@dataclass(frozen=True)
class Plan:
    """A run that can start.

    Args:
        settings: resolved.
        layout: of the ranks.
        resume: the checkpoint to go on from, if there is one.
        step: of that checkpoint.
        header: lines that tell a person what will happen.
        warnings: lines about what was asked for and may not be meant.
    """

    settings: TrainSettings
    layout: Layout
    resume: Path | None
    step: int
    header: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How far a run came, and the signal that ended it early; a launcher reads it without torch."""

    step: int
    signal: int = 0


def settings_of(
    options: Mapping[str, Any], file: Path | None, sets: Sequence[str]
) -> tuple[TrainSettings, TrainSettings]:
    """The settings asked for, and those of the same data, preset and directory with nothing else asked.

    The vocabulary is that of the bins' tokenizer.
    """
    first = resolve(_First, file=file, options=options, sets=sets)
    if first.data.bins is None:
        raise ConfigError("there is nothing to train on; give a directory of token bins with --data")
    if first.run.out is None:
        raise ConfigError("there is nowhere to put the run; give a directory with --out")
    vocab = read_manifest(first.data.bins).tokenizer.vocab_size
    start = {"model": {**preset(first.preset).model_dump(), "vocab": vocab}}
    settings = resolve(TrainSettings, preset=start, file=file, options=options, sets=sets)
    if settings.model.vocab != vocab:
        raise ConfigError(
            f"model.vocab is {settings.model.vocab}, but the tokenizer of {first.data.bins} has {vocab} "
            "tokens; leave model.vocab out"
        )
    least = {"preset": first.preset, "data": {"bins": first.data.bins}, "run": {"out": first.run.out}}
    return settings, resolve(TrainSettings, preset=start, options=least)


def identity(manifest: Manifest) -> dict[str, str]:
    """What tells two sets of bins apart, for a checkpoint's configuration."""
    tokens = "".join(shard.xxh3_tokens + shard.xxh3_offsets for shard in manifest.shards)
    return {
        "tokenizer": manifest.tokenizer.fingerprint,
        "bins": blake2b(tokens.encode(), digest_size=16).hexdigest(),
    }


def saved_config(settings: TrainSettings, manifest: Manifest) -> dict[str, Any]:
    """What a checkpoint says about the run that wrote it; loading tools need only `model`."""
    train = settings.model_dump(mode="json", exclude={"model"})
    train["schedule"] |= {"steps": settings.rate.steps, "warmup_steps": settings.rate.warmup}
    return {"model": settings.model.model_dump(), "train": train, "data": identity(manifest)}


def _leaves(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested mappings as dotted key -> value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _leaves(value, f"{at}{name}.") if isinstance(value, Mapping) else {at + name: value}
    return found


def _quiet(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in QUIET)


def changes(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> list[str]:
    """A warning for each setting that is not as it was saved and changes the result.

    Raises ConfigError when the model or the tokenizer is another one.
    """
    for key, value in _leaves({"model": now["model"]}).items():
        was = _leaves({"model": saved["model"]}).get(key)
        if was != value:
            raise ConfigError(
                f"{path} was trained with {key} {was}, not {value}; take the same, or another --out"
            )
    data = saved.get("data", now["data"])
    if data["tokenizer"] != now["data"]["tokenizer"]:
        raise ConfigError(f"{path} was trained on bins of another tokenizer; take those, or another --out")
    found = []
    if data["bins"] != now["data"]["bins"]:
        found.append("the bins are not those that the run began with; samples come in a new order")
    before = _leaves(saved.get("train", now["train"]))
    for key, value in _leaves(now["train"]).items():
        if key in before and before[key] != value and not _quiet(key):
            found.append(f"{key} is now {value}, and was {before[key]} when {path.name} was saved")
    return found


def _resumable(out: Path) -> Path | None:
    """The newest complete checkpoint of a run directory; None when there has never been one.

    Raises CheckpointError when there are some and none is complete.
    """
    checkpoints = out / "checkpoints"
    if not checkpoints.is_dir() or not any(checkpoints.glob("iter_*")):
        return None
    return checkpoint.newest(checkpoints)


def _told(settings: TrainSettings, least: TrainSettings, layout: Layout, bins: Bins) -> list[str]:
    usual = changed(least)
    asked = [f"{key}={value}" for key, value in changed(settings).items() if usual.get(key) != value]
    train, valid = split(bins, settings.model.seq, settings.data.valid, settings.data.seed)
    samples = settings.run.steps * settings.batch.global_batch
    held = f"{valid.stop - valid.start:,} held back" if valid else "none held back"
    return [
        f"model     {settings.preset}, {parameters(settings.model):,} parameters, {settings.precision}",
        f"ranks     {layout.world} as {layout}",
        f"data      {train.stop - train.start:,} tokens to train on, {held}; "
        f"{settings.run.steps:,} steps read them {samples / train.windows:.2f} times",
        f"settings  {' '.join(asked) or 'all at their defaults'}",
    ]


def prepare(
    options: Mapping[str, Any], file: Path | None = None, sets: Sequence[str] = (), world: int | None = None
) -> Plan:
    """Resolves and checks everything that needs no rank.

    Args:
        options: nested settings from the command line.
        file: a TOML file of settings.
        sets: `section.key=value` texts.
        world: ranks that torchrun or srun started; None when they are still to be started.

    Raises:
        ConfigError: settings that are wrong, do not go together, or do not fit the run that is continued.
        DataError: bins that are missing, damaged or too small.
        CheckpointError: a run directory whose checkpoints are all broken.
    """
    settings, least = settings_of(options, file, sets)
    layout = layout_of(settings.layout, world)
    check(settings, layout)
    bins = Bins(settings.data.bins)
    header = _told(settings, least, layout, bins)
    warnings = ignored(settings, layout)
    resume, step = _resumable(settings.run.out), 0
    if resume:
        found = checkpoint.Checkpoint(resume)
        step = found.step
        warnings += changes(found.config, saved_config(settings, read_manifest(settings.data.bins)), resume)
        header.append(f"continues {resume}")
    return Plan(settings, layout, resume, step, tuple(header), tuple(warnings))
