"""A run on one rank: steps, validation, saves, and how it ends.

Rules. A step whose loss or gradient is not finite changes no weight and no moment, is marked in the log, and
counts: data order and learning rate go on. `run.bad_steps` of them in a row end the run with an error. A save
that fails is told and training goes on, unless it is the last one. SIGTERM or Ctrl-C, sent to any rank, makes
all of them finish the step, save and leave.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from mtl_common import checkpoint
from mtl_common.bins import Bins
from mtl_common.config import to_toml
from mtl_common.errors import CheckpointError, MtlError
from mtl_common.layout import Layout
from mtl_parallel import collectives, state
from mtl_parallel.launch import finish, start
from mtl_parallel.mesh import Mesh
from mtl_train.build import build
from mtl_train.config import TrainSettings
from mtl_train.data import Loader
from mtl_train.journal import Journal, Silence
from mtl_train.metrics import Meter, Step, Stopwatch
from mtl_train.order import Order, split
from mtl_train.plan import Outcome, saved_config
from mtl_train.step import Trainer
from mtl_train.stop import StopRequest, stop_requests


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class Run:
    """One rank's part of a run, from where it was to its end.

    Args:
        settings: of the run.
        mesh: of this rank.
        resume: the checkpoint to go on from; None starts afresh.
        journal: of the run, or silence.
    """

    def __init__(self, settings: TrainSettings, mesh: Mesh, resume: Path | None, journal: Journal) -> None:
        self.settings = settings
        self.mesh = mesh
        self.journal = journal
        self.bins = Bins(settings.data.bins)
        self.model, self.optimizer = build(settings, mesh)
        self.trainer = Trainer(self.model, self.optimizer, mesh, settings.layout.schedule)
        self.step, self.samples = self._resume(resume)
        train, self.valid = split(self.bins, settings.model.seq, settings.data.valid, settings.data.seed)
        self.loader = self._loader(train)
        self.meter = Meter(settings.model, settings.run.steps, mesh.world.size, mesh.device)
        self.bad = 0

    def _resume(self, path: Path | None) -> tuple[int, int]:
        seen = torch.tensor(checkpoint.Checkpoint(path).step if path else 0, device=self.mesh.device)
        furthest = collectives.all_reduce(seen.clone(), self.mesh.world, "max")
        if collectives.all_reduce((furthest != seen).long(), self.mesh.world, "max"):
            raise CheckpointError(
                f"ranks see different checkpoints in {self.settings.run.out}; it must be one shared directory"
            )
        if path is None:
            return 0, 0
        step, saved = state.load(path, self.model, self.optimizer, self.mesh)
        return step, int(saved["samples"])

    def _loader(self, order: Order) -> Loader:
        data, batch = self.settings.data, self.settings.batch
        eod = self.bins.eod if data.mask_eod else None
        return Loader(
            self.bins, order, batch.global_batch, batch.micro_batch, self.mesh.dp, self.mesh.device, eod
        )

    def go(self, stop: StopRequest) -> Outcome:
        """Trains until the last step, or until a stop is requested."""
        settings = self.settings
        asked = 0
        while self.step < settings.run.steps and not asked:
            self._train()
            last = self.step == settings.run.steps
            if self.valid and (last or _due(self.step, settings.validation.every)):
                self._validate(self.valid)
            asked = 0 if last else stop.agreed(self.mesh)
            if last or asked or _due(self.step, settings.checkpoint.every):
                self._save(may_fail=not (last or asked))
        if asked:
            told = f"stopped as asked after step {self.step} of {settings.run.steps}"
            self.journal.say(f"{told}; the same command goes on")
        return Outcome(self.step, asked)

    def _train(self) -> None:
        watch = Stopwatch(self.mesh.device)
        lr = self.settings.rate.at(self.step + 1)
        loss, norm, skipped = self.trainer.step(self.loader.step(self.samples), lr)
        batch = self.settings.batch.global_batch
        self.step += 1
        self.samples += batch
        tokens = batch * self.settings.model.seq
        record = self.meter.record(
            Step(self.step, self.samples, loss, lr, norm, skipped, watch.lap(), tokens)
        )
        self.journal.say(self.meter.line(record))
        self.journal.record(record)
        self._watch_for_bad(skipped)

    def _watch_for_bad(self, skipped: bool) -> None:
        self.bad = self.bad + 1 if skipped else 0
        if self.bad == self.settings.run.bad_steps:
            raise MtlError(
                f"loss or gradient was not finite for {self.bad} steps in a row, up to step {self.step}; "
                "lower --lr or lengthen schedule.warmup_steps, then run the command again"
            )

    def _validate(self, order: Order) -> None:
        batch = self.settings.batch.global_batch
        batches = min(self.settings.validation.batches, math.ceil(order.windows / batch))
        loader = self._loader(order)
        losses = [self.trainer.evaluate(loader.step(i * batch)) for i in range(batches)]
        loss = sum(losses) / len(losses)
        self.journal.say(f"validation at step {self.step}: loss {loss:.4f} over {batches * batch} samples")
        self.journal.record({"step": self.step, "valid_loss": loss})

    def _save(self, may_fail: bool) -> None:
        """Saves; where that may fail the run goes on without, and tries again at the next occasion."""
        out = self.settings.run.out / "checkpoints"
        try:
            path = state.save(
                out,
                self.step,
                self.model,
                self.optimizer,
                self.mesh,
                config=saved_config(self.settings, self.bins.manifest),
                state={"samples": self.samples},
                tokenizer=self.bins.tokenizer,
            )
        except CheckpointError as error:
            if not may_fail:
                raise
            self.journal.say(f"warning: {error}; training goes on")
            return
        if self.mesh.world.first:
            checkpoint.retain(out, self.settings.checkpoint.keep_last)
        self.journal.say(f"saved {path}")


def _journal(settings: TrainSettings, resume: Path | None, header: Sequence[str]) -> Journal:
    """Opens the run directory for writing, and states in it what the run is."""
    out = settings.run.out
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out, checkpoint.Checkpoint(resume).step if resume else 0)
    journal.note(header)
    (out / "config.toml").write_text(to_toml(settings), "utf-8")
    return journal


def run(settings: TrainSettings, layout: Layout, resume: Path | None, header: Sequence[str] = ()) -> Outcome:
    """What every rank of a run does; the same outcome on each.

    Args:
        settings: of the run.
        layout: of the ranks.
        resume: the checkpoint to go on from; None starts afresh.
        header: lines about the run for its log.
    """
    torch.set_num_threads(settings.run.threads)
    with stop_requests() as stop:
        mesh = start(layout, settings.run.device)
        with _journal(settings, resume, header) if mesh.world.first else Silence() as journal:
            outcome = Run(settings, mesh, resume, journal).go(stop)
    finish()
    return outcome
