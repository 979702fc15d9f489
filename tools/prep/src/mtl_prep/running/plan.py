"""What a run was asked to do, written down before it starts: only the same request may continue it."""

import fcntl
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mtl_common.bins import MANIFEST, Manifest, read_manifest
from mtl_common.errors import DataError, MtlError, UsageError
from mtl_prep.corpus.find import Corpus
from mtl_prep.journal import Journal
from mtl_prep.running.pieces import WORK
from mtl_prep.running.shares import Share

PLAN = "plan.json"
LOCK = "lock"


@dataclass(frozen=True)
class Plan:
    """A corpus, a tokenizer and every option that decides the bytes of the bins."""

    corpus: Corpus
    fingerprint: str
    options: Mapping[str, Any]
    part_bytes: int

    def written(self) -> dict[str, Any]:
        """The plan as the journal keeps it."""
        return {
            "made_by": {"version": version("mtl-prep"), "part_bytes": self.part_bytes},
            "tokenizer": self.fingerprint,
            "options": dict(self.options),
            "sources": {s.name: [s.size, s.version, s.kind, s.packing] for s in self.corpus.sources},
        }


def _other_options(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in (name for name in {**now, **before} if before.get(name) != now.get(name)):
        # a.b is a setting in a recipe
        option = name if "." in name else f"--{name.replace('_', '-')}"
        made = json.dumps(before.get(name))
        how = f"with {option} {made}, not {json.dumps(now.get(name))}"
        if name not in before:
            how = f"without {option}"
        elif name not in now:
            how = f"with {option} {made}"
        raise UsageError(f"{out} was made {how}; give the same option, or another --out")


def _other_sources(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    states = {
        "is new": next((name for name in now if name not in before), None),
        "is gone": next((name for name in before if name not in now), None),
        "has changed": next((name for name in now if before.get(name) != now[name]), None),
        "stands in another place": next((a for a, b in zip(before, now, strict=False) if a != b), None),
    }
    for state, name in states.items():
        if name is not None:
            raise UsageError(f"{name} {state} since {out} was begun; remove {out}, or choose another --out")


def compare(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError about the first thing that is not asked for as it was before."""
    _other_options(out, before["options"], now["options"])
    if before["tokenizer"] != now["tokenizer"]:
        raise UsageError(f"{out} was made with another --tokenizer; give the same one, or another --out")
    _other_sources(out, before["sources"], now["sources"])


def finished(out: Path, plan: Plan) -> Manifest | None:
    """The manifest if these very bins are there already; raises UsageError when others are."""
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    before = {
        "options": manifest.options,
        "tokenizer": manifest.tokenizer.fingerprint,
        "sources": {source.path: source.size for source in manifest.sources},
    }
    sources = {source.name: source.size for source in plan.corpus.sources}
    compare(out, before, plan.written() | {"sources": sources})
    return manifest


def _read(out: Path) -> dict[str, Any] | None:
    path = out / WORK / PLAN
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except ValueError:
        raise DataError(f"{path} is damaged; remove {out} and run again") from None


def asked_before(out: Path) -> dict[str, Any]:
    """The plan of an unfinished run; raises UsageError when none was begun in `out`."""
    found = _read(out)
    if found is None:
        raise UsageError(f"no unfinished run in {out}; begin one with mtl-prep tokenize")
    return found


def decided(out: Path, plan: Plan) -> dict[str, Any] | None:
    """What was written of the same plan before, None if nothing was; raises UsageError for another plan."""
    before = _read(out)
    if before is None:
        return None
    if before["made_by"] != plan.written()["made_by"]:
        raise UsageError(f"{out} was begun by another version of mtl-prep; remove it and start again")
    compare(out, before, plan.written())
    return before


def decide(out: Path, plan: Plan, more: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the plan and `more`, unless another process was faster; gives what holds from now on."""
    path = out / WORK / PLAN
    staged = path.with_name(f".{PLAN}.{uuid.uuid4().hex}.tmp")
    with staged.open("w") as file:
        file.write(json.dumps(plan.written() | dict(more)))
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(staged, path)
    staged.unlink()
    return decided(out, plan) or {}


@contextmanager
def _held(path: Path, how: int, message: str) -> Iterator[None]:
    """Holds a lock; raises UsageError with the message when another process does."""
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(message) from None
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            print(
                f"warning: {path} cannot be locked ({reason}); let nothing else write there", file=sys.stderr
            )
        if not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            raise UsageError(message)  # its holder took it away
        yield


def _undo(out: Path, was_there: bool) -> None:
    """Removes what a run without a plan has written to `out`, unless another one is at work."""
    work = out / WORK
    if not work.is_dir() or (work / PLAN).exists():
        return
    with suppress(UsageError), _held(work / LOCK, fcntl.LOCK_EX, ""):
        shutil.rmtree(work)
        if any(out.iterdir()):
            work.mkdir()  # by which the rest is known as our own
        elif not was_there:
            out.rmdir()


@contextmanager
def undone_if_refused(out: Path) -> Iterator[None]:
    """Leaves nothing behind of a run that is refused before it has a plan, its standard input included."""
    was_there = out.exists()
    try:
        yield
    except MtlError:
        _undo(out, was_there)
        raise


def check_place(out: Path) -> None:
    """Raises UsageError when `out` holds files that are not ours."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / WORK).is_dir())):
        raise UsageError(f"{out} holds something else; choose an empty or new directory for --out")


@contextmanager
def begun(out: Path, share: Share) -> Iterator[Journal]:
    """The journal of a run, made new or found as an earlier run left it.

    A whole run (share 1 of 1) holds `out` alone; tasks of an array job hold it together, each its own share.
    Raises UsageError when another process holds it, or when `out` holds files that are not ours.
    """
    check_place(out)
    work = out / WORK
    work.mkdir(parents=True, exist_ok=True)
    whole = share == Share()
    busy = f"another mtl-prep is writing {out}; wait for it, or choose another --out"
    same = f"task {share} is running already; wait for it"
    with ExitStack() as locks:
        locks.enter_context(_held(work / LOCK, fcntl.LOCK_EX if whole else fcntl.LOCK_SH, busy))
        if not whole:
            own = work / f"lock-{share.number}-{share.of}"
            locks.enter_context(_held(own, fcntl.LOCK_EX, same))
        yield Journal(work)
