"""Tables of text, as reports print them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dasktile.report.formatting import WIDTH


def text_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    total: int | None = None,
    left: int | Sequence[int] = 1,
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
        Columns that are aligned to the left: numbers of them, or how many from the first one.
    """
    if not rows:
        return ""
    at_left = range(left) if isinstance(left, int) else left
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column in at_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (titles, *rows)
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    if total is not None and total > len(rows):
        lines.append(f"and {total - len(rows):,} more")
    return "\n".join(lines)


class Narrowed(NamedTuple):
    """A column whose cells are cut, to fewer characters if the table is too wide otherwise.

    Parameters
    ----------
    most, least
        Characters of a cell at the most: in a table that fits, and in one that does not.
    cut
        Cuts a text to a number of characters.
    """

    most: int
    least: int
    cut: Callable[[str, int], str]


def two_line_table(
    titles: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[tuple[str, str]]],
    narrowed: Mapping[int, Narrowed],
) -> str:
    """A table with two lines for each row, so that it fits :data:`WIDTH`; empty without rows.

    Parameters
    ----------
    titles
        For every column, its two titles, one below the other.
    rows
        For every column, the two cells of the row.
    narrowed
        Columns whose cells are cut, by number; an earlier one is narrowed before a later one.
    """
    if not rows:
        return ""
    room = {column: each.most for column, each in narrowed.items()}
    columns = _two_line_columns(titles, rows, narrowed, room)
    excess = _table_width(columns) - WIDTH
    for column, each in narrowed.items():
        width = _width(columns[column])
        room[column] = max(each.least, min(each.most, width - excess))
        excess -= max(0, width - room[column])
    columns = _two_line_columns(titles, rows, narrowed, room)
    if _table_width(columns) > WIDTH:
        columns = [[cell.replace(", ", ",") for cell in column] for column in columns]
    widths = list(map(_width, columns))
    lines = [
        "  ".join(
            cell.rjust(width) if column in (0, len(columns) - 1) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in zip(*columns, strict=True)
    ]
    lines.insert(2, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _two_line_columns(
    titles: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[tuple[str, str]]],
    narrowed: Mapping[int, Narrowed],
    room: Mapping[int, int],
) -> list[list[str]]:
    """The cells of every column from top to bottom, titles first."""
    columns = [list(pair) for pair in titles]
    for row in rows:
        for number, (column, pair) in enumerate(zip(columns, row, strict=True)):
            if number in narrowed:
                column += [narrowed[number].cut(cell, room[number]) for cell in pair]
            else:
                column += pair
    return columns


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _table_width(columns: Sequence[Sequence[str]]) -> int:
    """Characters of a line, with two blanks between columns."""
    return sum(map(_width, columns)) + 2 * (len(columns) - 1)
