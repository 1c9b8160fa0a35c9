"""The result of ``explain``: a plan as a table, HTML, a picture or a dict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes

from dasktile.report import html as page
from dasktile.report import svg as picture
from dasktile.report.formatting import (
    format_bytes,
    format_count,
    format_names,
    format_seconds,
    wrapped,
)
from dasktile.report.page import save_report
from dasktile.report.rows import (
    NodeReport,
    boxes,
    busiest_rows,
    html_table,
    kept_lines,
    row_name,
    text_table,
)
from dasktile.tiling.fewer import why_fewer

#: Optimality gap in per cent above which a lower bound is not worth showing.
_LOOSE = 100

#: Bytes of the simulation over those of the model from which the summary says why they differ.
_MORE_RECEIVED = 1.1

#: Bytes of results from which reports say where they are joined: fewer are received in about the
#: time of one task.
LARGE = 2**20

#: Begins the line of predicted memory.
_HOLDS = "results in memory: at most about"

#: Bytes with those of running tasks over those of results alone, above which both are shown.
_WHILE_RUNNING = 1.1

#: Arrays named as not all counted.
_UNCOUNTED_NAMES = 3

#: Busiest worker's work over the mean, above which the imbalance is reported.
_UNEVEN = 1.25

#: Rows of the table, and lines of reasons, up to which they are not folded in HTML.
_OPEN_ROWS, _OPEN_REASONS = 30, 12


@dataclass(frozen=True)
class Explanation:
    """The plan of an expression, and its predicted cost, before and after.

    ``str()`` shows a table, two lines for each array.  *chunks* are those of the input and
    *tiles*, below them, those of the plan, as their count and the largest size; ``=`` if both are
    the same.  *moved before* and *moved after* are the bytes that workers receive from
    each other for the operation, with the chunks and with the tiles.

    Bytes that workers receive from each other have these names here and in other reports:

    - *moves*, *moved before*, *moved after*: by the model that chooses the plan, with every task on
      its best worker; always shown, but of the input's chunks not where steps that are not counted
      may move more than the plan (`uncounted`);
    - *in all*: these, and those that tasks of one operation receive from each other, as of
      ``da.linalg.solve``, or those of an earlier plan, where that is more; `bytes_predicted`;
    - *receive about*, in the line *as it runs*: in a simulation of Dask's own graph, whose tasks
      Dask's scheduler places, and of the plan's; shown with a client after ``dasktile.enable``, for
      graphs of up to 10,000 tasks and known sizes, and as *simulated* by ``dasktile.diagnose``;
      that of Dask's own graph is *roughly* known, and where inputs are in memory already it is
      shown only if it is far more;
    - *received*: measured; shown by ``dasktile.metrics``, ``dasktile.diagnose`` and the dashboard;
    - *predicted*: the `bytes_predicted` of the plans that were run, beside the measured bytes;
      shown by ``dasktile.metrics`` and the dashboard.

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
        Bytes that every tiling in the model that uses the workers of a grid evenly moves between
        workers at least; 0 if no bound is known.
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
        in memory: `room`, or `assumed_room` where that is unknown; 0 if both are.
    balance_before, balance_after
        The busiest worker's operations over the mean; 1 is even.
    seconds_before, seconds_after
        Predicted run time in seconds, that of planning left out: of the simulated graphs, with the
        measured speeds.  Where these are not simulated, a rough sum of three terms: operations of
        the busiest worker, bytes over the bandwidth of all workers, and overhead of all tasks.
        Reading from storage is left out.  None without a measurement (``dasktile.calibrate``).
    peak_before, peak_after
        Bytes in memory of the worker that holds most, in a simulation of the graph as Dask runs it
        and of the plan's, with the arrays left on the workers: results of tasks, those within
        bundles while these run, and the copies of some functions, as of zarr, of flox and of those
        that skip NaNs.  What other functions allocate is not included, nor inputs that are in
        memory already.  Nothing is spilled.  None if the sizes of results are not known
        well enough, and for graphs of very many tasks.
    results_before, results_after
        The same without what tasks hold while they run: what distributed calls managed memory.
    room
        Bytes of results that a worker holds before it spills, besides inputs that are in memory
        already; None if that is unknown.
    memory
        Bytes that a worker may have in all; None if that is unknown.
    results_by_worker
        As `results_after`, for each worker; empty where that is None.
    largest_task
        Bytes of the task that has most in memory at once, as the graph runs: its inputs, its
        result, and what it holds besides.  Workers that have less cannot run it, whatever they
        spill.  None where `results_after` is.
    run_tasks_before, run_tasks_after, received_before, received_after
        Tasks that run, blocks in memory and aliases included, and bytes that workers receive from
        each other, in the same simulation: of Dask's own graph, whose tasks Dask places, and of
        the plan's, bundles counting as one.  No bytes without the scheduler plugin.  Where blocks
        of inputs are on workers already, those of Dask's own graph are known roughly: they are
        given only where they are far more than `bytes_predicted`, which then is `received_after`.
    joined
        Bytes of the largest result of several blocks, on a cluster: ``dask.compute`` joins it on
        one worker, which `peak_after` does not contain; ``dasktile.compute`` in the client.
    grids
        The grids of workers for which `lower_bound` holds, in words; empty where it is 0.
    unpredicted
        Why there is no simulation; empty if there is one.
    uncounted
        Numbers of the rows of which it is unknown which blocks their tasks read, such as those of
        functions of the user.  `bytes_before`, `bytes_after` and the bound have the least that
        these can receive; `received_after` has what they do receive, as far as sizes are known.
    assumed_room
        Bytes of results that a worker is assumed to hold where `room` is unknown: a given
        `memory_limit` times the threads of a worker; None without a limit.
    refused
        True if ``optimize`` raises a ``TooManyTasksError``: the memory limit makes too many tasks.
    in_chunks
        True if the chunks of the results were given.
    bundle
        Tasks of the model that one task of the plan's graph runs at the most; 0 if they are not
        bundled, as without the scheduler plugin.
    in_memory
        True if workers have blocks of the input in memory already.  The bytes received by Dask's
        own graph are then predicted only where they are far more than those of the plan, or where
        it is kept because it moves fewer.
    bytes_unplanned
        Bytes that tasks of one operation receive from each other, or those of an earlier plan in
        the same graph, which the model does not count; 0 if they are few or unknown.
    planned
        True if the input is what ``optimize`` returned.  *before* and *after* then are the numbers
        of what it was given, and of the input; `changed` is False.
    scheduler_workers
        Workers as Dask's scheduler counts them: more than `workers` where several are in one
        process, which share memory and count as one; 0 without a client.
    used_workers, bytes_on_all
        Workers for which the plan has tiles where these are fewer than `workers`, and the bytes
        that the best plan for all workers moves; None where all are used.

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
    memory: int | None = None
    results_by_worker: tuple[int, ...] = ()
    largest_task: int | None = None
    joined: int = 0
    grids: str = ""
    run_tasks_before: int | None = None
    run_tasks_after: int | None = None
    received_before: int | None = None
    received_after: int | None = None
    unpredicted: str = ""
    refused: bool = False
    in_chunks: bool = False
    uncounted: tuple[int, ...] = ()
    assumed_room: int | None = None
    bundle: int = 0
    in_memory: bool = False
    bytes_unplanned: int = 0
    planned: bool = False
    scheduler_workers: int = 0
    used_workers: int | None = None
    bytes_on_all: int | None = None

    @property
    def _has_plan(self) -> bool:
        """Whether the numbers after are those of a plan."""
        return self.changed or self.planned

    @property
    def _is_comparable(self) -> bool:
        """Whether the bytes moved before are as complete as those after.

        Steps of which it is unknown what they read may be counted with the tiles of the plan only.
        """
        return not self.uncounted or self.bytes_after <= self.bytes_before

    @property
    def bytes_predicted(self) -> int:
        """Bytes that workers receive from each other: of the plan, or of Dask's own graph.

        For a plan, ``dasktile.metrics`` shows the same number.  Where the input is unchanged, the
        tasks run where Dask's scheduler places them; without a simulation of that, it is
        `bytes_before`.
        """
        if self._has_plan:
            return self.bytes_after + self.bytes_unplanned
        return self.bytes_before if self.received_before is None else self.received_before

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        values = _plain(asdict(self) | {"bytes_predicted": self.bytes_predicted})
        assert isinstance(values, dict)
        return values

    def table(
        self, *, largest: int | None = None, min_bytes: float | str = 0, full_names: bool = False
    ) -> str:
        """The table of arrays as text, of some rows only for large graphs.

        Parameters
        ----------
        largest
            Number of rows: those with the most bytes moved, before or after.  By default all.
        min_bytes
            Bytes moved, before or after, from which a row is shown; also as ``"1 MiB"``.
        full_names
            Whether names, inputs and dtypes are shown in full, in a table that may be wider than 80
            columns.

        Returns
        -------
        str
            The table, in the order of all rows and with their numbers; empty without rows.  The
            last line counts rows that are left out.

        Raises
        ------
        TypeError, ValueError
            If `largest` is no integer >= 1, or `min_bytes` no number >= 0 and no bytes.

        Examples
        --------
        >>> import dask.array as da
        >>> import dasktile
        >>> x = da.ones((4000, 4000), chunks=(500, 4000))
        >>> explanation = dasktile.explain(x.T @ x + 1, workers=4)
        >>> rows = explanation.table(largest=1, full_names=True)
        >>> print(rows)  # doctest: +ELLIPSIS
           operation  from  shape ...
        and 3 more arrays
        """
        if largest is not None:
            _check_number("largest", largest, "an integer", 1)
        if isinstance(min_bytes, str):
            try:
                min_bytes = parse_bytes(min_bytes)
            except ValueError:
                raise ValueError(
                    f"min_bytes must be a number of bytes such as '1 MiB', >= 0; got {min_bytes!r}"
                ) from None
        _check_number("min_bytes", min_bytes, "a number", 0)
        rows = busiest_rows(self.nodes, largest, min_bytes)
        table = text_table(self.nodes, rows, full_names)
        more = len(self.nodes) - len(rows)
        rest = f"and {format_count(more, 'more array')}" if more else ""
        return "\n".join(part for part in (table, rest) if part)

    def text(
        self, *, largest: int | None = None, min_bytes: float | str = 0, full_names: bool = False
    ) -> str:
        """What ``print`` shows, where the table may have some rows only.

        Parameters
        ----------
        largest, min_bytes, full_names
            As in :meth:`table`.

        Raises
        ------
        TypeError, ValueError
            As :meth:`table`.
        """
        table = self.table(largest=largest, min_bytes=min_bytes, full_names=full_names)
        kept = kept_lines(self.nodes, self.verdict)
        summary = "\n".join(map(wrapped, self._summary().split("\n")))
        parts = [summary, table, "\n".join(map(wrapped, kept))]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        if len(self.nodes) <= _OPEN_ROWS:
            return self.text()
        return f"{self.text()}\n\n.text(largest=20) shows only the 20 arrays that move most"

    def __repr__(self) -> str:
        arrays, workers = len(self.nodes), self.workers
        before = format_bytes(self.bytes_before) if self._is_comparable else "not counted"
        return (
            f"<Explanation: {format_count(arrays, 'array')}, {format_count(workers, 'worker')},"
            f" {before} -> {format_bytes(self.bytes_after)} moved,"
            f" {self.tasks_before:,} -> {self.tasks_after:,} tasks>"
        )

    def _repr_html_(self) -> str:
        if not self.nodes:
            return page.block(page.lines(self._summary().split("\n")))
        kept = kept_lines(self.nodes, self.verdict)
        return page.block(
            page.lines(self._summary().split("\n")),
            self._key_numbers(),
            html_table(self.nodes, len(self.nodes) <= _OPEN_ROWS),
            page.folded(kept[0], page.lines(kept[1:]), len(kept) <= _OPEN_REASONS) if kept else "",
        )

    def _key_numbers(self) -> str:
        """A small table of what a plan changes."""
        if not self._has_plan:
            return ""
        tasks = ("tasks as they run", self.run_tasks_before, self.run_tasks_after)
        if self.run_tasks_before is None or self.run_tasks_after is None:
            tasks = ("tasks", self.tasks_before, self.tasks_after)
        rows: list[tuple[str, Any, Any, Callable[[Any], str]]] = [
            (*tasks, "{:,}".format),
            ("bytes moved, by the model", self.bytes_before, self.bytes_after, format_bytes),
            ("results in memory on one worker", self.results_before, self.results_after,
             format_bytes),
            ("predicted run time", self.seconds_before, self.seconds_after, format_seconds),
        ]  # fmt: skip
        if self.workers > 1:
            received = self.received_before, self.received_after
            rows.insert(1, ("bytes received by workers", *received, format_bytes))
        partly = set() if self._is_comparable else {"bytes moved, by the model"}
        shown = [
            (title, "not counted" if title in partly else written(before), written(after))
            for title, before, after, written in rows
            if before is not None and after is not None
        ]
        return page.table(("", "before", "after"), shown, name="numbers")

    def visualize(
        self,
        filename: str | Path = "dasktile.svg",
        *,
        fold: bool = True,
        layout: str = "auto",
    ) -> Path:
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
        layout
            ``"dot"`` places boxes and lines by the program ``dot`` of Graphviz, whose lines are
            shorter and cross less often, ``"own"`` without any program, and ``"auto"`` by ``dot``
            where it is installed and succeeds.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        ValueError
            If the name has another suffix, or there is no such layout.
        ImportError
            If ``cairosvg`` is needed and not installed.
        OSError
            If the file cannot be written, or `layout` is ``"dot"`` and the program is missing
            or fails.
        """
        caption = self._summary().split("\n")
        drawn = boxes(self.nodes, fold)
        return picture.write(Path(filename), drawn, caption, self.workers, layout)

    def save(self, filename: str | Path = "dasktile.html") -> Path:
        """Write the explanation as an HTML page, which loads nothing else, as JSON, or as text.

        Parameters
        ----------
        filename
            Ends in ``.html``, in ``.json`` for the values of :meth:`to_dict`, or in ``.txt`` for
            :meth:`text`; letters may be capital.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        ValueError
            If the name has another suffix.
        OSError
            If the file cannot be written.
        """
        return save_report(
            filename,
            "dasktile: the plan of an expression",
            self._repr_html_(),
            self.to_dict(),
            self.text(),
        )

    def _summary(self) -> str:
        if not self.nodes:
            return self.verdict
        lines = self._head()
        if shared := self.shared_processes():
            lines.append(shared)
        if fewer := self._fewer():
            lines.append(fewer)
        if self._has_plan and self.bytes_unplanned:
            received = format_bytes(self.bytes_predicted)
            lines.append(
                f"workers receive {received} in all, with what tasks of one operation, or of an"
                " earlier plan, receive from each other"
            )
        elif self.uncounted and self.workers > 1:
            names = [row_name(row, self.nodes[row]) for row in self.uncounted]
            lines.append(
                f"not all counted: bytes received for {format_names(names, _UNCOUNTED_NAMES)},"
                " as it is unknown which blocks their tasks read"
            )
        if self._has_plan and not self._is_comparable:
            lines.append(
                f"with the chunks of the input {format_bytes(self.bytes_before)} are counted,"
                " without the steps whose reads are unknown"
            )
        if self.read_before or self.read_after:
            lines.append(_instead("reads", self.read_before, self.read_after, " from storage"))
        if self.spilled_before or self.spilled_after:
            where = f" to disk, because arrays read in several passes do not fit in {self._where()}"
            lines.append(_instead("spills", self.spilled_before, self.spilled_after, where))
        if self.peak_after is not None and self.results_after is not None:
            lines.append(self._memory(self.peak_after, self.results_after))
        if self.joined >= LARGE:
            lines.append(
                f"dask.compute joins a result of {format_bytes(self.joined)} on one worker,"
                " dasktile.compute in the client"
            )
        if self._has_plan and self.balance_before > max(_UNEVEN, self.balance_after):
            lines.append(
                f"the busiest worker does {self.balance_after:.1f} times the mean work"
                f" instead of {self.balance_before:.1f}"
            )
        if self.seconds_before is not None and self.seconds_after is not None:
            after, before = format_seconds(self.seconds_after), format_seconds(self.seconds_before)
            instead = f" instead of {before}" if self._has_plan and after != before else ""
            lines.append(f"predicted run time: about {after}{instead}")
        return "\n".join(lines)

    def shared_processes(self) -> str:
        """Why fewer workers are planned for than there are; empty if they are as many."""
        if self.scheduler_workers <= self.workers:
            return ""
        processes = "one process" if self.workers == 1 else f"{self.workers:,} processes"
        return (
            f"the {self.scheduler_workers:,} workers of the cluster are in {processes} and count as"
            f" {self.workers:,}: workers of one process share memory, so nothing is copied between"
            " them"
        )

    def _fewer(self) -> str:
        """Why the plan is for fewer workers than there are; empty if it is for all."""
        if not self._has_plan or self.used_workers is None or self.bytes_on_all is None:
            return ""
        used, count = f"{self.used_workers:,}", f"{self.workers:,}"
        return (
            f"tiles for {used} of {count} workers, as {why_fewer(self.workers)}: a plan for all of"
            f" them would move {format_bytes(self.bytes_on_all)}"
        )

    def _where(self) -> str:
        """The memory that held arrays do not fit in."""
        if self.assumed_room is None:
            return "memory"
        size = format_bytes(self.assumed_room)
        return f"{size} on each worker (assumed: memory_limit times threads)"

    def _head(self) -> list[str]:
        """What ``optimize`` does, what runs, and what the model counts: what is surest first."""
        if not self._has_plan:
            first, model = self._unchanged()
            return [first, *self._run(), model]
        workers = format_count(self.workers, "worker")
        moved, run = self._moved(), self._run()
        if self._is_simulated:
            lines = [f"{workers}, {run[0]}", f"by the model: {moved}"]
        else:
            lines = [f"{workers}, {moved}", *run]
        if self.planned:
            lines[0] = f"optimize returns the input itself: {self.verdict}; its plan: {lines[0]}"
        return lines

    @property
    def _is_simulated(self) -> bool:
        """Whether it is predicted what workers receive for both graphs."""
        known = self.received_before is not None and self.received_after is not None
        return known and self.workers > 1 and not self.unpredicted

    def _moved(self) -> str:
        """What the model counts for a plan, and how near that is to the least possible."""
        before, after = self.bytes_before, self.bytes_after
        moved = f"moves {format_bytes(after)} between workers"
        if self._is_comparable:
            # on their best workers, where Dask's scheduler would not place all tasks
            same = ", as with the input's chunks"
            moved = _instead("moves", before, after, " between workers", same=same)
        line = f"{moved} ({self._certificate()})"
        if after > _MORE_RECEIVED * max(before, LARGE) and (gains := self._gains()):
            line += f"; it has {' and '.join(gains)}"
        if self.run_tasks_before is None or self.run_tasks_after is None:
            # those that run are unknown, of one graph at least
            model = "by the model, " if self.unpredicted else ""
            line += f"; {model}{_tasks(self.tasks_before, self.tasks_after)}"
            if self.bundle:
                line += f", which run in bundles of up to {self.bundle:,}"
        return line

    def _gains(self) -> list[str]:
        """What a plan has that moves more bytes than the input's chunks."""
        gains = {
            "fewer tasks": self.tasks_after < self.tasks_before,
            "less to spill": self.spilled_after < self.spilled_before,
            "less to read": self.read_after < self.read_before,
            "more even work": self.balance_after < self.balance_before,
        }
        return [gain for gain, is_gained in gains.items() if is_gained]

    def _unchanged(self) -> tuple[str, str]:
        """That the input is returned, and why; and what the model counts for it."""
        workers, moved = format_count(self.workers, "worker"), format_bytes(self.bytes_before)
        because = f": {self.verdict}" if self.verdict else ""
        result = (
            "returns what Dask's rechunk returns" if self.in_chunks else "returns the input itself"
        )
        if self.refused:
            result = "raises a TooManyTasksError"
        model = f"by the model it moves {moved} between workers"
        if self.in_memory and self.received_before is not None:
            model = f"the model that chooses plans counts {moved} for its chunks"
        if self.run_tasks_before is None:
            model += f"; {format_count(self.tasks_before, 'task')}"
        if 0 < self.lower_bound <= self.bytes_before:
            model += f" (other tiles would move at least {format_bytes(self.lower_bound)})"
        return f"{workers}: optimize {result}{because}", model

    def _run(self) -> list[str]:
        """What runs and moves in the simulation, of Dask's own graph and of the plan's."""
        tasks, before = self.run_tasks_after, self.run_tasks_before
        first, last = self.received_before, self.received_after
        unknown = f"not predicted, as {self.unpredicted}"
        if before is None and not self.unpredicted:
            return []
        if not self._has_plan:
            if before is None:
                return [f"as it runs: {unknown}"]
            if first is None or self.workers == 1:
                return []
            run = f"{format_count(before, 'task')}, workers receive about {format_bytes(first)}"
            return [f"as it runs: {run} where Dask's scheduler places them"]
        if tasks is None:
            return [f"as it runs: {unknown}"] if self.unpredicted else []
        run = format_count(tasks, "task") if before is None else _tasks(before, tasks)
        line = f"as it runs: {run}{', each bundle counted once' if self.bundle else ''}"
        if self.unpredicted:
            if self.workers > 1 and last is not None:
                line += f", workers receive about {format_bytes(last)}"
            what = "how many tasks Dask's own graph has, and what it moves and holds,"
            if before is not None:
                what = "what Dask's own graph moves and holds"
            return [f"{line}; {what} is {unknown}"]
        if self.workers > 1 and first is not None and last is not None:
            line += f", workers {_instead('receive about', first, last, '', roughly='roughly ')}"
            if format_bytes(first) != format_bytes(last):
                line += " where Dask's scheduler places its own graph"
            if last > _MORE_RECEIVED * max(self.bytes_predicted, LARGE):
                line += (
                    "; that is more than the model counts, as parts of an array that a worker"
                    " reads in tiles of two shapes are sent for each of them"
                )
        elif self.workers > 1 and self.in_memory:
            line += (
                "; what workers receive for Dask's own graph is not predicted, as blocks of the"
                " input are in their memory already: it may be more or less than the model counts"
            )
        return [line]

    def _memory(self, peak: int, results: int) -> str:
        """What the worker that holds most has in memory, and whether that fits."""
        verdict = ""
        if peak > _WHILE_RUNNING * results:
            verdict = f", {format_bytes(peak)} while tasks run"
        if self.memory is not None and (self.largest_task or 0) > self.memory:
            least, there = format_bytes(self.largest_task or 0), format_bytes(self.memory)
            verdict += f": does not fit, as one task needs about {least} and a worker has {there}"
        elif self.room is not None:
            excess, room = max(0, results - self.room), format_bytes(self.room)
            spilled = f"about {format_bytes(excess)} spill, as {room} fit"
            verdict += f": {spilled}" if excess else f": fits in {room}"
        if self._has_plan and self.results_before is not None:
            return _instead(_HOLDS, self.results_before, results, " on one worker") + verdict
        unknown = ", unknown before" if self._has_plan else ""
        return f"{_HOLDS} {format_bytes(results)} on one worker{unknown}{verdict}"

    def _certificate(self) -> str:
        if not self.lower_bound and not self.proven_optimal:
            return "no lower bound is known"
        bound = f"lower bound {format_bytes(self.lower_bound)}"
        if self.grids:
            bound += f" on {self.grids}, used evenly"
        elif self.lower_bound > self.bytes_before:
            bound += ", of tilings that use all workers evenly"
        if self.proven_optimal:
            return f"{bound}: proven optimal"
        if 0 < self.lower_bound < self.bytes_after:
            above = 100 * (self.bytes_after / self.lower_bound - 1)
            if above > _LOOSE:
                return f"{bound}: optimality gap unknown"
            return f"{bound}: within {max(1, math.ceil(above))} %"
        return bound


def _check_number(name: str, value: object, what: str, least: int) -> None:
    """Raise an error if an argument is no number, or smaller than `least`."""
    allowed = f"{name} must be {what} >= {least}"
    kind = int if what == "an integer" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{allowed}; got {value!r} of type {type(value).__name__}")
    if not value >= least:
        raise ValueError(f"{allowed}; got {value!r}")


def _instead(
    verb: str,
    before: int,
    after: int,
    what: str,
    roughly: str = "",
    same: str = ", as before",
) -> str:
    if format_bytes(before) == format_bytes(after):
        return f"{verb} {format_bytes(after)}{what}{same}"
    return f"{verb} {format_bytes(after)} instead of {roughly}{format_bytes(before)}{what}"


def _tasks(before: int, after: int) -> str:
    """The tasks of a plan, and of the input."""
    instead = ", as before" if after == before else f" instead of {before:,}"
    return f"{format_count(after, 'task')}{instead}"


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
