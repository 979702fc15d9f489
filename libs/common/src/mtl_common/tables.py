"""Plain aligned tables: the same on a terminal and in a file."""

from collections.abc import Sequence


def _is_number(cell: str) -> bool:
    return not cell or cell[:1].isdigit() or cell[:2].lstrip("-+").isdigit()


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
