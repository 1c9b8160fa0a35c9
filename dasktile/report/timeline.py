"""The picture of a schedule: computation, copies and memory over time."""

from __future__ import annotations

import base64
import html
import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasktile.report.axes import (
    GREY,
    add_legend,
    byte_unit,
    colour,
    count_in_bytes,
    count_in_seconds,
    time_unit,
)
from dasktile.report.formatting import format_bytes, format_seconds
from dasktile.report.html import table
from dasktile.report.page import save_page, suffix_of
from dasktile.report.palette import BLUE, GREEN, LIGHT_GREY, ORANGE, RED

#: Suffixes of the files that can be written.
_FORMATS = (".svg", ".png", ".pdf", ".html")

_COLOURS = {"compute": BLUE, "copy in": GREEN, "copy out": ORANGE}

#: Pixels of a wide page.  Shorter bars than a pixel are merged with their neighbours.
_PIXELS = 1600

_MERGED = (
    " Neighbouring tasks and copies that are shorter than a pixel of the whole picture are drawn as"
    " one bar."
)

#: Rows of a table at the most.
_MAX_NAMES = 10

#: Of a page, which is as wide as the window.
_STYLE = """
body { font-family: sans-serif; margin: 1em; }
h1 { font-size: 1.3em; }
h2 { font-size: 1.1em; }
img { max-width: 100%; background: white; }
td, th { text-align: right; padding-right: 1.5em; }
.left { text-align: left; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval of a lane: a task or a copy.

    Parameters
    ----------
    start, end
        Seconds.
    name
        Name of the task or of the array that is copied.
    size
        Bytes of the results of the task, or of the array.
    count
        Number of tasks or copies; more than one for merged bars.
    busy
        Seconds that they take together, without the gaps between them.
    """

    start: float
    end: float
    name: str
    size: int = 0
    count: int = 1
    busy: float | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start if self.busy is None else self.busy


@dataclass(frozen=True, slots=True)
class Timeline:
    """The events of a schedule.

    Parameters
    ----------
    lanes
        For every lane, by name, its bars, which do not overlap.
    memory
        Pairs of a time in seconds and the bytes in memory from then on.
    limit
        Memory limit in bytes.
    title
        One line.
    """

    lanes: dict[str, tuple[Bar, ...]]
    memory: tuple[tuple[float, int], ...]
    limit: int
    title: str


def draw(timeline: Timeline, filename: str | Path) -> Path:
    """Write the picture of a schedule to a file.

    Parameters
    ----------
    timeline
        The schedule.
    filename
        Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``, in small or capital letters.  An HTML
        page contains the picture, interactive if bokeh is installed, and tables of the names that
        take most time.  It loads nothing else.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    ValueError
        If the suffix is another one.
    ImportError
        If matplotlib is not installed, nor bokeh for an HTML page.
    OSError
        If the file cannot be written.
    """
    path = Path(filename)
    suffix = suffix_of(path, _FORMATS)
    if suffix == ".html" and (picture := _interactive(timeline)) is not None:
        return save_page(path, timeline.title, _content(timeline, picture), _STYLE)
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        other = " or bokeh" if suffix == ".html" else ""
        raise ImportError(
            f"drawing a plan needs matplotlib{other}: pip install matplotlib"
        ) from None
    # a fixed salt: the same picture gives the same file
    with matplotlib.rc_context({"svg.hashsalt": "dasktile"}):
        figure = _figure(timeline)
        if suffix == ".html":
            save_page(path, timeline.title, _content(timeline, _static(figure)), _STYLE)
        else:
            figure.savefig(path, format=suffix[1:], metadata=_undated(suffix))
    return path


def _undated(suffix: str) -> dict[str, Any] | None:
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)


def _figure(timeline: Timeline) -> Any:
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 4.5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 3))
    unit, second = time_unit(_end(timeline))
    for row, (name, bars) in enumerate(reversed(timeline.lanes.items())):
        spans = [(bar.start / second, max(bar.end - bar.start, 0.0) / second) for bar in bars]
        upper.broken_barh(
            spans, (row - 0.4, 0.8), color=_COLOURS.get(name, LIGHT_GREY), edgecolor="white",
            linewidth=0.3 if len(spans) < 500 else 0.0,
        )  # fmt: skip
    upper.set_yticks(range(len(timeline.lanes)), list(reversed(timeline.lanes)))
    # lanes without bars as well
    upper.set_ylim(-0.5, len(timeline.lanes) - 0.5)
    upper.set_title(timeline.title, loc="left", fontsize=10)
    size_unit, size_bytes = byte_unit(max(timeline.limit, _peak(timeline)))
    # the last size holds to the end of the last bar
    steps = [*timeline.memory, *((_end(timeline), size) for _, size in timeline.memory[-1:])]
    seconds = [at / second for at, _ in steps]
    taken = [size / size_bytes for _, size in steps]
    lower.fill_between(seconds, taken, step="post", color=_COLOURS["compute"], alpha=0.4)
    lower.axhline(timeline.limit / size_bytes, color="black", linewidth=0.8, linestyle="--")
    lower.set_xlabel(f"time in {unit}")
    lower.set_ylabel(f"memory in {size_unit}")
    lower.set_ylim(bottom=0)
    return figure


