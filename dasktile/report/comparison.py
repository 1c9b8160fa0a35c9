"""The tilings that each method chooses for one expression, priced by the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dasktile.report.explanation import format_bytes
from dasktile.tiling.plan import TilingPlan


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
        True if it was proven that no tiling moves fewer bytes.
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
        Bytes that every tiling in the model moves at least; 0 if the exact method was not
        among those compared.
    choices
        One for each method.
    kept
        Why ``optimize`` would return the input unchanged although ``"auto"`` finds a tiling; empty
        if it would not, or if ``"auto"`` was not among the methods.
    """

    workers: int
    lower_bound: int
    choices: tuple[Choice, ...]
    kept: str = ""

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __getitem__(self, method: str) -> Choice:
        for choice in self.choices:
            if choice.method == method:
                return choice
        raise KeyError(method)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return {**asdict(self), "choices": [asdict(choice) for choice in self.choices]}

    def __str__(self) -> str:
        if not self.choices:
            return "no dask arrays to tile"
        titles = ("method", "moved", "times the least", "tasks", "largest task", "")
        rows = [titles, *map(self._row, self.choices)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:5], widths[1:5], strict=True)]
                + [row[5]]
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        workers = "1 worker" if self.workers == 1 else f"{self.workers:,} workers"
        bound = format_bytes(self.lower_bound)
        text = f"{workers}; no tiling moves less than {bound}\n\n" + "\n".join(lines)
        if self.kept:
            text += f"\n\noptimize would return the input unchanged: {self.kept}"
        return text

    def _row(self, choice: Choice) -> tuple[str, ...]:
        if choice.refused:
            return choice.method, "", "", "", "", choice.refused
        least = self.lower_bound
        times = "1.00" if choice.bytes <= least else f"{choice.bytes / least:.2f}" if least else "-"
        remark = {"none": "the input's own chunks"}.get(choice.method, "")
        remark = "proven optimal" if choice.proven_optimal else remark
        return (choice.method, format_bytes(choice.bytes), times, f"{choice.tasks:,}",
                format_bytes(choice.peak), remark)  # fmt: skip


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
    bounds = [
        plan.lower_bound
        for name, plan in plans
        if name in ("auto", "exact") and not isinstance(plan, str)
    ]
    least = min((choice.bytes for choice in choices if not choice.refused), default=0)
    bound = min(max(bounds, default=0), least)
    # A proof over the candidates of one mesh does not hold for those of another mesh.  All choices
    # that move no more bytes than a proven one are as good.
    proven = any(choice.proven_optimal and choice.bytes <= bound for choice in choices)
    choices = [
        replace(choice, proven_optimal=proven and not choice.refused and choice.bytes <= bound)
        for choice in choices
    ]
    return Comparison(workers, bound, tuple(choices), kept)
