"""What every tiling method would choose for one expression, priced alike, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dasktile.report.explanation import format_bytes
from dasktile.tiling.plan import TilingPlan


@dataclass(frozen=True, slots=True)
class Choice:
    """What one method chooses.

    Parameters
    ----------
    method
        Its name; ``"none"`` stands for the input's own chunks.
    bytes
        Moved between workers, by the exact model.
    tasks
        Number of tasks.
    peak
        Bytes of the largest task: its inputs and its result.
    proven_optimal
        True where it was proven that no tiling moves less.
    refused
        Why the method chooses nothing; empty where it does.
    """

    method: str
    bytes: int = 0
    tasks: int = 0
    peak: int = 0
    proven_optimal: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Comparison:
    """What several methods choose; print it.

    Parameters
    ----------
    workers
        Processes that send bytes to each other.
    lower_bound
        Bytes that no tiling in the model moves less than; 0 where the exact method was not
        asked.
    choices
        One for each method.
    kept
        Why ``optimize`` would leave the input as it is whatever the default chooses; empty where
        it would not, or nobody asked the default.
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
        found = "1 worker" if self.workers == 1 else f"{self.workers:,} workers"
        bound = format_bytes(self.lower_bound)
        said = f"{found}; no tiling moves less than {bound}\n\n" + "\n".join(lines)
        if self.kept:
            said += f"\n\noptimize would leave the input as it is: {self.kept}"
        return said

    def _row(self, choice: Choice) -> tuple[str, ...]:
        if choice.refused:
            return choice.method, "", "", "", "", choice.refused
        least = self.lower_bound
        times = "1.00" if choice.bytes <= least else f"{choice.bytes / least:.2f}" if least else "-"
        said = {"none": "the input's own chunks"}.get(choice.method, "")
        said = "proven optimal" if choice.proven_optimal else said
        return (choice.method, format_bytes(choice.bytes), times, f"{choice.tasks:,}",
                format_bytes(choice.peak), said)  # fmt: skip


def comparison(
    workers: int, plans: Sequence[tuple[str, TilingPlan | str]], kept: str = ""
) -> Comparison:
    """A comparison of plans by method; a text stands for the reason why there is none."""
    found = [
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
    # only the exact method bounds more than what it has chosen
    bounds = [
        plan.lower_bound
        for name, plan in plans
        if name in ("auto", "exact") and not isinstance(plan, str)
    ]
    least = min((choice.bytes for choice in found if not choice.refused), default=0)
    bound = min(max(bounds, default=0), least)
    # what is proven of the candidates of one mesh need not hold for those of another
    found = [
        replace(choice, proven_optimal=choice.proven_optimal and choice.bytes <= bound)
        for choice in found
    ]
    return Comparison(workers, bound, tuple(found), kept)
