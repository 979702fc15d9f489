"""What `curate` says when it is done: a table of steps that adds up."""

from collections.abc import Iterator

from mtl_common.log import duration, quantity
from mtl_prep.corpus.counts import counted, told
from mtl_prep.curate.manifest import Manifest, StepSums
from mtl_prep.curate.request import Outcome, Part, Request
from mtl_prep.curate.run import REMOVED
from mtl_prep.summary import lines

NUMBERS = 12  # columns of a number


def _row(name: str, width: int, *numbers: str) -> str:
    return f"{name:<{width}}" + "".join(f"{number:>{NUMBERS}}" for number in numbers)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _steps(manifest: Manifest) -> Iterator[str]:
    """A line a step: documents that enter, that it removes, and the characters of these."""
    whole = manifest.read
    width = max(map(len, ["step", *(step.name for step in manifest.steps)])) + 2
    yield _row("step", width, "documents", "removed", "", "characters", "") + "  why"
    yield _row("read", width, f"{whole.documents:,}", "", "", f"{whole.characters:,}")
    for step in manifest.steps:
        removed = [f"-{step.documents:,}", _share(step.documents, step.entered)]
        size = [f"-{step.characters:,}", _share(step.characters, whole.characters)]
        yield _row(step.name, width, f"{step.entered:,}", *removed, *size) + f"  {_why(step)}".rstrip()
    edited = whole.characters - manifest.kept.characters - sum(step.characters for step in manifest.steps)
    if edited:
        yield _row("edits", width, "", "", "", f"{-edited:+,}", _share(edited, whole.characters))
    kept = manifest.kept
    shares = _share(kept.documents, whole.documents), _share(kept.characters, whole.characters)
    yield _row("kept", width, f"{kept.documents:,}", "", shares[0], f"{kept.characters:,}", shares[1])


def _why(step: StepSums) -> str:
    reasons = told({reason: one.documents for reason, one in step.removed.items()})
    edits = f"edited: {told(step.edits)}" if step.edits else ""
    return "; ".join(filter(None, [reasons, edits]))


def curated(outcome: Outcome, request: Request, seconds: float) -> str:
    """The summary of `curate`."""
    manifest, corpus = outcome.manifest, outcome.corpus
    size = sum(shard.size for shard in manifest.shards)
    bad = counted(source.bad for source in manifest.sources)
    records = manifest.read.documents + bad.total()
    read = f"{len(corpus.sources):,} files, {quantity(corpus.size, 'bytes')} in {duration(seconds)}"
    first = f"read     {read}"
    if outcome.already:
        first = (
            f"{request.out}  finished before from files of these names and sizes; remove it to make it anew"
        )
    reasons = f" ({told(bad)})" if bad else ""
    large = f"large    {manifest.large:,} of the kept: only exact_duplicates and pii looked at them"
    passed = f"passed   over {told(corpus.skipped)}"
    return "\n".join(
        [
            first,
            *([passed] if corpus.skipped else []),
            f"records  {records:,} = {manifest.read.documents:,} documents + {bad.total():,} bad{reasons}",
            *_steps(manifest),
            *([large] if manifest.large else []),
            f"shards   {len(manifest.shards):,}, {quantity(size, 'bytes')}",
            f"samples  of what each step removed: {request.out / REMOVED}",
        ]
    )


def part(done: Part, seconds: float) -> str:
    """The summary of one task of an array job."""
    share = f"{done.share.number} of {done.share.of}, {quantity(done.size, 'bytes')} of the corpus"
    work = f"done in {duration(seconds)}" if done.tasks else "all of it was done before"
    return lines([("task", share), ("now", work)])
