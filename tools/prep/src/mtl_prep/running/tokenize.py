"""From a corpus to token bins: encode units in any order, pack them in the order of the corpus, finish.

Every finished unit is journaled, so a run that was killed continues; the manifest, written last and by one
rename, makes the directory bins. The units of a corpus may be done by one process or many, on one machine
or as the tasks of an array job: the bytes of the bins are the same.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mtl_common import bins
from mtl_common.tokenizers import AUTO, Tokenizer, check_engine, load
from mtl_prep.corpus.find import Corpus
from mtl_prep.corpus.kinds import Split
from mtl_prep.corpus.units import Errors, Reading, is_done
from mtl_prep.encoding.composers import Composition, parse_composition
from mtl_prep.encoding.engine import InexactError, distrust, fitting, forget_distrusted, to_load, trusted
from mtl_prep.encoding.shapes import keys_asked
from mtl_prep.journal import Journal
from mtl_prep.running.beginning import end_of_document, sample
from mtl_prep.running.finishing import finish
from mtl_prep.running.handing import Handing
from mtl_prep.running.left import left_of, shown
from mtl_prep.running.pieces import WORK, Pieces
from mtl_prep.running.plan import Plan, begun, decide, decided, finished, undone_if_refused
from mtl_prep.running.runners import Runner, runner
from mtl_prep.running.shares import Share
from mtl_prep.running.shuffle import PIECE_TOKENS
from mtl_prep.running.shuffling import Order
from mtl_prep.running.stages import catch_up, forget_lost
from mtl_prep.running.stdin import found
from mtl_prep.running.tally import parse_max_bad
from mtl_prep.running.trouble import disk_told
from mtl_prep.running.work import Job

OF_A_MACHINE = frozenset({"tokenizer", "out", "workers", "runs_on", "ray_address"})  # not kept
PART_BYTES = 1 << 24  # a unit: some tenths of a second of work, so that a kill loses little


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    corpus: Sequence[str | Path]
    tokenizer: Path
    out: Path
    workers: int
    text_key: str = "text"
    eod: str | None = None
    max_bad: str = "5%"
    shard_tokens: int = 1 << 27
    shuffle_documents: int | None = None
    encoder: str = AUTO
    part_bytes: int = PART_BYTES
    piece_tokens: int = PIECE_TOKENS
    runs_on: str = "local"
    ray_address: str | None = None
    split: Split = "file"
    errors: Errors = "bad"
    shape: str = "text"
    keys: str | None = None
    separator: str = r"\n"
    sentences: str | None = None

    @property
    def composition(self) -> Composition:
        """What documents are composed of; raises UsageError for what cannot be."""
        keys = keys_asked(self.shape, self.keys, self.text_key)
        return parse_composition(self.shape, keys, self.separator, self.sentences)

    @property
    def order(self) -> Order | None:
        """The order of documents, if not that of the corpus."""
        seed = self.shuffle_documents
        return None if seed is None else Order(seed, self.piece_tokens)

    @property
    def unusual(self) -> dict[str, str]:
        """The options of reading that are not as usual."""
        usual = {"split": "file", "errors": "bad"}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}

    def written(self) -> dict[str, Any]:
        """What `finish` needs to know of it later, as JSON."""
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {name: value for name, value in asked.items() if name not in OF_A_MACHINE}
        return kept | {"corpus": list(map(str, self.corpus)), "directory": os.getcwd()}


@dataclass(frozen=True)
class Outcome:
    """What was made, or `already` there before.

    `characters` are those of all documents, `watched` counts what `Watch` saw of them.
    """

    manifest: bins.Manifest
    corpus: Corpus
    tokenizer: Tokenizer
    already: bool = False
    characters: int = 0
    watched: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """What one task of an array job did: tasks of reading, bytes of the corpus and documents."""

    share: Share
    tasks: int
    size: int
    documents: int


def _keep(tokenizer: Tokenizer, out: Path) -> None:
    """Puts the tokenizer's files beside the bins, by one rename: several tasks may do so at once."""
    place, staged = out / bins.TOKENIZER, out / f".{bins.TOKENIZER}.{uuid.uuid4().hex}.tmp"
    tokenizer.save(staged)
    if place.exists() and load(place).fingerprint != tokenizer.fingerprint:
        shutil.rmtree(place)  # of a run that was killed before it had a plan
    try:
        staged.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(staged)


def _reading(request: Request, plan: Plan) -> Reading:
    shape = request.composition.shape
    return Reading(plan.corpus.sources, request.text_key, request.part_bytes, request.errors, shape=shape)


def _start(plan: Plan, request: Request, tokenizer: Tokenizer, journal: Journal) -> Tokenizer:
    """Begins a run, or finds what an earlier one decided: the tokenizer with the engine to encode."""
    before, found = decided(request.out, plan), tokenizer
    if before is None:
        found = trusted(journal, request.tokenizer, tokenizer, sample(_reading(request, plan)))
        _keep(tokenizer, request.out)
        before = decide(request.out, plan, {"engine": found.choices[0], "request": request.written()})
    engine = before["engine"] if request.encoder == AUTO else request.encoder
    if found.choices[0] != engine:
        found = load(request.tokenizer, engine=engine, one_thread=True)
    return trusted(journal, request.tokenizer, found, [])