def _end(timeline: Timeline) -> float:
    """Seconds at which the last bar ends."""
    ends = [bar.end for bars in timeline.lanes.values() for bar in bars]
    return max([*ends, *(at for at, _ in timeline.memory)], default=0.0)


def _peak(timeline: Timeline) -> int:
    """Most bytes in memory."""
    return max((size for _, size in timeline.memory), default=0)


def merged(bars: Sequence[Bar], shortest: float) -> list[Bar]:
    """Bars of which neighbours that are short are merged, so that a picture has few.

    Parameters
    ----------
    bars
        The bars of a lane, in order.
    shortest
        Seconds; shorter bars are merged with those that begin within this time.
    """
    result: list[Bar] = []
    group: list[Bar] = []

    def flush() -> None:
        if group:
            first = group[0]
            count = sum(bar.count for bar in group)
            name = first.name if count == 1 else f"{first.name} and {count - 1:,} more"
            size = sum(bar.size for bar in group)
            busy = sum(bar.seconds for bar in group)
            result.append(Bar(first.start, group[-1].end, name, size, count, busy))
            group.clear()

    for bar in bars:
        if group and bar.end - group[0].start > shortest:
            flush()
        if bar.end - bar.start >= shortest:
            result.append(bar)
        else:
            group.append(bar)
    flush()
    return result


def thinned(steps: Sequence[tuple[float, int]], shortest: float) -> list[tuple[float, int]]:
    """Steps of a curve, of those within a short time only the highest and the last."""
    result: list[tuple[float, int]] = []
    start, best, last = 0.0, (0.0, 0), (0.0, 0)
    for step in steps:
        if result and step[0] - start < shortest:
            best = max(best, step, key=lambda each: each[1])
            last = step
            continue
        if result:
            result += [each for each in dict.fromkeys((best, last)) if each != result[-1]]
        result.append(step)
        start, best, last = step[0], step, step
    if result:
        result += [each for each in dict.fromkeys((best, last)) if each != result[-1]]
    return result


