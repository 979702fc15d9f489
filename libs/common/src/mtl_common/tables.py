"""Plain aligned tables: the same on a terminal and in a file."""

import re
from collections.abc import Sequence

NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?[%x]?( .*)?")  # 12, -0.5%, 1.2 MB, 4 to 7; not 4.txt


def _is_number(cell: str) -> bool:
    return not cell or NUMBER.fullmatch(cell) is not None


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, the first row their names; columns of numbers to the right.

    >>> print(table([("file", "size"), ("a.json", "12 B"), ("b", "3 B")]))
    file    size
    a.json  12 B
    b        3 B
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(map(_is_number, column[1:])) and len(column) > 1 for column in columns]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
