"""The figures of the papers and those of dasktile, in one table.

    python -m benchmarks.papers [NAME ...] [--quick] [--out benchmarks/results/papers.md]

Every experiment is a module of this package and can be run alone, some with more detail.  Bytes are
those of models and hardly depend on the machine; seconds do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

#: Modules, in the order of the table.
NAMES = ("soybean", "spartan", "applications", "als", "eindecomp", "matmul_bounds", "swapadvisor")

COLUMNS = ("experiment", "what", "paper", "ours", "note")


def collect(names: Sequence[str], quick: bool, log: Callable[[str], None]) -> list[list[str]]:
    """The rows of all experiments."""
    table = []
    for name in names:
        start = time.perf_counter()
        rows = import_module(f"benchmarks.papers.{name}").rows
        takes_quick = "quick" in rows.__code__.co_varnames[: rows.__code__.co_argcount]
        table += [_row(row) for row in (rows(quick=quick) if takes_quick else rows())]
        log(f"{name}: {time.perf_counter() - start:.1f} s")
    return table


def _row(row: dict[str, Any]) -> list[str]:
    if "ours" not in row:
        # bytes by the paper's formula and by the exact model
        ours = [f"{what} {row[what]}" for what in ("formula", "exact") if row.get(what) is not None]
        row = {**row, "ours": ", ".join(ours)}
    return ["" if row.get(column) is None else str(row[column]) for column in COLUMNS]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The rows as a table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in lines
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="skip the slow parts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    errors = Console(stderr=True)
    rows = collect(
        options.names or NAMES, options.quick, lambda text: errors.print(text, style="dim")
    )
    text = markdown(rows)
    print(text)
    if options.out is not None:
        options.out.write_text(f"# The papers' figures, and ours\n\n{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
