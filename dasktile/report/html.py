"""Pieces of the HTML of reports: tables, folded parts and drawings of chunks.

They look right on light and dark pages: colours are the page's own, or transparent.  Nothing is
loaded, no script runs, and all rules of style are for elements inside of a report.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from dasktile.ir import Chunks, bounds

_STYLE = """
.dasktile { line-height: 1.45; }
.dasktile .line { margin: 0.2em 0; }
.dasktile .box { overflow-x: auto; }
.dasktile table { border-collapse: collapse; margin: 0.5em 0; border: 0; font-size: 0.92em;
  width: auto; display: table; }
.dasktile th, .dasktile td { padding: 0.25em 0.8em; border: 0; background: transparent;
  border-bottom: 1px solid rgba(128, 128, 128, 0.35); color: inherit; text-align: right;
  vertical-align: middle; white-space: nowrap; font-variant-numeric: tabular-nums; }
.dasktile th { font-weight: 600; }
.dasktile .left { text-align: left; }
.dasktile .legend { font-size: 0.86em; margin: 0.2em 0 0.8em; max-width: 60em; }
.dasktile details { margin: 0.3em 0; }
.dasktile summary { cursor: pointer; }
.dasktile svg { vertical-align: middle; }
"""

#: Pixels of the longer side of a drawing of chunks.
_SIDE = 44

#: Chunks along one axis above which a drawing of chunks is a filled area.
_MOST_DRAWN = 24


def block(*parts: str) -> str:
    """A report, of parts that are HTML."""
    return f"<div class='dasktile'><style>{_STYLE}</style>{''.join(parts)}</div>"


def lines(texts: Sequence[str]) -> str:
    """One line for each text."""
    return "".join(f"<div class='line'>{html.escape(text)}</div>" for text in texts)


def full(text: str, shown: str) -> str:
    """Text of which only a part may be shown; all of it where the pointer is."""
    if text == shown:
        return html.escape(text)
    return f"<span title='{html.escape(text)}'>{html.escape(shown)}</span>"


def legend(text: str) -> str:
    """An explanation below a table."""
    return f"<div class='legend'>{html.escape(text)}</div>"


def folded(title: str, content: str, is_open: bool = False) -> str:
    """HTML that is shown when its title is clicked."""
    state = " open='open'" if is_open else ""
    return f"<details{state}><summary>{html.escape(title)}</summary>{content}</details>"


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int | Sequence[int] = 1,
    total: int | None = None,
    drawn: Sequence[int] = (),
    name: str = "",
) -> str:
    """A table; empty without rows.

    Parameters
    ----------
    titles, rows
        Titles of the columns, and the cells of each row, as text.
    left
        Columns that are aligned to the left: numbers of them, or how many from the first one.
    total
        Number of all rows, of which the given ones are the first; all by default.
    drawn
        Columns whose cells are HTML.
    name
        Class of the table, to find it.
    """
    if not rows:
        return ""
    at_left = range(left) if isinstance(left, int) else left
    classes = [" class='left'" if column in at_left else "" for column in range(len(titles))]
    head = "".join(
        f"<th{style}>{html.escape(title)}</th>"
        for title, style in zip(titles, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{style}>{cell if column in drawn else html.escape(cell)}</td>"
            for column, (cell, style) in enumerate(zip(row, classes, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    more = ""
    if total is not None and total > len(rows):
        more = f"<div>and {total - len(rows):,} more</div>"
    kind = f" class='{html.escape(name)}'" if name else ""
    return (
        f"<div class='box'><table{kind}><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{more}"
    )


class Outline(NamedTuple):
    """The drawing of the last two axes of an array.

    Parameters
    ----------
    wide, tall
        Its sides.
    rows, columns
        Where its rows and its columns of chunks begin and end, from 0 to `tall` and to `wide`.
    """

    wide: float
    tall: float
    rows: list[float]
    columns: list[float]

    @property
    def is_dense(self) -> bool:
        """Whether there are too many chunks for lines: the drawing is a filled area."""
        return max(len(self.rows), len(self.columns)) - 1 > _MOST_DRAWN


def outline(shape: Sequence[int], chunks: Chunks, side: float, least: float) -> Outline:
    """How an array is drawn: the last axis across, the one before it down, as Dask does.

    An array with one axis is a row.

    Parameters
    ----------
    shape, chunks
        The array, which has an axis.
    side
        Length of the longer side.
    least
        Least length of the other one.
    """
    row_count, column_count = (1, *shape)[-2:]
    row_cuts, column_cuts = ((1,), *chunks)[-2:]
    longest = max(row_count, column_count, 1)
    wide = max(side * column_count / longest, least)
    tall = max(side * row_count / longest, least)
    return Outline(
        wide,
        tall,
        [tall * at / max(row_count, 1) for at in bounds(row_cuts)],
        [wide * at / max(column_count, 1) for at in bounds(column_cuts)],
    )


def chunk_drawing(shape: Sequence[int], chunks: Chunks) -> str:
    """The last two axes of an array and how they are cut, to scale as far as can be seen."""
    if not shape:
        return ""
    drawn = outline(shape, chunks, _SIDE, 6.0)
    wide, tall, rows, columns = drawn
    if drawn.is_dense:
        fill, path = "0.25", ""
    else:
        fill = "0.05"
        across = "".join(f"M1 {1 + at:.4g}h{wide:.4g}" for at in rows[1:-1])
        down = "".join(f"M{1 + at:.4g} 1v{tall:.4g}" for at in columns[1:-1])
        path = f"<path d='{across}{down}' fill='none'/>" if across or down else ""
    return (
        f"<svg width='{wide + 2:.4g}' height='{tall + 2:.4g}' stroke='currentColor'"
        f" stroke-width='0.7'><rect x='1' y='1' width='{wide:.4g}' height='{tall:.4g}'"
        f" fill='currentColor' fill-opacity='{fill}'/>{path}</svg>"
    )
