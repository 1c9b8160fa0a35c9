"""Pictures of the concept pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from IPython.display import SVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

#: A colour-blind-safe palette (Okabe and Ito), one colour for each worker.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

#: Readable on white and on black.
INK = "#808080"


def grids(
    drawn: Sequence[tuple[str, int, int, Callable[[int, int], int]]], columns: int = 4
) -> SVG:
    """Matrices cut into tiles, each in the colour of its worker, with the worker's number.

    Parameters
    ----------
    drawn
        For each matrix: a title, the tiles along both axes, and a function from the index of a
        tile to the number of its worker.
    columns
        Matrices in a row.
    """
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(2.4 * min(columns, len(drawn)), 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, min(columns, len(drawn)), squeeze=False).ravel()
    for plot in axes:
        plot.axis("off")
    for plot, (title, high, wide, worker) in zip(axes, drawn, strict=False):
        plot.set_title(title, fontsize=10, color=INK)
        plot.set_xlim(0, 1)
        plot.set_ylim(1, 0)
        plot.set_aspect("equal")
        for i in range(high):
            for j in range(wide):
                number = worker(i, j)
                place = (j / wide, i / high)
                plot.add_patch(
                    Rectangle(
                        place, 1 / wide, 1 / high, facecolor=COLOURS[number % len(COLOURS)],
                        edgecolor="white", linewidth=1.5,
                    )
                )  # fmt: skip
                plot.text(
                    place[0] + 0.5 / wide, place[1] + 0.5 / high, str(number),
                    ha="center", va="center", fontsize=9, color="black",
                )  # fmt: skip
    return _svg(figure)


def boxes(
    places: dict[str, tuple[float, float]],
    arrows: Sequence[tuple[str, str, str]],
    size: tuple[float, float] = (7.0, 3.0),
) -> SVG:
    """Boxes with names, and arrows with labels between them; places are in units of boxes."""
    figure = Figure(figsize=size, layout="constrained")
    plot = figure.subplots()
    plot.axis("off")
    wide, high = 0.7, 0.36
    for number, (name, (x, y)) in enumerate(places.items()):
        plot.add_patch(
            FancyBboxPatch(
                (x - wide / 2, y - high / 2), wide, high, boxstyle="round,pad=0.03",
                facecolor=COLOURS[number % len(COLOURS)], edgecolor="none", alpha=0.85,
            )
        )  # fmt: skip
        plot.text(x, y, name, ha="center", va="center", fontsize=10, color="black")
    for start, end, label in arrows:
        (x, y), (u, v) = places[start], places[end]
        side = 0.09 if (x, y) < (u, v) else -0.09
        flat = abs(x - u) > abs(y - v)
        dx, dy = (0, side) if flat else (side, 0)
        inset_x = (wide / 2 + 0.06) * (1 if u > x else -1) if flat else 0
        inset_y = 0 if flat else (high / 2 + 0.06) * (1 if v > y else -1)
        plot.add_patch(
            FancyArrowPatch(
                (x + inset_x + dx, y + inset_y + dy), (u - inset_x + dx, v - inset_y + dy),
                arrowstyle="-|>", mutation_scale=12, color=INK, linewidth=1.4,
            )
        )  # fmt: skip
        plot.text(
            (x + u) / 2 + 1.4 * dx, (y + v) / 2 + 1.9 * dy, label, fontsize=9, color=INK,
            ha="center" if flat else ("left" if dx > 0 else "right"), va="center",
        )  # fmt: skip
    xs = [x for x, _ in places.values()]
    ys = [y for _, y in places.values()]
    plot.set_xlim(min(xs) - 0.6, max(xs) + 0.6)
    plot.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
    return _svg(figure)


def _svg(figure: Figure) -> SVG:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return SVG(file.getvalue())
