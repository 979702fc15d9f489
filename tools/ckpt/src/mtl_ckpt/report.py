"""How results look: sizes, rates and plain aligned tables."""

from collections.abc import Sequence


def size(count: float) -> str:
    """Bytes with a unit.

    >>> size(999), size(1_500_000)
    ('999 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart; columns of numbers to the right.

    >>> print(table([("file", "size"), ("a.json", "12 B"), ("b", "3 B")]))
    file    size
    a.json  12 B
    b        3 B
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1].isdigit() for cell in column[1:]) and len(column) > 1 for column in columns]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
