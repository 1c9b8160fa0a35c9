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
from dasktile.report.formatting import format_bytes, format_count, format_seconds, wrapped
from dasktile.report.page import save_report
from dasktile.report.plan import PlanReport
from dasktile.report.rows import (
    boxes,
    busiest_rows,
    html_table,
    kept_lines,
    needed_lines,
    text_table,
)
from dasktile.report.summary import summary

#: Rows that ``print`` shows of a table that has more than `_OPEN_ROWS`: those that move most.
_MOST_ROWS = 20

#: Rows of the table, and lines of reasons, up to which they are not folded in HTML.
_OPEN_ROWS, _OPEN_REASONS = 30, 12


@dataclass(frozen=True)
class Explanation(PlanReport):
    """The plan of an expression, and its predicted cost, before and after.

    ``str()`` shows a table, two lines for each array; of more than 30 arrays the 20 that move most,
    and :meth:`text` shows all.  *chunks* are those of the input and
    *tiles*, below them, those of the plan, as their count and the largest size; ``=`` if both are
    the same.  *moved before* and *moved after* are the bytes that workers receive from
    each other for the operation, with the chunks and with the tiles.

    Bytes that workers receive from each other have these names here and in other reports:

    - *moves*, *moved before*, *moved after*: by the model that chooses the plan, with every task on
      its best worker; always shown, but of the input's chunks not where steps that are not counted
      may move more than the plan (`uncounted`);
    - *in all*: these, and those that tasks of one operation receive from each other, as of
      ``da.linalg.solve``, or those of an earlier plan, where that is more; `bytes_counted`;
    - *receive about*, in the line *as it runs*: in a simulation of Dask's own graph, whose tasks
      Dask's scheduler places, and of the plan's; shown with a client after ``dasktile.enable``, for
      graphs of up to 10,000 tasks and known sizes, and as *simulated* by ``dasktile.diagnose``;
      that of Dask's own graph is *roughly* known, and where inputs are in memory already it is
      shown only if it is far more;
    - *received*: measured; shown by ``dasktile.metrics``, ``dasktile.diagnose`` and the dashboard;
    - *predicted*: the `bytes_counted` of the plans that were run, beside the measured bytes; shown
      by ``dasktile.metrics`` and the dashboard.

    `bytes_predicted` are those to compare a measurement with: of *receive about* where that clearly
    differs from what the model counts, else `bytes_counted`; None where results of unknown sizes
    are moved.

    All numbers are attributes: see :class:`~dasktile.report.plan.PlanReport`.

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

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        bytes_of_plan = {
            "bytes_counted": self.bytes_counted,
            "bytes_predicted": self.bytes_predicted,
        }
        values = _plain(asdict(self) | bytes_of_plan)
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
        """What ``print`` shows, with all rows of the table, or some.

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
        notes = [*kept_lines(self.nodes, self.verdict), *needed_lines(self.nodes)]
        parts = ["\n".join(map(wrapped, summary(self))), table, "\n".join(map(wrapped, notes))]
        return "\n\n".join(part for part in parts if part)

    def __str__(self) -> str:
        if len(self.nodes) <= _OPEN_ROWS:
            return self.text()
        return f"{self.text(largest=_MOST_ROWS)}\n\nexplain(...).text() has all arrays"

    def __repr__(self) -> str:
        arrays, workers = len(self.nodes), self.workers
        before = format_bytes(self.bytes_before) if self.is_comparable else "not counted"
        return (
            f"<Explanation: {format_count(arrays, 'array')}, {format_count(workers, 'worker')},"
            f" {before} -> {format_bytes(self.bytes_after)} moved,"
            f" {self.tasks_before:,} -> {self.tasks_after:,} tasks>"
        )

    def _repr_html_(self) -> str:
        if not self.nodes:
            return page.block(page.lines(summary(self)))
        kept, needed = kept_lines(self.nodes, self.verdict), needed_lines(self.nodes)
        return page.block(
            page.lines(summary(self)),
            self._key_numbers(),
            html_table(self.nodes, len(self.nodes) <= _OPEN_ROWS),
            page.folded(kept[0], page.lines(kept[1:]), len(kept) <= _OPEN_REASONS) if kept else "",
            page.folded(needed[0], page.lines(needed[1:]), False) if needed else "",
        )

    def _key_numbers(self) -> str:
        """A small table of what a plan changes."""
        if not self.has_plan:
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
        partly = set() if self.is_comparable else {"bytes moved, by the model"}
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
        caption = summary(self)
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


def _check_number(name: str, value: object, what: str, least: int) -> None:
    """Raise an error if an argument is no number, or smaller than `least`."""
    allowed = f"{name} must be {what} >= {least}"
    kind = int if what == "an integer" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{allowed}; got {value!r} of type {type(value).__name__}")
    if not value >= least:
        raise ValueError(f"{allowed}; got {value!r}")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
