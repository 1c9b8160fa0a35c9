"""The picture of a schedule: computation, copies and memory over time."""

from __future__ import annotations

import base64
import html
import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasktile.report.explanation import format_bytes, format_seconds

#: Suffixes of the files that can be written.
_FORMATS = (".svg", ".png", ".pdf", ".html")

#: A colour-blind-safe palette (Okabe and Ito).
_COLOURS = {"compute": "#0072B2", "copy in": "#009E73", "copy out": "#D55E00"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval of a lane: a task or a copy.

    Parameters
    ----------
    start, end
        Seconds.
    name
        Name of the task or of the array that is copied.
    """

    start: float
    end: float
    name: str


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
        Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``.  An HTML page contains the picture
        and a table of the longest bars, and loads nothing else.

    Raises
    ------
    ValueError
        If the suffix is another one.
    ImportError
        If matplotlib is not installed.
    """
    path = Path(filename)
    if path.suffix not in _FORMATS:
        raise ValueError(f"filename must end in {', '.join(_FORMATS)}; got {str(filename)!r}")
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise ImportError(
            "drawing a plan needs matplotlib: pip install matplotlib, or dasktile[plans]"
        ) from None
    # a fixed salt: the same picture gives the same file
    with matplotlib.rc_context({"svg.hashsalt": "dasktile"}):
        figure = _figure(timeline)
        if path.suffix == ".html":
            path.write_text(_page(timeline, figure), encoding="utf-8")
        else:
            figure.savefig(path, metadata=_undated(path.suffix))
    return path


def _undated(suffix: str) -> dict[str, Any] | None:
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)


def _figure(timeline: Timeline) -> Any:
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 4.5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 3))
    for row, (name, bars) in enumerate(reversed(timeline.lanes.items())):
        spans = [(bar.start, max(bar.end - bar.start, 0.0)) for bar in bars]
        upper.broken_barh(
            spans, (row - 0.4, 0.8), color=_COLOURS.get(name, "#999999"), edgecolor="white",
            linewidth=0.3 if len(spans) < 500 else 0.0,
        )  # fmt: skip
    upper.set_yticks(range(len(timeline.lanes)), list(reversed(timeline.lanes)))
    upper.set_title(timeline.title, loc="left", fontsize=10)
    seconds = [at for at, _ in timeline.memory]
    taken = [size / 1e9 for _, size in timeline.memory]
    lower.fill_between(seconds, taken, step="post", color=_COLOURS["compute"], alpha=0.4)
    lower.axhline(timeline.limit / 1e9, color="black", linewidth=0.8, linestyle="--")
    lower.set_xlabel("seconds")
    lower.set_ylabel("GB in memory")
    lower.set_ylim(bottom=0)
    return figure


def _page(timeline: Timeline, figure: Any) -> str:
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata=_undated(".svg"))
    data = base64.b64encode(picture.getvalue()).decode("ascii")
    parts = []
    for name, bars in timeline.lanes.items():
        total = sum(bar.end - bar.start for bar in bars)
        longest = sorted(bars, key=lambda bar: (bar.start - bar.end, bar.start))[:10]
        rows = "".join(map(_row, longest))
        parts.append(
            f"<h2>{html.escape(name)}: {len(bars):,}, {format_seconds(total)}</h2>"
            f"<table><tr><th>start</th><th>takes</th><th></th></tr>{rows}</table>"
        )
    most = max((size for _, size in timeline.memory), default=0)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(timeline.title)}</title><style>body{{font-family:sans-serif}}"
        "td,th{text-align:left;padding-right:1.5em}</style></head><body>"
        f"<h1>{html.escape(timeline.title)}</h1>"
        f"<p>Peak memory {format_bytes(most)}, limit {format_bytes(timeline.limit)}.</p>"
        f"<img alt='timeline' src='data:image/svg+xml;base64,{data}'>{''.join(parts)}"
        "</body></html>\n"
    )


def _row(bar: Bar) -> str:
    start, takes = format_seconds(bar.start), format_seconds(bar.end - bar.start)
    return f"<tr><td>{start}</td><td>{takes}</td><td>{html.escape(bar.name)}</td></tr>"


def lane(bars: Sequence[tuple[float, float, str]]) -> tuple[Bar, ...]:
    """Bars from tuples."""
    return tuple(Bar(*bar) for bar in bars)
