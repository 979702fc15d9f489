"""How the documents of all units are cut into shards."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from mtl_prep.running.pieces import Span
from mtl_prep.running.tally import Unit
from mtl_prep.running.work import Pack


def pack_tasks(
    units: Iterable[Unit], limit: int, offsets_of: Callable[[Unit], NDArray[np.int64]]
) -> list[Pack]:
    """Cuts the documents of all units into shards of at most `limit` tokens; a longer one stands alone.

    `offsets_of` gives a unit's (documents + 1,) offsets; it is asked only about units that are cut.
    """
    shards: list[list[Span]] = [[]]
    room = limit
    for unit in units:
        whole = unit.tokens <= room
        offsets = np.array([0, unit.tokens]) if whole else offsets_of(unit)
        first, count = 0, unit.documents
        while first < count:
            fitting = count if whole else int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            last = max(fitting, first if shards[-1] else first + 1)
            if last > first:
                shards[-1].append(Span(unit.name, first, last, unit.line))
                room -= unit.tokens if whole else int(offsets[last] - offsets[first])
            if last < count:
                shards.append([])
                room = limit
            first = last
    return [Pack(number, tuple(spans)) for number, spans in enumerate(filter(None, shards))]
