"""The result of ``explain``: a plan as a table, HTML, a picture or a dict."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

from dasktile.ir import Chunks
from dasktile.report import html as page
from dasktile.report import svg as picture
from dasktile.report.folding import fold as fold_boxes
from dasktile.report.page import save_page
from dasktile.tiling.plan import TilingPlan

#: Optimality gap in per cent above which a lower bound is not worth showing.
_LOOSE = 100

#: Bytes of results from which the summary says where they are joined.
_LARGE = 2**20

#: Begins the line of predicted memory.
_HOLDS = "results in memory: at most about"

#: Bytes with those of running tasks over those of results alone, above which both are shown.
_WHILE_RUNNING = 1.1

#: Arrays of a picture above which repeated structure is drawn once (chosen).
_MANY_BOXES = 40

#: Busiest worker's work over the mean, above which the imbalance is reported.
_UNEVEN = 1.25


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
        tile's index is the number of its worker.  Empty where that is not known.
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


@dataclass(frozen=True)
class Explanation:
    """The plan of an expression, and its predicted cost, before and after.

    ``str()`` shows a table, two lines for each array.  *chunks* are those of the input and
    *tiles*, below them, those of the plan, as their count and the largest size; ``=`` if both are
    the same.  *moved before* and *moved after* are the bytes that workers receive from
    each other for the operation, with the chunks and with the tiles.

    Parameters
    ----------
    workers
        Processes that send bytes to each other.
    method
        The tiling method.
    bytes_before, bytes_after
        Bytes moved between workers, with the input's own chunks and with the plan's,
        both predicted by the same model, which places every task on its best worker.
    read_before, read_after
        Bytes read from storage.
    tasks_before, tasks_after
        Number of tasks.
    lower_bound
        Bytes that every tiling in the model that uses all workers evenly moves between workers at
        least; 0 if no bound is known.
    proven_optimal
        True if no such tiling moves fewer bytes.
    changed
        False if the input is returned unchanged.
    verdict
        Why the input is returned unchanged, in one sentence; empty if it is not.
    nodes
        One row for every array of the expression, inputs first.
    spilled_before, spilled_after
        Bytes written to disk and read back because arrays that several passes read do not fit
        in memory; 0 if no memory limit is known.
    balance_before, balance_after
        The busiest worker's operations over the mean; 1 is even.
    seconds_before, seconds_after
        Predicted run time in seconds, a rough sum of three terms: operations of the busiest
        worker, bytes over the bandwidth of all workers, and overhead of all tasks.  Reading
        from storage is left out.  None without a measurement (``dasktile.calibrate``).
    peak_before, peak_after
        Bytes in memory of the worker that holds most, in a simulation of the graph as Dask runs it
        and of the plan's, with the arrays left on the workers: results of tasks, and those within
        bundles while these run.  What other functions allocate is not included, nor inputs that
        are in memory already.  Nothing is spilled.  None if the sizes of results are not known
        well enough, and for graphs of very many tasks.
    results_before, results_after
        The same without what tasks hold while they run: what distributed calls managed memory.
    room
        Bytes of results that a worker holds before it spills, besides inputs that are in memory
        already; None if that is unknown.
    run_tasks_before, run_tasks_after, received_before, received_after
        Tasks that run, blocks in memory and aliases included, and bytes that workers receive from
        each other, in the same simulation: of Dask's own graph, whose tasks Dask places, and of
        the plan's, bundles counting as one.  No bytes without the scheduler plugin.
    joined
        Bytes of the largest result of several blocks, on a cluster: ``dask.compute`` joins it on
        one worker, which `peak_after` does not contain; ``dasktile.compute`` in the client.
    grids
        The grids of workers for which `lower_bound` holds, in words; empty where it is 0.
    unpredicted
        Why there is no simulation; empty if there is one.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((400, 400)), chunks=(400, 50))
    >>> explanation = dasktile.explain(x.sum(axis=1), workers=4)
    >>> [node.op for node in explanation.nodes]
    ['array', 'sum']
    >>> explanation.nodes[0].chunks_before[1]
    (50, 50, 50, 50, 50, 50, 50, 50)
    """

    workers: int
    method: str
    bytes_before: int
    bytes_after: int
    read_before: int
    read_after: int
    tasks_before: int
    tasks_after: int
    lower_bound: int
    proven_optimal: bool
    changed: bool
    verdict: str
    nodes: tuple[NodeReport, ...]
    balance_before: float = 1.0
    balance_after: float = 1.0
    seconds_before: float | None = None
    seconds_after: float | None = None
    spilled_before: int = 0
    spilled_after: int = 0
    peak_before: int | None = None
    peak_after: int | None = None
    results_before: int | None = None
    results_after: int | None = None
    room: int | None = None
    joined: int = 0
    grids: str = ""
    run_tasks_before: int | None = None
    run_tasks_after: int | None = None
    received_before: int | None = None
    received_after: int | None = None
    unpredicted: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        values = _plain(asdict(self))
        assert isinstance(values, dict)
        return values

    def __str__(self) -> str:
        kept = _kept_lines(self.nodes, self.verdict)
        summary = "\n".join(map(wrapped, self._summary().split("\n")))
        parts = [summary, _table(self.nodes), "\n".join(map(wrapped, kept))]
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        return (
            f"<Explanation: {_count(len(self.nodes), 'array')}, {_count(self.workers, 'worker')},"
            f" {format_bytes(self.bytes_before)} -> {format_bytes(self.bytes_after)} moved,"
            f" {self.tasks_before:,} -> {self.tasks_after:,} tasks>"
        )

    def _repr_html_(self) -> str:
        if not self.nodes:
            return page.block(page.lines(self._summary().split("\n")))
        kept = _kept_lines(self.nodes, self.verdict)
        few = len(self.nodes) <= _OPEN_ROWS
        arrays = page.table(_HTML_TITLES, _html_rows(self.nodes), (1, 2, 3, 4, 5, 6, 7, 8),
                            drawn=(5, 7), name="arrays")  # fmt: skip
        return page.block(
            page.lines(self._summary().split("\n")),
            self._key_numbers(),
            page.folded(_count(len(self.nodes), "array"), arrays + page.legend(_LEGEND), few),
            page.folded(kept[0], page.lines(kept[1:]), len(kept) <= _OPEN_REASONS) if kept else "",
        )

    def _key_numbers(self) -> str:
        """A small table of what a plan changes."""
        if not self.changed:
            return ""
        rows: list[tuple[str, Any, Any, Callable[[Any], str]]] = [
            ("bytes moved between workers", self.bytes_before, self.bytes_after, format_bytes),
            ("tasks as they run", self.run_tasks_before, self.run_tasks_after, _number),
            ("results in memory on one worker", self.results_before, self.results_after,
             format_bytes),
            ("predicted run time", self.seconds_before, self.seconds_after, format_seconds),
        ]  # fmt: skip
        if self.run_tasks_before is None or self.run_tasks_after is None:
            rows[1] = ("tasks", self.tasks_before, self.tasks_after, _number)
        shown = [
            (title, written(before), written(after))
            for title, before, after, written in rows
            if before is not None and after is not None
        ]
        return page.table(("", "before", "after"), shown, name="numbers")

    def visualize(self, filename: str | Path = "dasktile.svg", *, fold: bool = True) -> Path:
        """Draw the expression: its tiles before and after, and the bytes that move.

        Tiles have the colours of their workers.  The wider a line, the more bytes workers receive
        for the operation that it leads to.

        Parameters
        ----------
        filename
            Ends in ``.svg``, ``.dot``, ``.gv``, ``.png`` or ``.pdf``, in small or capital letters.
            The last two need the package ``cairosvg``.
        fold
            Whether structure that repeats, such as the steps of a loop, is drawn once if there are
            many arrays.  The bytes shown are then the sum.

        Returns
        -------
        The file written.

        Raises
        ------
        ValueError
            If the name has another suffix.
        ImportError
            If ``cairosvg`` is needed and not installed.
        """
        boxes = [_box(str(index), [node]) for index, node in enumerate(self.nodes)]
        if fold and len(boxes) > _MANY_BOXES:
            boxes = self._folded_boxes()
        return picture.write(Path(filename), boxes, self._summary().split("\n"), self.workers)

    def _folded_boxes(self) -> list[picture.Box]:
        kinds = [
            (node.op, node.shape, node.dtype, node.chunks_before, node.chunks_after, node.reason)
            for node in self.nodes
        ]
        boxes = []
        for each in fold_boxes(kinds, [node.inputs for node in self.nodes]):
            members = [self.nodes[member] for member in each.members]
            boxes.append(replace(_box(str(each.members[0]), members), inputs=each.inputs))
        return boxes

    def save(self, filename: str | Path = "dasktile.html") -> Path:
        """Write the explanation as an HTML page, which loads nothing else.

        Parameters
        ----------
        filename
            Ends in ``.html``, in small or capital letters.

        Returns
        -------
        The file written.

        Raises
        ------
        ValueError
            If the name has another suffix.
        """
        return save_page(filename, "dasktile: the plan of an expression", self._repr_html_())

    def _summary(self) -> str:
        if not self.nodes:
            return self.verdict
        lines = self._changed() if self.changed else self._unchanged()
        if self.read_before or self.read_after:
            lines.append(_instead("reads", self.read_before, self.read_after, " from storage"))
        if self.spilled_before or self.spilled_after:
            where = " to disk, because arrays read in several passes do not fit in memory"
            lines.append(_instead("spills", self.spilled_before, self.spilled_after, where))
        lines += self._run()
        if self.peak_after is not None and self.results_after is not None:
            lines.append(self._memory(self.peak_after, self.results_after))
        if self.joined >= _LARGE:
            lines.append(
                f"dask.compute joins a result of {format_bytes(self.joined)} on one worker,"
                " dasktile.compute in the client"
            )
        if self.changed and self.balance_before > max(_UNEVEN, self.balance_after):
            lines.append(
                f"the busiest worker does {self.balance_after:.1f} times the mean work"
                f" instead of {self.balance_before:.1f}"
            )
        if self.seconds_before is not None and self.seconds_after is not None:
            after, before = format_seconds(self.seconds_after), format_seconds(self.seconds_before)
            instead = f" instead of {before}" if self.changed and after != before else ""
            lines.append(f"predicted run time: about {after}{instead}")
        return "\n".join(lines)

    def _changed(self) -> list[str]:
        moved = _instead("moves", self.bytes_before, self.bytes_after, " between workers")
        tasks = _count(self.tasks_after, "task")
        if self.tasks_after != self.tasks_before:
            tasks += f" instead of {self.tasks_before:,}"
        workers = _count(self.workers, "worker")
        return [f"{workers}, {moved} ({self._certificate()}); {tasks}"]

    def _unchanged(self) -> list[str]:
        workers, moved = _count(self.workers, "worker"), format_bytes(self.bytes_before)
        because = f": {self.verdict}" if self.verdict else ""
        lines = [
            f"{workers}: optimize returns the input itself{because}",
            f"it moves {moved} between workers; {_count(self.tasks_before, 'task')}",
        ]
        if 0 < self.lower_bound <= self.bytes_before:
            lines[1] += f" (other tiles would move at least {format_bytes(self.lower_bound)})"
        return lines

    def _run(self) -> list[str]:
        """What runs and moves in the simulation, if a plan is compared with Dask's own graph."""
        tasks, before = self.run_tasks_after, self.run_tasks_before
        if not self.changed:
            return []
        if tasks is None or before is None:
            because = f"as it runs: not predicted, as {self.unpredicted}"
            return [because] if self.unpredicted else []
        line = f"as it runs: {_count(tasks, 'task')} instead of {before:,}"
        first, last = self.received_before, self.received_after
        if self.workers > 1 and first is not None and last is not None:
            line += f", workers {_instead('receive about', first, last, '')}"
        return [line]

    def _memory(self, peak: int, results: int) -> str:
        """What the worker that holds most has in memory, and whether that fits."""
        verdict = ""
        if peak > _WHILE_RUNNING * results:
            verdict = f", {format_bytes(peak)} while tasks run"
        if self.room is not None:
            excess, room = max(0, results - self.room), format_bytes(self.room)
            fits = f": about {format_bytes(excess)} spill, as {room} fit" if excess else ": fits"
            verdict += fits
        if self.changed and self.results_before is not None:
            return _instead(_HOLDS, self.results_before, results, " on one worker") + verdict
        unknown = ", unknown before" if self.changed else ""
        return f"{_HOLDS} {format_bytes(results)} on one worker{unknown}{verdict}"

    def _certificate(self) -> str:
        if not self.lower_bound and not self.proven_optimal:
            return "no lower bound is known"
        bound = f"lower bound {format_bytes(self.lower_bound)}"
        if self.grids:
            bound += f" on {self.grids}"
        if self.lower_bound > self.bytes_before:
            bound += ", of tilings that use all workers evenly"
        if self.proven_optimal:
            return f"{bound}: proven optimal"
        if 0 < self.lower_bound < self.bytes_after:
            above = 100 * (self.bytes_after / self.lower_bound - 1)
            if above > _LOOSE:
                return f"{bound}: optimality gap unknown"
            return f"{bound}: within {max(1, math.ceil(above))} %"
        return bound


