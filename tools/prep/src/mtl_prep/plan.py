"""What a run was asked to do, written down before it starts: only the same request may continue it."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mtl_common.bins import MANIFEST, Manifest, read_manifest
from mtl_common.errors import UsageError
from mtl_prep.corpus import Corpus
from mtl_prep.journal import Journal
from mtl_prep.work import WORK

PLAN = "plan"


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
            "sources": {s.name: [s.size, s.modified_ns, s.kind, s.packing] for s in self.corpus.sources},
        }


def _other_options(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{out} was made with {option} {json.dumps(before.get(name))}, not {json.dumps(value)}; "
                "give the same option, or another --out"
            )


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


def _compare(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
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
    _compare(out, before, plan.written() | {"sources": sources})
    return manifest


@contextmanager
def begun(out: Path, plan: Plan) -> Iterator[Journal]:
    """The journal of a run that this process alone carries on, made new or found as an earlier run left it.

    Raises UsageError when another process holds it, when it was begun for something else, or when `out` holds
    files that are not ours.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / WORK).is_dir())):
        raise UsageError(f"{out} holds something else; choose an empty or new directory for --out")
    (out / WORK).mkdir(parents=True, exist_ok=True)
    journal = Journal(out / WORK)
    with (out / WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another mtl-prep is writing {out}; wait for it, or choose another --out"
            ) from None
        if journal.has(PLAN):
            before = journal.read(PLAN)
            if before["made_by"] != plan.written()["made_by"]:
                raise UsageError(f"{out} was begun by another version of mtl-prep; remove it and start again")
            _compare(out, before, plan.written())
        yield journal
