"""The arrays of an explanation: one row of a table each, as text, HTML, or a box of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dasktile.ir import Chunks
from dasktile.report import html as page
from dasktile.report.folding import fold as fold_boxes
from dasktile.report.formatting import (
    format_bytes,
    format_chunks,
    format_count,
    format_names,
    format_ranges,
    format_shape,
    shortened,
    shortened_words,
)
from dasktile.report.svg import Box
from dasktile.report.tables import Narrowed, two_line_table

_HTML_TITLES = (
    "", "operation", "from", "shape", "dtype", "", "chunks", "", "tiles", "moved before",
    "moved after",
)  # fmt: skip

#: Titles of the text table, which has two lines for each array.
_TEXT_TITLES = (
    ("", ""), ("operation", ""), ("from", ""), ("shape", "dtype"), ("chunks", "tiles"),
    ("moved before", "moved after"),
)  # fmt: skip

#: What the columns of the HTML table are.
_LEGEND = (
    "from: rows of the inputs. chunks: of the input, count and largest size. tiles: of the plan,"
    " = if they are the chunks. moved before, moved after: bytes that workers receive from each"
    " other for the operation, with the chunks and with the tiles."
)

#: What the second line of an operation in the HTML table is.
_VARIABLES = "below an operation: the variables of the dataset that it makes."

#: Widest operation name, list of inputs and dtype printed in full.
_NAME, _FROM, _DTYPE = 24, 16, 16

#: Columns of the text table that are narrower in a table that is too wide otherwise.
_NARROWED = {1: Narrowed(_NAME, 10, shortened), 2: Narrowed(_FROM, 6, shortened_words)}

#: Arrays named for one reason at the most.
_KEPT_NAMES = 12

#: Arrays of a picture above which repeated structure is drawn once (chosen).
_MANY_BOXES = 40


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One array of the expression: a row of the table.

    Parameters
    ----------
    name, op
        The array's name in the dask graph, and the operation that makes it.
    shape, dtype
        Of the array.
    chunks_before, chunks_after
        Chunk sizes along every axis, as dask writes them.
    bytes_before, bytes_after
        Bytes that workers receive from each other so that the operation can run.
    read_before, read_after
        Bytes read from storage.
    tasks_before, tasks_after
        Number of tasks, those that cut and join tiles included.
    reason
        Why the array keeps its chunks; empty if it is re-tiled.
    inputs
        The arrays it is made of, as positions in ``Explanation.nodes``.
    homes
        Where the tiles are: for every axis, a number for each of its tiles; the sum of those of a
        tile's index is the number of its worker, of those that have tiles.  Empty where that is not
        known.
    positions
        0, or the number of positions that `homes` are, where these are more than the workers:
        worker ``position * workers // positions`` has a tile.
    layers
        Names of the layers of the plan's graph that make the tiles and the final chunks, as
        ``dasktile.metrics`` has them; empty where that graph was not written.
    variables
        Names of the variables of the explained xarray objects that have this array; those of a
        tree begin with the path of their node, and those that several objects have with the
        position of their object, as in ``2nd tas``.
    needed
        The range of every axis that contains all that is computed, (start, stop); None if that is
        the whole array, or if the graph is the input's own.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    chunks_before: Chunks
    chunks_after: Chunks
    bytes_before: int
    bytes_after: int
    read_before: int
    read_after: int
    tasks_before: int
    tasks_after: int
    reason: str
    inputs: tuple[int, ...]
    homes: tuple[tuple[int, ...], ...] = ()
    positions: int = 0
    layers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    needed: tuple[tuple[int, int], ...] | None = None


def busiest_rows(
    nodes: Sequence[NodeReport], largest: int | None = None, min_bytes: float = 0
) -> list[int]:
    """The rows of the arrays that move most, before or after, in the order of all rows.

    Parameters
    ----------
    nodes
        All arrays.
    largest
        Number of rows; None for all.
    min_bytes
        Bytes from which an array has a row.
    """

    def moved(row: int) -> int:
        return max(nodes[row].bytes_before, nodes[row].bytes_after)

    rows = [row for row in range(len(nodes)) if moved(row) >= min_bytes]
    return rows if largest is None else sorted(sorted(rows, key=moved, reverse=True)[:largest])


def text_table(nodes: Sequence[NodeReport], rows: Sequence[int], full: bool) -> str:
    """The table as text, two lines for each array; empty without rows.

    Parameters
    ----------
    nodes
        All arrays.
    rows
        Those that are shown.
    full
        Whether names, inputs and dtypes are shown in full, in a table that may be wider than 80
        columns.
    """
    titles = list(_TEXT_TITLES)
    if any(nodes[row].variables for row in rows):
        titles[1] = "operation", "variable"
    return two_line_table(titles, _text_rows(nodes, rows, full), {} if full else _NARROWED)


def html_table(nodes: Sequence[NodeReport], is_open: bool) -> str:
    """The table in HTML, with what its columns are, below a title that folds it.

    Parameters
    ----------
    nodes
        All arrays.
    is_open
        Whether it is shown at first.
    """
    legend = _LEGEND
    if any(node.variables for node in nodes):
        legend = f"{_VARIABLES} {legend}"
    table = page.table(_HTML_TITLES, _html_rows(nodes), (1, 2, 3, 4, 5, 6, 7, 8),
                       drawn=(1, 2, 5, 7), name="arrays")  # fmt: skip
    return page.folded(format_count(len(nodes), "array"), table + page.legend(legend), is_open)


def boxes(nodes: Sequence[NodeReport], fold: bool) -> list[Box]:
    """The boxes of a picture.

    Parameters
    ----------
    nodes
        All arrays.
    fold
        Whether structure that repeats is one box if there are many arrays.
    """
    if not fold or len(nodes) <= _MANY_BOXES:
        return [_box(str(index), [node]) for index, node in enumerate(nodes)]
    kinds = [
        (node.op, node.shape, node.dtype, node.chunks_before, node.chunks_after, node.reason)
        for node in nodes
    ]
    drawn = []
    for each in fold_boxes(kinds, [node.inputs for node in nodes]):
        members = [nodes[member] for member in each.members]
        drawn.append(replace(_box(str(each.members[0]), members), inputs=each.inputs))
    return drawn


def kept_lines(nodes: Sequence[NodeReport], verdict: str) -> list[str]:
    """Why arrays keep their chunks, a title and a line for each reason other than the `verdict`."""
    groups: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.reason and node.reason != verdict:
            groups.setdefault(node.reason, []).append(index)
    return _group_lines("chunks kept:", groups, nodes)


def needed_lines(nodes: Sequence[NodeReport]) -> list[str]:
    """Of which arrays only a part is needed, a title and a line for each such part."""
    groups: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.needed is not None:
            sizes = zip(node.needed, node.shape, strict=True)
            slices = [":" if part == (0, size) else "{}:{}".format(*part) for part, size in sizes]
            part = "nothing" if (0, 0) in node.needed else f"[{', '.join(slices)}]"
            groups.setdefault(part, []).append(index)
    return _group_lines("only parts are needed:", groups, nodes)


def _group_lines(
    title: str, groups: Mapping[str, Sequence[int]], nodes: Sequence[NodeReport]
) -> list[str]:
    """A title, and a line for each text with the rows that it is about; nothing without texts."""
    lines = [title] if groups else []
    for text, members in groups.items():
        names = [row_name(index, nodes[index]) for index in members]
        lines.append(f"  {format_names(names, _KEPT_NAMES, ', …')}: {text}")
    return lines


def row_name(index: int, node: NodeReport) -> str:
    """A row in a line of text: its number, operation and variables."""
    name = f"{index} {shortened(node.op, _NAME)}"
    return f"{name} ({shortened(_variables(node), _NAME)})" if node.variables else name


def _box(number: str, nodes: Sequence[NodeReport]) -> Box:
    """The box of an array, or of several that look the same."""
    node = nodes[0]
    before = sum(each.bytes_before for each in nodes)
    after = sum(each.bytes_after for each in nodes)
    return Box(
        title=f"{number}  {node.op}" + (f"  x {len(nodes)}" if len(nodes) > 1 else ""),
        lines=(
            *((shortened(names, _NAME),) if (names := _variables(*nodes)) else ()),
            f"{format_shape(node.shape)} {node.dtype}",
            *_tiles_line(node),
            *(("chunks kept",) if node.reason else ()),
        ),
        shape=node.shape,
        before=node.chunks_before,
        after=node.chunks_after,
        inputs=node.inputs,
        edge=_moved_line(before, after),
        moved=after,
        homes=node.homes,
        positions=node.positions,
        hint=node.reason,
        kept=bool(node.reason),
    )


def _tiles_line(node: NodeReport) -> tuple[str, ...]:
    before, after = format_chunks(node.chunks_before), format_chunks(node.chunks_after)
    return (before,) if before == after else (before, f"→ {after}")


def _moved_line(bytes_before: int, bytes_after: int) -> str:
    before, after = format_bytes(bytes_before), format_bytes(bytes_after)
    return before if before == after else f"{before} → {after}"


def _tiles(node: NodeReport) -> str:
    same = node.chunks_before == node.chunks_after
    return "=" if same else format_chunks(node.chunks_after)


def _text_rows(
    nodes: Sequence[NodeReport], rows: Sequence[int], full: bool
) -> list[list[tuple[str, str]]]:
    return [
        [
            (str(index), ""),
            (node.op, _variables(node)),
            (format_ranges(node.inputs), ""),
            (format_shape(node.shape), node.dtype if full else shortened(node.dtype, _DTYPE)),
            (format_chunks(node.chunks_before), _tiles(node)),
            (format_bytes(node.bytes_before), format_bytes(node.bytes_after)),
        ]
        for index, node in ((index, nodes[index]) for index in rows)
    ]


def _html_rows(nodes: Sequence[NodeReport]) -> list[tuple[str, ...]]:
    return [
        (
            str(index),
            _html_operation(node),
            page.full(inputs, shortened_words(inputs, _FROM)),
            format_shape(node.shape),
            node.dtype,
            page.chunk_drawing(node.shape, node.chunks_before),
            format_chunks(node.chunks_before),
            ""
            if node.chunks_before == node.chunks_after
            else page.chunk_drawing(node.shape, node.chunks_after),
            _tiles(node),
            format_bytes(node.bytes_before),
            format_bytes(node.bytes_after),
        )
        for index, node in enumerate(nodes)
        for inputs in (format_ranges(node.inputs),)
    ]


def _variables(*nodes: NodeReport) -> str:
    return ", ".join(name for node in nodes for name in node.variables)


def _html_operation(node: NodeReport) -> str:
    operation = page.full(node.op, shortened(node.op, _NAME))
    if not node.variables:
        return operation
    names = _variables(node)
    return f"{operation}<br/><b>{page.full(names, shortened(names, _NAME))}</b>"
