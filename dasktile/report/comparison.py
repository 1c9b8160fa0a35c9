"""The tilings that each method chooses for one expression, priced by the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dasktile.report import html as page
from dasktile.report.formatting import format_bytes, format_count, shortened, wrapped
from dasktile.report.tables import text_table
from dasktile.tiling.plan import TilingPlan

_TITLES = ("method", "moved", "times bound", "tasks", "largest task", "")
#: Columns that are aligned to the left.
_LEFT = (0, 5)
#: What the columns are.
_LEGEND = (
    "moved: bytes that workers receive from each other. times bound: moved over the lower bound."
    " largest task: bytes of its inputs and its result."
)
#: Widest name of a method printed in full.
_NAME = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiling chosen by one method.

    Parameters
    ----------
    method
        Name of the method; ``"none"`` keeps the input's own chunks.
    bytes
        Bytes moved between workers, by the exact model.
    tasks
        Number of tasks.
    peak
        Bytes of the largest task: its inputs and its result.
    proven_optimal
        True if it was proven that no tiling moves fewer bytes, or if it moves none.
    refused
        Why the method found no tiling; empty if it found one.
    """

    method: str
    bytes: int = 0
    tasks: int = 0
    peak: int = 0
    proven_optimal: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Comparison:
    """The tilings chosen by several methods, as a table: print it.

    Parameters
    ----------
    workers
        Processes that send bytes to each other.
    lower_bound
        Bytes that every tiling in the model that uses all workers evenly moves at least; 0 if no
        bound is known, as if neither ``"auto"`` nor ``"exact"`` is among the methods.  The input's
        own chunks (``"none"``) move fewer bytes if they leave workers idle.
    choices
        One for each method.
    kept
        Why ``optimize`` would keep the input's own chunks although ``"auto"`` finds a tiling; empty
        if it would not, or if ``"auto"`` was not among the methods.
    grids
        The grids of workers for which the bound holds, in words; empty if no bound is known.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((400, 50)), chunks=(50, 50))
    >>> comparison = dasktile.compare(x + 1, workers=4)
    >>> comparison["none"].bytes, min(choice.bytes for choice in comparison)
    (0, 0)
    """

    workers: int
    lower_bound: int
    choices: tuple[Choice, ...]
    kept: str = ""
    grids: str = ""

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __getitem__(self, method: str) -> Choice:
        for choice in self.choices:
            if choice.method == method:
                return choice
        names = ", ".join(repr(choice.method) for choice in self.choices)
        raise KeyError(f"{method!r} was not compared; the methods are {names or 'none'}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return {**asdict(self), "choices": [asdict(choice) for choice in self.choices]}

    def __repr__(self) -> str:
        moved = [
            f"{choice.method} {format_bytes(choice.bytes)}"
            for choice in self.choices
            if not choice.refused
        ]
        workers = format_count(self.workers, "worker")
        return f"<Comparison: {workers}, moved: {', '.join(moved) or 'nothing to tile'}>"

    def __str__(self) -> str:
        if not self.choices:
            return "no dask arrays to tile"
        table = text_table(_TITLES, [self._row(choice) for choice in self.choices], left=_LEFT)
        text = f"{wrapped(self._summary())}\n\n{table}"
        notes = "\n".join(wrapped(note) for note in self._notes())
        return f"{text}\n\n{notes}" if notes else text

    def _repr_html_(self) -> str:
        if not self.choices:
            return page.block(page.lines([str(self)]))
        rows = [self._row(choice) for choice in self.choices]
        return page.block(
            page.lines([self._summary()]),
            page.table(_TITLES, rows, _LEFT, name="methods"),
            page.legend(_LEGEND),
            page.lines(list(self._notes())),
        )

    def _summary(self) -> str:
        workers = format_count(self.workers, "worker")
        if not self.lower_bound and not any(choice.proven_optimal for choice in self.choices):
            return f"{workers}; no lower bound of the moved bytes is known"
        on_grids = f" on {self.grids}" if self.grids else ""
        # a bound for grids of all workers or of fewer
        which = "their workers" if " or " in self.grids else "all workers"
        return (
            f"{workers}; lower bound {format_bytes(self.lower_bound)}{on_grids}"
            f", of tilings that use {which} evenly"
        )

    def _row(self, choice: Choice) -> tuple[str, ...]:
        name = shortened(choice.method, _NAME)
        if choice.refused:
            return name, "", "", "", "", "refused"
        least = self.lower_bound
        if choice.bytes == least:
            times = "1.00"
        else:
            times = f"{choice.bytes / least:.2f}" if 0 < least < choice.bytes else "-"
        return (name, format_bytes(choice.bytes), times, f"{choice.tasks:,}",
                format_bytes(choice.peak), "proven optimal" * choice.proven_optimal)  # fmt: skip

    def _notes(self) -> Iterator[str]:
        for choice in self.choices:
            if choice.refused:
                yield f"{choice.method}: {choice.refused}"
            elif choice.method == "none":
                uneven = choice.bytes < self.lower_bound
                yield "none: the input's own chunks" + (
                    ", which do not use all workers evenly: the lower bound does not hold for them"
                    if uneven
                    else ""
                )
        if self.kept:
            yield f"optimize would keep the input's own chunks: {self.kept}"


def comparison(
    workers: int, plans: Sequence[tuple[str, TilingPlan | str]], kept: str = ""
) -> Comparison:
    """Compare plans by method; a string in the place of a plan is the reason why there is none."""
    choices = [
        Choice(name, refused=plan)
        if isinstance(plan, str)
        else Choice(
            name,
            plan.after.bytes,
            sum(plan.after.tasks),
            max(plan.after.peak, default=0),
            plan.proven_optimal,
        )
        for name, plan in plans
    ]
    # only the exact method bounds all tilings, not just its own candidates
    bounded = [
        plan for name, plan in plans if name in ("auto", "exact") and not isinstance(plan, str)
    ]
    bound, grids = 0, ""
    if bounded:
        best = min(bounded, key=lambda plan: (plan.after.bytes, -plan.lower_bound))
        bound, grids = best.lower_bound, best.grids
    methods = [choice.bytes for choice in choices if not choice.refused and choice.method != "none"]
    if bound > min(methods, default=0):
        # a bound for the candidates of one mesh is none for those of another mesh
        bound, grids = 0, ""
    least = min((choice.bytes for choice in choices if not choice.refused), default=0)
    # all choices that move no more bytes than a proven one are as good
    proven = {choice.bytes for choice in choices if choice.proven_optimal} & {bound}
    inside = (node.has_inner_tasks for _, plan in plans if not isinstance(plan, str)
              for node in plan.program.nodes)  # fmt: skip
    if not any(inside):
        # of what such tasks move, nothing is known
        proven |= {0}
    choices = [
        replace(
            choice,
            proven_optimal=not choice.refused and choice.bytes in proven and choice.bytes == least,
        )
        for choice in choices
    ]
    return Comparison(workers, bound, tuple(choices), kept, grids)