def _job(request: Request, plan: Plan, tokenizer: Tokenizer, eod: int) -> Job:
    dtype = bins.dtype_for(tokenizer.vocab_size)
    about = tuple(bins.about(plan.fingerprint, dtype, eod).items())
    reading = _reading(request, plan)
    engine = to_load(tokenizer, request.encoder, plan.corpus.sources)
    return Job(request.out, reading, eod, dtype, engine, about, request.composition, tokenizer)


def _documents(journal: Journal) -> int:
    """The documents of all finished units."""
    return sum(journal.read(name)["documents"] for name in journal.names("unit-"))


def check_tokenizer(request: Request) -> None:
    """Raises what `tokenize` would, about the tokenizer and the shape: before long work that comes first."""
    check_engine(request.encoder)
    tokenizer = load(request.tokenizer, one_thread=True)
    end_of_document(tokenizer, request.eod)
    request.composition.check((), tokenizer)


class Tokenizing:
    """One corpus on its way to bins."""

    def __init__(self, request: Request, runner: Runner) -> None:
        parse_max_bad(request.max_bad)
        check_engine(request.encoder)
        self.request, self.runner = request, runner
        corpus = found(request.corpus, request.split, request.out)
        engine = fitting(request.encoder, corpus.sources)
        self.tokenizer = load(request.tokenizer, engine=engine, one_thread=True)
        eod = end_of_document(self.tokenizer, request.eod)
        options = {"text_key": request.text_key, "eod": eod, "shard_tokens": request.shard_tokens}
        options |= request.unusual
        if request.shuffle_documents is not None:
            options["shuffle_documents"] = request.shuffle_documents
        options |= request.composition.options()
        request.composition.check(corpus.sources, self.tokenizer)
        self.plan = Plan(corpus, self.tokenizer.fingerprint, options, request.part_bytes)
        self._eod = eod

    def begin(self, journal: Journal) -> Job:
        """What every piece of work needs to know, as the first process decided it."""
        self.tokenizer = _start(self.plan, self.request, self.tokenizer, journal)
        forget_distrusted(journal)
        return _job(self.request, self.plan, self.tokenizer, self._eod)

    def already(self) -> Outcome | None:
        """What an earlier run finished, if it was this one."""
        manifest = finished(self.request.out, self.plan)
        if manifest is None:
            return None
        shutil.rmtree(self.request.out / WORK, ignore_errors=True)
        return Outcome(manifest, self.plan.corpus, self.tokenizer, already=True)

    def make_units(self, journal: Journal, share: Share) -> tuple[Part, Job]:
        """Does what is left of a share of the units; all of it anew when an engine turns out to be wrong."""
        while True:
            job = self.begin(journal)
            try:
                return self._make_units(job, journal, share), job
            except InexactError as error:
                distrust(journal, error.engine, self.plan.corpus.sources[error.source].name)

    def _make_units(self, job: Job, journal: Journal, share: Share) -> Part:
        forget_lost(journal, "unit-", Pieces(job.out, job.dtype, journal).is_there)
        documents = _documents(journal) if share == Share() else 0
        left = left_of(journal, job.reading, self.runner.readers, share)
        with shown("tokenize", left) as advance:
            for step in self.runner.run(job, left.tasks, Handing(job.reading, journal.directory)):
                documents += step.documents
                advance(step.amount, f"{documents:,} documents")
        catch_up(journal, left.tasks, lambda task: is_done(task, journal))
        return Part(share, len(left.tasks), left.size, documents)

    def finish(self, job: Job, journal: Journal) -> Outcome:
        """Makes the bins of the finished units."""
        max_bad, order = self.request.max_bad, self.request.order
        manifest, sums = finish(job, self.plan, self.tokenizer, journal, max_bad, order, self.runner)
        return Outcome(
            manifest, self.plan.corpus, self.tokenizer, characters=sums.characters, watched=sums.watched
        )


@contextmanager
def tokenizing(request: Request) -> Iterator[Tokenizing]:
    """A request on its way to bins, with what does its work; raises DataError for trouble with the disk."""
    with (
        disk_told(request.out),
        runner(request.runs_on, request.workers, request.ray_address, request.out) as found,
        undone_if_refused(request.out),
    ):
        yield Tokenizing(request, found)


def tokenize(request: Request) -> Outcome:
    """Makes token bins of a corpus in `request.out`, or goes on with them: the same bytes after any stop.

    Raises UsageError for a request that does not fit what is there, DataError for a corpus or tokenizer that
    cannot be used, RankError when a worker process was killed.
    """
    with tokenizing(request) as work:
        already = work.already()
        if already:
            return already
        with begun(request.out, Share()) as journal:
            _, job = work.make_units(journal, Share())
            return work.finish(job, journal)