def _box(number: str, nodes: Sequence[NodeReport]) -> picture.Box:
    """The box of an array, or of several that look the same."""
    node = nodes[0]
    before = sum(each.bytes_before for each in nodes)
    after = sum(each.bytes_after for each in nodes)
    return picture.Box(
        title=f"{number}  {node.op}" + (f"  x {len(nodes)}" if len(nodes) > 1 else ""),
        lines=(
            f"{_shape(node.shape)} {node.dtype}",
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
        hint=node.reason,
        kept=bool(node.reason),
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def explanation(
    plan: TilingPlan,
    outputs: Sequence[Chunks | None] = (),
    unknown: Sequence[_Unknown] = (),
    seconds: tuple[float, float] | None = None,
    runs: tuple[Run | None, Run | None] = (None, None),
    room: int | None = None,
    joined: int = 0,
    placed: bool = True,
    handed: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
    unpredicted: str = "",
) -> Explanation:
    """Describe a plan.

    Parameters
    ----------
    plan
        The plan.
    outputs
        For every output of the program, its final chunks, or None if those are the tiling's.
    unknown
        Arrays on top of the program whose chunk sizes are not known.
    seconds
        Predicted seconds of the input and of the plan; None without a prediction.
    runs
        Simulated runs of the input and of the plan; None for each without a prediction.
    room
        Bytes of results that a worker holds before it spills; None if that is unknown.
    joined
        Bytes of the largest result that Dask joins on one worker.
    placed
        Whether tasks run on the workers of the plan; the bytes of other runs are not shown.
    handed
        By the index of an output, bytes that workers receive for its final chunks, of the input and
        of the plan.
    unpredicted
        Why there are no simulated runs.
    """
    before, after = seconds or (None, None)
    stock, planned = runs
    old, new = handed
    final = {
        index: chunks
        for index, chunks in zip(plan.program.outputs, outputs, strict=False)
        if chunks is not None
    }
    nodes = tuple(
        NodeReport(
            name=node.name,
            op=f"{node.op} (recomputed)" if node.copy and node.op != "copy" else node.op,
            shape=node.shape,
            dtype=node.dtype,
            chunks_before=node.chunks,
            chunks_after=_chunks_after(plan, index, final),
            bytes_before=plan.before.moved[index] + old.get(index, 0),
            bytes_after=plan.after.moved[index] + new.get(index, 0),
            read_before=plan.before.read[index],
            read_after=plan.after.read[index],
            tasks_before=plan.before.tasks[index],
            tasks_after=plan.after.tasks[index],
            reason=plan.reasons[index] if index < len(plan.reasons) else node.reason,
            inputs=tuple(dict.fromkeys(edge.producer for edge in node.edges)),
            homes=_homes(plan, index, final),
        )
        for index, node in enumerate(plan.program.nodes)
    )
    return Explanation(
        workers=plan.workers,
        method=plan.method,
        bytes_before=plan.before.bytes + sum(old.values()),
        bytes_after=plan.after.bytes + sum(new.values()),
        read_before=sum(plan.before.read),
        read_after=sum(plan.after.read),
        tasks_before=sum(plan.before.tasks),
        tasks_after=sum(plan.after.tasks),
        lower_bound=plan.lower_bound,
        # no search contains the bytes for final chunks
        proven_optimal=plan.proven_optimal and not any(new.values()),
        grids=plan.grids,
        changed=plan.tiled is not None,
        verdict=plan.verdict if plan.tiled is None else "",
        nodes=(*nodes, *map(_unknown_row, unknown)),
        balance_before=plan.before.balance,
        balance_after=plan.after.balance,
        spilled_before=plan.before.spilled,
        spilled_after=plan.after.spilled,
        seconds_before=before,
        seconds_after=after,
        peak_before=None if stock is None else stock.peak,
        peak_after=None if planned is None else planned.peak,
        results_before=None if stock is None else stock.results,
        results_after=None if planned is None else planned.results,
        room=room,
        joined=joined,
        run_tasks_before=None if stock is None else stock.tasks,
        run_tasks_after=None if planned is None else planned.tasks,
        received_before=stock.moved if placed and stock is not None else None,
        received_after=planned.moved if placed and planned is not None else None,
        unpredicted=unpredicted,
    )


def nothing(
    workers: int, method: str, unknown: Sequence[_Unknown] = (), verdict: str = ""
) -> Explanation:
    """The explanation of an expression without arrays that could be tiled."""
    verdict = verdict or ("" if unknown else "no dask arrays to tile")
    rows = tuple(map(_unknown_row, unknown))
    return Explanation(workers, method, 0, 0, 0, 0, 0, 0, 0, True, False, verdict, rows)


class Run(Protocol):
    """A simulated run: tasks, bytes received, and the most bytes and results of one worker."""

    @property
    def tasks(self) -> int: ...

    @property
    def moved(self) -> int: ...

    @property
    def peak(self) -> int: ...

    @property
    def results(self) -> int: ...


class _Unknown(Protocol):
    """An array whose chunk sizes are unknown."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def chunks(self) -> tuple[tuple[float, ...], ...]: ...


def _unknown_row(array: _Unknown) -> NodeReport:
    chunks = cast(Chunks, tuple(tuple(sizes) for sizes in array.chunks))
    return NodeReport(
        name=array.name,
        op=array.name.rpartition("-")[0] or array.name,
        shape=tuple(map(sum, chunks)),
        dtype=str(array.dtype),
        chunks_before=chunks,
        chunks_after=chunks,
        bytes_before=0,
        bytes_after=0,
        read_before=0,
        read_after=0,
        tasks_before=0,
        tasks_after=0,
        reason="its chunk sizes are unknown until it is computed (see compute_chunk_sizes)",
        inputs=(),
    )


def _chunks_after(plan: TilingPlan, index: int, final: dict[int, Chunks]) -> Chunks:
    if plan.tiled is None:
        return plan.program.nodes[index].chunks
    return final.get(index, plan.tiled.tilings[index].chunks)


def _homes(plan: TilingPlan, index: int, final: dict[int, Chunks]) -> tuple[tuple[int, ...], ...]:
    """The workers of an array's tiles, as :attr:`NodeReport.homes`."""
    if plan.tiled is None or index in final:
        return ()
    tiling, mesh = plan.tiled.tilings[index], plan.tiled.mesh
    if not isinstance(tiling.held_at, tuple) or len(tiling.held_at) != len(tiling.chunks):
        return ()
    homes = []
    for share, sizes in zip(tiling.held_at, tiling.chunks, strict=True):
        workers = _part_workers(share.by, mesh)
        runs = share.runs or (len(sizes),)
        owners = [worker for worker, run in zip(workers, runs, strict=False) for _ in range(run)]
        if len(owners) != len(sizes):
            return ()
        homes.append(tuple(owners))
    return tuple(homes)


def _part_workers(by: Sequence[int], mesh: Sequence[int]) -> list[int]:
    """For every part along mesh axes, slowest first, what it adds to the number of a worker."""
    workers = [0]
    for axis in by:
        stride = math.prod(mesh[axis + 1 :])
        workers = [worker + stride * place for worker in workers for place in range(mesh[axis])]
    return workers


# Text -------------------------------------------------------------------------------

_TITLES = (
    "",
    "operation",
    "from",
    "shape",
    "dtype",
    "chunks",
    "tiles",
    "moved before",
    "moved after",
)
_HTML_TITLES = (
    "", "operation", "from", "shape", "dtype", "", "chunks", "", "tiles", "moved before",
    "moved after",
)  # fmt: skip

#: What the columns of the HTML table are.
_LEGEND = (
    "from: rows of the inputs. chunks: of the input, count and largest size. tiles: of the plan,"
    " = if they are the chunks. moved before, moved after: bytes that workers receive from each"
    " other for the operation, with the chunks and with the tiles."
)

#: Rows of the table, and lines of reasons, up to which they are not folded in HTML.
_OPEN_ROWS, _OPEN_REASONS = 30, 12

#: Columns of a line of text.
WIDTH = 80
#: Widest operation name, list of inputs and dtype printed in full.
_NAME = 24
_FROM = 16
_DTYPE = 16
#: Widths of the first two in a table that is too wide otherwise.
_NARROW_NAME = 10
_NARROW_FROM = 6


def _cells(index: int, node: NodeReport) -> tuple[str, ...]:
    same = node.chunks_before == node.chunks_after
    return (
        str(index),
        shortened(node.op, _NAME),
        _inputs(node.inputs),
        _shape(node.shape),
        node.dtype,
        _blocks(node.chunks_before),
        "=" if same else _blocks(node.chunks_after),
        format_bytes(node.bytes_before),
        format_bytes(node.bytes_after),
    )


def _html_rows(nodes: Sequence[NodeReport]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for index, node in enumerate(nodes):
        number, op, reads, shape, dtype, chunks, tiles, before, after = _cells(index, node)
        same = node.chunks_before == node.chunks_after
        rows.append(
            (
                number, op, reads, shape, dtype,
                page.chunk_drawing(node.shape, node.chunks_before), chunks,
                "" if same else page.chunk_drawing(node.shape, node.chunks_after), tiles,
                before, after,
            )
        )  # fmt: skip
    return rows


def _number(count: int) -> str:
    return f"{count:,}"


def _inputs(numbers: Sequence[int], width: int = _FROM) -> str:
    """Numbers of inputs, runs of them as ``3-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = " ".join(
        f"{first}-{last}" if last > first + 1 else " ".join(map(str, range(first, last + 1)))
        for first, last in runs
    )
    if len(text) <= width:
        return text
    # a number is shown in full or not at all
    return f"{text[: width - 1].rpartition(' ')[0]} …".lstrip()


def _table(nodes: Sequence[NodeReport]) -> str:
    """A table with two lines for each array, so that it fits :data:`WIDTH`."""
    if not nodes:
        return ""
    columns = _columns(nodes)
    excess = sum(_width(column) for column in columns) + 2 * (len(columns) - 1) - WIDTH
    name = max(_NARROW_NAME, min(_NAME, _width(columns[1]) - excess))
    excess -= max(0, _width(columns[1]) - name)
    inputs = max(_NARROW_FROM, min(_FROM, _width(columns[2]) - excess))
    columns = _columns(nodes, name, inputs)
    widths = list(map(_width, columns))
    if sum(widths) + 2 * (len(columns) - 1) > WIDTH:
        columns = [[cell.replace(", ", ",") for cell in column] for column in columns]
        widths = list(map(_width, columns))
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            cell.rjust(width) if column in (0, len(columns) - 1) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(2, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _columns(
    nodes: Sequence[NodeReport], name: int = _NAME, inputs: int = _FROM
) -> list[list[str]]:
    """The columns of the table, titles first; `name` and `inputs` are the widest cells of two."""
    _, op, reads, shape, dtype, chunks, tiles, before, after = _TITLES
    columns = [["", ""], [op, ""], [reads, ""], [shape, dtype], [chunks, tiles], [before, after]]
    for index, node in enumerate(nodes):
        number, _, _, shape, dtype, chunks, tiles, before, after = _cells(index, node)
        pairs = (
            (number, ""),
            (shortened(node.op, name), ""),
            (_inputs(node.inputs, inputs), ""),
            (shape, shortened(dtype, _DTYPE)),
            (chunks, tiles),
            (before, after),
        )
        for column, pair in zip(columns, pairs, strict=True):
            column.extend(pair)
    return columns


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def shortened(text: str, width: int) -> str:
    """The text, cut to a number of characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def wrapped(line: str) -> str:
    """A line of text on several lines, of which the later ones are indented further."""
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return "\n".join(
        textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False,
                      break_long_words=False)
    )  # fmt: skip


def _kept_lines(nodes: Sequence[NodeReport], verdict: str) -> list[str]:
    """Why arrays keep their chunks, one line for each reason other than the `verdict`."""
    groups: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.reason and node.reason != verdict:
            groups.setdefault(node.reason, []).append(index)
    if not groups:
        return []
    lines = ["chunks kept:"]
    for reason, members in groups.items():
        named = [f"{index} {shortened(nodes[index].op, _NAME)}" for index in members[:12]]
        shown = ", ".join(named) + (", …" if len(members) > 12 else "")
        lines.append(f"  {shown}: {reason}")
    return lines


def _instead(verb: str, before: int, after: int, what: str) -> str:
    if format_bytes(before) == format_bytes(after):
        return f"{verb} {format_bytes(after)}{what}, as before"
    return f"{verb} {format_bytes(after)} instead of {format_bytes(before)}{what}"


def format_bytes(count: float) -> str:
    """Bytes with a unit: ``1.2 GiB``, ``12 KiB``, ``0 B``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            break
        size /= 1024
    digits = 0 if unit == "B" or size >= 99.95 else 1
    return f"{size:.{digits}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Seconds with a unit and two digits: ``12 ms``, ``3.4 s``, ``25 min``."""
    units = (("ms", 1e-3, 0.995), ("s", 1.0, 99.5), ("min", 60.0, 5970.0), ("h", 3600.0, math.inf))
    unit, size = next((unit, size) for unit, size, most in units if seconds < most)
    count = seconds / size
    return f"{count:.1f} {unit}" if count < 9.95 else f"{float(f'{count:.2g}'):,.0f} {unit}"


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _blocks(chunks: Chunks) -> str:
    """Chunks as dask shows them, the largest one, and how many there are."""
    count = math.prod(len(sizes) for sizes in chunks)
    largest = tuple(max(sizes, default=0) for sizes in chunks)
    return f"{count} of {_shape(largest)}"


def _tiles_line(node: NodeReport) -> tuple[str, ...]:
    before, after = _blocks(node.chunks_before), _blocks(node.chunks_after)
    return (before,) if before == after else (before, f"→ {after}")


def _moved_line(bytes_before: int, bytes_after: int) -> str:
    before, after = format_bytes(bytes_before), format_bytes(bytes_after)
    return before if before == after else f"{before} → {after}"


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
