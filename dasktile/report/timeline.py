"""A picture of a plan: what is computed and copied when, and how much memory that takes."""

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

#: What pictures can be written as.
_FORMATS = (".svg", ".png", ".pdf", ".html")

#: Colours that people who see few of them can tell apart (Okabe and Ito).
_COLOURS = {"compute": "#0072B2", "copy in": "#009E73", "copy out": "#D55E00"}


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that takes time.

    Parameters
    ----------
    start, end
        Seconds.
    name
        What it is.
    """

    start: float
    end: float
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happens when.

    Parameters
    ----------
    lanes
        By name, bars that do not overlap.
    memory
        Seconds, and the bytes that are taken from then on.
    limit
        Bytes that there are.
    title
        One line.
    """

    lanes: dict[str, tuple[Bar, ...]]
    memory: tuple[tuple[float, int], ...]
    limit: int
    title: str


def draw(timeline: Timeline, filename: str | Path) -> Path:
    """Write a picture.

    Parameters
    ----------
    timeline
        What to draw.
    filename
        Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``.  A page of HTML has the picture and
        the longest bars in it, and refers to nothing elsewhere.

    Raises
    ------
    ValueError
        For another kind of file.
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
            "pictures of plans need matplotlib: pip install matplotlib, or dasktile[plans]"
        ) from None
    # the same picture has the same bytes
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
        f"<p>At most {format_bytes(most)} of {format_bytes(timeline.limit)} are taken.</p>"
        f"<img alt='timeline' src='data:image/svg+xml;base64,{data}'>{''.join(parts)}"
        "</body></html>\n"
    )


def _row(bar: Bar) -> str:
    start, takes = format_seconds(bar.start), format_seconds(bar.end - bar.start)
    return f"<tr><td>{start}</td><td>{takes}</td><td>{html.escape(bar.name)}</td></tr>"


def lane(bars: Sequence[tuple[float, float, str]]) -> tuple[Bar, ...]:
    """Bars from tuples."""
    return tuple(Bar(*bar) for bar in bars)
