"""Axes and legends of bokeh charts: bytes with binary units, seconds, in light and dark themes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Of texts and lines; it can be read on white and on black.
GREY = "#73787f"

#: A tick of an axis of bytes, in the unit of its size.
_BYTES = """
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    let size = Math.abs(tick), unit = 0
    while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1 }
    return `${+size.toFixed(1)} ${units[unit]}`
"""

#: A tick of an axis of seconds, in one unit for all ticks.
_SECONDS = "return `${+(tick * per_second).toPrecision(6)} ${unit}`"


def count_in_bytes(axis: Any) -> None:
    """Give an axis ticks at round numbers of bytes, such as 64 MiB."""
    models = import_module("bokeh.models")
    axis.ticker = models.AdaptiveTicker(
        base=1024, mantissas=[2.0**power for power in range(10)], desired_num_ticks=5
    )
    axis.formatter = models.CustomJSTickFormatter(code=_BYTES)


def count_in_seconds(axis: Any, longest: float) -> None:
    """Give an axis of seconds the unit in which its `longest` time has few digits."""
    models = import_module("bokeh.models")
    unit, seconds = time_unit(longest)
    arguments = {"per_second": 1 / seconds, "unit": unit}
    axis.formatter = models.CustomJSTickFormatter(code=_SECONDS, args=arguments)


def time_unit(longest: float) -> tuple[str, float]:
    """The name of a unit of time, and its seconds."""
    units = (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 600.0), ("min", 60.0, 36_000.0))
    return next(((unit, size) for unit, size, most in units if longest < most), ("h", 3600.0))


def byte_unit(most: float) -> tuple[str, int]:
    """The name of a unit of bytes, and its bytes."""
    power = max((power for power in range(5) if most >= 1024**power), default=0)
    return ("B", "KiB", "MiB", "GiB", "TiB")[power], 1024**power


def colour(chart: Any) -> None:
    """Give a chart colours that can be read on light and dark backgrounds."""
    for axis in chart.axis:
        axis.axis_label_text_color = axis.major_label_text_color = GREY
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_style = "normal"
    for grid in chart.grid:
        grid.grid_line_color = GREY
        grid.grid_line_alpha = 0.3
    chart.background_fill_color = chart.border_fill_color = chart.outline_line_color = None


def add_legend(chart: Any, items: list[Any]) -> None:
    """Add a legend above a chart, in one line."""
    legend = import_module("bokeh.models").Legend(items=items)
    legend.orientation, legend.location = "horizontal", "left"
    legend.padding = legend.margin = 0
    legend.border_line_color = legend.background_fill_color = None
    legend.label_text_color = GREY
    chart.add_layout(legend, "above")
