"""Files that are read from their start by one process, for all that work on them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mtl_prep.corpus.source import text_size
from mtl_prep.corpus.units import Reading, Stripe, blocks_of
from mtl_prep.journal import Journal


class Handing:
    """The blocks of such files as parts of the work on them; see `pool.Parts`."""

    def __init__(self, reading: Reading, directory: Path) -> None:
        """`directory` is that of the journal."""
        self._reading, self._directory = reading, directory
        self._journal: Journal | None = None  # opened where files are read

    def _blocks(self, task: Any) -> int:
        """About how many blocks a task may fall into."""
        if not isinstance(task, Stripe):
            return 1
        size = text_size([self._reading.sources[task.source]])
        return max(1, -(-size // (self._reading.part_bytes * task.stripes)))

    def most(self, tasks: Sequence[Any]) -> int:
        """One process for each task, and for each block of such a file."""
        return sum(map(self._blocks, tasks))

    def of(self, task: Any) -> Iterator[tuple[Any, bool]]:
        """The blocks of such a file, and any other task as it is."""
        if not isinstance(task, Stripe):
            yield task, False
            return
        self._journal = self._journal or Journal(self._directory)
        for found in blocks_of(task, self._reading, self._journal):
            yield found, not found.block.stays
