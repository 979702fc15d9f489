"""The stage of a run that puts all documents in the order of a seed, between the units and the shards."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtl_common.log import progress
from mtl_prep.journal import Journal
from mtl_prep.running.packing import pack_tasks
from mtl_prep.running.pieces import Pieces
from mtl_prep.running.runners import Runner
from mtl_prep.running.shuffle import PIECE_TOKENS, Range, Run, piece_tokens
from mtl_prep.running.stages import do_all, forget_lost
from mtl_prep.running.tally import Unit
from mtl_prep.running.work import Job


@dataclass(frozen=True)
class Order:
    """The order of a seed; `piece_tokens` are sorted at a time, which changes nothing but the memory."""

    seed: int
    piece_tokens: int = PIECE_TOKENS


def shuffled(job: Job, journal: Journal, units: Sequence[Unit], order: Order, runner: Runner) -> list[Unit]:
    """Puts the documents of all units in another order; gives the pieces that hold it."""
    pieces = Pieces(job.out, job.dtype, journal)
    forget_lost(journal, "run-", pieces.is_there)
    forget_lost(journal, "range-", pieces.is_there)
    total = sum(unit.tokens for unit in units)
    size = piece_tokens(total, order.piece_tokens)
    packs, ranges = pack_tasks(units, size, lambda unit: pieces.view(unit.name).offsets), -(-total // size)
    runs = [Run(pack.number, pack.spans, order.seed, ranges) for pack in packs]
    merges = [Range(number, len(runs), order.seed) for number in range(ranges)]
    with progress("shuffle", 2 * total, "tokens") as shown:
        do_all(job, journal, [(task.name, task) for task in runs], runner, shown)
        found = do_all(job, journal, [(task.name, task) for task in merges], runner, shown)
    return [
        Unit(task.name, shard.documents, shard.tokens, 0) for task, shard in zip(merges, found, strict=True)
    ]
