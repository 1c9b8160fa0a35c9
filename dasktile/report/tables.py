"""Tables of text, as reports print them."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None, left: int = 1
) -> str:
    """A table: titles, a line, and rows; empty without rows.

    Parameters
    ----------
    titles
        Titles of the columns.
    rows
        Their cells.
    total
        Number of all rows, of which the given ones are the first; all by default.
    left
        Number of columns, from the first one, that are aligned to the left.
    """
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (titles, *rows)
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    if total is not None and total > len(rows):
        lines.append(f"and {total - len(rows):,} more")
    return "\n".join(lines)
