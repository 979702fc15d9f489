"""The table that `bench` shows."""

from mtl_common.log import quantity
from mtl_common.tables import table
from mtl_prep.encoding.bench import LOOP, Result, Side


def _ids(side: Side) -> str:
    if side.differing is None:
        return ""
    if side.differing:
        return f"{side.differing:,} of {side.compared:,} documents differ"
    return f"equal in {side.compared:,} documents"


def _name(side: Side, result: Result) -> str:
    if side.name == LOOP:
        return f"{result.library} in a loop over JSON lines"
    if side.name == "reference":
        return f"{result.library}, the reference"
    return side.name


def page(result: Result) -> str:
    """Every side with its rate and how it compares with the loop; below, those that could not be tried."""
    beside = result.sides[-1].rate
    tried = sorted((side for side in result.sides if not side.absent), key=lambda side: -side.rate)
    rows = [
        (
            _name(side, result),
            f"{side.rate:.1f}",
            f"{side.rate / beside:.1f}",
            "" if side.name == LOOP else f"{side.start:.2f}",
            _ids(side),
        )
        for side in tried
    ]
    head = ("encoder", "MB/s a core", "times the loop", "start, s", "ids beside the reference")
    absent = [f"not tried  {side.name}: {side.absent}" for side in result.sides if side.absent]
    text = f"{result.documents:,} documents, {quantity(result.size, 'bytes')} of text"
    return "\n".join([text, table([head, *rows]), *absent, f"auto takes {result.chosen}"])