def _interactive(timeline: Timeline) -> str | None:
    """A picture in which one can zoom, as HTML; None without bokeh."""
    try:
        layouts, models, plotting, resources, embed = map(
            importlib.import_module,
            ("bokeh.layouts", "bokeh.models", "bokeh.plotting", "bokeh.resources", "bokeh.embed"),
        )
    except ImportError:
        return None
    end = _end(timeline) or 1.0
    # farther out there is nothing to see
    shared = models.Range1d(0, end, bounds=(-0.02 * end, 1.02 * end))
    options = {"x_range": shared, "sizing_mode": "stretch_width",
               "min_width": 200, "active_scroll": "xwheel_zoom"}  # fmt: skip
    tools = "xpan,xwheel_zoom,xbox_zoom,reset"
    upper = plotting.figure(
        y_range=models.FactorRange(factors=list(reversed(timeline.lanes))),
        height=210, tools=tools, **options,
    )  # fmt: skip
    items, several = [], 0
    for name, bars in timeline.lanes.items():
        drawn = merged(bars, end / _PIXELS)
        several += sum(bar.count > 1 for bar in drawn)
        label = f"{name}: {len(bars):,}"
        if len(drawn) < len(bars):
            label += f" in {len(drawn):,} bars"
        source = models.ColumnDataSource(
            {
                "lane": [name] * len(drawn),
                "start": [bar.start for bar in drawn],
                "end": [bar.end for bar in drawn],
                "name": [bar.name for bar in drawn],
                "starts": [format_seconds(bar.start) for bar in drawn],
                "takes": [format_seconds(bar.seconds) for bar in drawn],
                "bytes": [format_bytes(bar.size) for bar in drawn],
            }
        )
        rows = upper.hbar(
            source=source, y="lane", left="start", right="end", height=0.8,
            color=_COLOURS.get(name, GREY), line_color=None,
        )  # fmt: skip
        items.append(models.LegendItem(label=label, renderers=[rows]))
    tips = [("", "@name"), ("start", "@starts"), ("takes", "@takes"), ("bytes", "@bytes")]
    upper.add_tools(models.HoverTool(tooltips=tips, point_policy="follow_mouse"))
    most = max(timeline.limit, _peak(timeline), 1)
    lower = plotting.figure(
        y_range=models.Range1d(0, 1.08 * most), height=280, tools=tools,
        y_axis_label="bytes in memory", x_axis_label="time", **options,
    )  # fmt: skip
    steps = thinned(timeline.memory, end / _PIXELS)
    ends = [at for at, _ in steps[1:]] + [end]
    source = models.ColumnDataSource(
        {
            "left": [at for at, _ in steps],
            "right": ends[: len(steps)],
            "top": [size for _, size in steps],
            "at": [format_seconds(at) for at, _ in steps],
            "bytes": [format_bytes(size) for _, size in steps],
        }
    )
    area = lower.quad(
        source=source, left="left", right="right", top="top", bottom=0, color=BLUE, alpha=0.5,
        line_color=None,
    )  # fmt: skip
    line = lower.line([0, end], [timeline.limit] * 2, color=RED, line_width=2, line_dash="dashed")
    tips = [("from", "@at"), ("in memory", "@bytes")]
    hover = models.HoverTool(tooltips=tips, renderers=[area], point_policy="follow_mouse")
    lower.add_tools(hover)
    for chart in (upper, lower):
        colour(chart)
        chart.min_border_left = 80
        count_in_seconds(chart.xaxis[0], end)
    upper.xaxis.visible = upper.ygrid.visible = False
    count_in_bytes(lower.yaxis[0])
    lower.ygrid.ticker = lower.yaxis.ticker
    add_legend(upper, items)
    limit = f"limit {format_bytes(timeline.limit)}"
    add_legend(
        lower,
        [
            models.LegendItem(label="in memory", renderers=[area]),
            models.LegendItem(label=limit, renderers=[line]),
        ],
    )
    charts = layouts.gridplot(
        [[upper], [lower]], toolbar_location="right", sizing_mode="stretch_width"
    )
    charts.toolbar.logo = None
    item = json.dumps(_renumbered(embed.json_item(charts, "timeline"), {}))
    # no name may end the script, or begin a comment or another script
    item = item.replace("<", r"\u003c")
    scripts = resources.Resources(mode="inline", components=["bokeh"]).js_raw
    return (
        "<p>Drag to move, turn the wheel to zoom; both charts move together."
        f"{_MERGED if several else ''}</p>"
        "<div id='timeline'></div>"
        + "".join(f"<script>{script}</script>" for script in scripts)
        + f"<script>Bokeh.embed.embed_item({item})</script>"
    )


def _renumbered(value: Any, names: dict[str, str]) -> Any:
    """A bokeh document whose models are counted from 0, so that a plan always gives one file.

    Bokeh counts on from one document to the next.  Only the keys that hold names of models are
    changed, as names of tasks may look like them.
    """
    if isinstance(value, dict):
        return {
            key: names.setdefault(item, f"p{len(names)}")
            if key in ("id", "root_id") and isinstance(item, str)
            else _renumbered(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_renumbered(item, names) for item in value]
    return value


def _static(figure: Any) -> str:
    """The picture of matplotlib as HTML."""
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata=_undated(".svg"))
    data = base64.b64encode(picture.getvalue()).decode("ascii")
    return f"<img alt='timeline' src='data:image/svg+xml;base64,{data}'>"


def _content(timeline: Timeline, picture: str) -> str:
    """What a page shows: the picture, and a table for every lane, as HTML."""
    peak, limit = format_bytes(_peak(timeline)), format_bytes(timeline.limit)
    parts = [f"<p>Peak memory {peak}, limit {limit}.</p>", picture]
    for name, bars in timeline.lanes.items():
        total = sum(bar.seconds for bar in bars)
        parts.append(f"<h2>{html.escape(name)}: {len(bars):,}, {format_seconds(total)}</h2>")
        parts.append(_table(bars))
    return "".join(parts)


def _table(bars: Sequence[Bar]) -> str:
    """The names that take most time, as HTML; empty without bars."""
    groups: dict[str, list[Bar]] = {}
    for bar in bars:
        groups.setdefault(bar.name, []).append(bar)
    longest = sorted(groups, key=lambda name: -sum(bar.seconds for bar in groups[name]))
    titles = ("name", "number", "takes", "longest", "bytes")
    rows = [
        (
            name,
            f"{len(groups[name]):,}",
            format_seconds(sum(bar.seconds for bar in groups[name])),
            format_seconds(max(bar.seconds for bar in groups[name])),
            format_bytes(sum(bar.size for bar in groups[name])),
        )
        for name in longest[:_MAX_NAMES]
    ]
    return table(titles, rows, total=len(groups))


def lane(bars: Sequence[tuple[float, float, str, int]]) -> tuple[Bar, ...]:
    """Bars from tuples."""
    return tuple(Bar(*bar) for bar in bars)
