"""A page about dasktile in the dashboard of the scheduler, at ``/dasktile``.

Distributed's dashboard is a Bokeh application in the list of applications of the scheduler's HTTP
server; this page is another one in that list.
"""

from __future__ import annotations

import html
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Scheduler

from dasktile._compat.distributed import pages
from dasktile.report.axes import add_legend, colour, count_in_bytes
from dasktile.report.formatting import format_bytes, format_count
from dasktile.report.layer_names import owners, short_names
from dasktile.report.palette import BLUE, GREEN, ORANGE, RED, SKY
from dasktile.runtime.metrics import PlanCounts
from dasktile.runtime.worker.plugin import Summary

logger = logging.getLogger(__name__)

#: Name of the page in the dashboard's menu.
_PAGE = "dasktile"

#: Milliseconds between two updates of the page; heartbeats arrive every 500 ms or more.
_UPDATE_INTERVAL = 1000

#: Number of rows of a chart at the most, those with the most bytes.
_MAX_BARS = 40

#: Text has the colour of the page, which is light or dark.
_TEXT: dict[str, str | None] = {"color": "inherit"}

#: Colours of the tiers, the fastest first; tiers of other names are grey.
_TIERS = {"device": GREEN, "memory": BLUE, "disk": ORANGE}


def add_page(scheduler: Scheduler, plugin: PlanCounts) -> bool:
    """Add the page to a scheduler's dashboard.  Never raises.

    Call it on the event loop of the scheduler.

    Parameters
    ----------
    scheduler
        The running scheduler.
    plugin
        Its plugin; ``errors`` is incremented for every exception.

    Returns
    -------
    Whether the page was added: False without a dashboard.
    """
    try:
        remove_page(scheduler)
        return pages.add_page(scheduler, _PAGE, _Document(plugin))
    except Exception:
        plugin.errors += 1
        logger.exception("dasktile could not add its page to the dashboard")
        return False


def remove_page(scheduler: Scheduler) -> None:
    """Remove the page; does nothing if there is none.  Never raises.

    Pages that are open in a browser are not updated any more.

    Parameters
    ----------
    scheduler
        The scheduler that was given to `add_page`.
    """
    try:
        pages.remove_page(scheduler, _PAGE)
    except Exception:
        logger.exception("dasktile could not remove its page from the dashboard")


def layer_bars(
    predicted: Mapping[str, int], rows: Mapping[str, str], workers: Iterable[Summary]
) -> dict[str, tuple[int, int]]:
    """Bytes predicted and received, of the layers with the most bytes.

    A heartbeat has only the largest layers of its worker, so that bytes of small layers may be
    missing.

    Parameters
    ----------
    predicted
        Predicted bytes by layer.
    rows
        By name of a layer, the layer whose predicted bytes include those received for it.
    workers
        The last summary of every worker.

    Returns
    -------
    Predicted and received bytes by readable name of the layer, most bytes first.
    """
    by_layer: dict[str, int] = {}
    for summary in workers:
        for layer, size in summary.layers.items():
            by_layer[layer] = by_layer.get(layer, 0) + size
    received: Counter[str] = Counter()
    owner = owners(predicted, rows)
    for layer, size in by_layer.items():
        received[owner(layer)] += size
    names = short_names([*predicted, *sorted(received.keys() - predicted.keys())])
    bars = {
        name: (predicted.get(layer, 0), received[layer])
        for layer, name in names.items()
        if predicted.get(layer, 0) or received[layer]
    }
    largest = sorted(bars, key=lambda name: -max(bars[name]))
    return {name: bars[name] for name in largest[:_MAX_BARS]}


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What a worker holds, or the mean of several workers.

    Parameters
    ----------
    about
        The address, for the tooltip.
    on
        Bytes on each tier.
    received
        Bytes received from other workers.
    tiles
        Number of results.
    """

    about: str
    on: Mapping[str, int]
    received: int
    tiles: int


def worker_rows(workers: Mapping[str, tuple[object, Summary]]) -> dict[str, WorkerRow]:
    """What workers hold: those that hold most, then the mean of all others.

    Parameters
    ----------
    workers
        Name and last summary of every worker, by address.

    Returns
    -------
    The rows by readable name.
    """
    # A worker without dasktile's store has all of its results in memory, as far as is known.
    on = {
        address: summary.store.get("held") or {"memory": summary.held}
        for address, (_, summary) in workers.items()
    }
    most = _MAX_BARS if len(workers) <= _MAX_BARS else _MAX_BARS - 1
    largest = sorted(workers, key=lambda address: (-sum(on[address].values()), address))
    uses = Counter(str(name) for name, _ in workers.values())
    rows: dict[str, WorkerRow] = {}
    # in an order that does not change while the bytes do
    for address in sorted(largest[:most], key=lambda address: _natural(workers[address][0])):
        name, summary = workers[address]
        label = _label(address, str(name), uses[str(name)] == 1)
        rows[label] = WorkerRow(address, on[address], summary.received, summary.tiles)
    others = largest[most:]
    if others:
        total: Counter[str] = Counter()
        for address in others:
            total.update(on[address])
        count = len(others)
        rows[f"{count:,} others, mean"] = WorkerRow(
            "the mean of all workers that hold less",
            {tier: size // count for tier, size in total.items()},
            sum(workers[address][1].received for address in others) // count,
            sum(workers[address][1].tiles for address in others) // count,
        )
    return rows


def _label(address: str, name: str, is_unique: bool) -> str:
    """How a worker is named: by its name, or by its address if its name is a number or another's.

    Dask's own pages and ``dasktile.metrics`` name workers by their addresses.
    """
    short = address.rpartition("://")[2]
    if name == address or not is_unique:
        return short
    return f"{short} ({name})" if name.isdigit() else name


def _natural(name: object) -> tuple[bool, int, str]:
    """Sort key of names of workers: numbers first."""
    text = str(name)
    return not text.isdigit(), int(text) if text.isdigit() else 0, text


def tier_totals(workers: Iterable[Summary]) -> dict[str, tuple[int, int]]:
    """Bytes spilled to and read back from each tier, on all workers, by tier."""
    spilled: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for summary in workers:
        spilled.update(summary.store.get("spilled", {}))
        read.update(summary.store.get("read_back", {}))
    tiers = sorted({*spilled, *read}, key=_tier_place)
    return {tier: (spilled[tier], read[tier]) for tier in tiers}


def _tier_place(tier: str) -> tuple[int, str]:
    """Sort key of tiers: the fastest first."""
    known = list(_TIERS)
    return (known.index(tier) if tier in known else len(known)), tier


class _Document:
    """Creates the page for every browser that opens it."""

    def __init__(self, plugin: PlanCounts) -> None:
        self.plugin = plugin

    def __call__(self, scheduler: Scheduler, extra: Mapping[str, Any], doc: Any) -> None:
        charts = _Charts(scheduler, self.plugin)
        charts.update()
        doc.title = "Dask: dasktile"
        doc.add_root(charts.root)
        doc.template_variables.update(extra)
        pages.style(doc)
        doc.add_periodic_callback(charts.update, _UPDATE_INTERVAL)


class _Charts:
    """The charts of the page."""

    def __init__(self, scheduler: Scheduler, plugin: PlanCounts) -> None:
        from bokeh.layouts import column, row
        from bokeh.models.widgets import Div

        self.scheduler = scheduler
        self.plugin = plugin
        self.summary = Div(text="", sizing_mode="stretch_width", styles=_TEXT)
        self.layers = _Bars(
            "Bytes received from other workers, by layer",
            "Predicted for the plans (bytes_counted of explain), filled as workers receive the"
            " bytes. matmul 2 is the second layer of that operation.",
            {"predicted": SKY, "received": BLUE},
            nested=True,
        )
        self.workers = _Bars(
            "Bytes held by worker, by tier",
            "A result with a copy on disk counts in memory and on disk.",
            _TIERS,
            details={"address": "about", "received": "received", "results": "tiles"},
            stacked=True,
        )
        self.tiers = _Bars(
            "Bytes spilled and read back, by tier",
            "Sums of all workers: to each tier from the one above, and back.",
            {"spilled": ORANGE, "read back": BLUE},
        )
        self.tasks = _Bars(
            "Tasks",
            "Placed tasks have a home worker; root tasks are held back until it is free.",
            {"tasks": BLUE},
            in_bytes=False,
        )
        # side by side where there is room
        half = {"flex": "1 1 340px", "min-width": "0"}
        left = column(self.workers.root, sizing_mode="stretch_width", styles=half)
        right = column(self.tiers.root, self.tasks.root, sizing_mode="stretch_width", styles=half)
        self.root = column(
            self.summary,
            self.layers.root,
            row(
                left,
                right,
                sizing_mode="stretch_width",
                styles={"flex-wrap": "wrap", "gap": "1.5em"},
            ),
            sizing_mode="stretch_width",
            styles={"max-width": "100%", "padding": "0 1em", "box-sizing": "border-box"},
        )

    def update(self) -> None:
        # The page may still be open after the plugin was removed.
        applications = pages.applications(self.scheduler)
        if not any(pages.has_page(each, f"/{_PAGE}") for each in applications):
            return
        try:
            self._update()
        except Exception:
            self.plugin.errors += 1
            if self.plugin.errors == 1:
                logger.exception("dasktile could not update its page")

    def _update(self) -> None:
        workers = {
            address: (worker.name, summary)
            for address, worker in self.scheduler.workers.items()
            if (summary := Summary.of(worker.metrics)) is not None
        }
        summaries = [summary for _, summary in workers.values()]
        self.summary.text = self._text(summaries)
        layers = layer_bars(self.plugin.predicted, self.plugin.rows, summaries)
        self.layers.show(
            {
                name: {"predicted": predicted, "received": received}
                for name, (predicted, received) in layers.items()
            }
        )
        self.workers.show(
            {
                name: {
                    **row.on,
                    "about": row.about,
                    "received": format_bytes(row.received),
                    "tiles": f"{row.tiles:,}",
                }
                for name, row in worker_rows(workers).items()
            }
        )
        self.tiers.show(
            {
                tier: {"spilled": spilled, "read back": read}
                for tier, (spilled, read) in tier_totals(summaries).items()
            }
        )
        run = sum(summary.tasks for summary in summaries)
        counts = {"held back": self.plugin.held, "placed": self.plugin.placed, "run": run}
        self.tasks.show({name: {"tasks": count} for name, count in counts.items()})

    def _text(self, summaries: Sequence[Summary]) -> str:
        received = format_bytes(sum(summary.received for summary in summaries))
        predicted = format_bytes(sum(self.plugin.predicted.values()))
        errors = self.plugin.errors + sum(summary.errors for summary in summaries)
        parts = [
            f"{len(summaries):,} of {len(self.scheduler.workers):,} workers",
            f"received {received} from each other",
            f"predicted {predicted}",
            format_count(errors, "error"),
        ]
        if errors:
            parts[-1] = f"<b style='color: {RED}'>{parts[-1]} inside dasktile, see the logs</b>"
        return " · ".join(parts)


class _Bars:
    """A chart of horizontal bars with a title, an explanation and a legend.

    Parameters
    ----------
    title, explanation
        One line each.
    colours
        Colours of the numbers of a row, by name.
    details
        Further values of a row for its tooltip: their columns, by the name that is shown.
    nested
        Whether the second bar of a row is within the first.
    stacked
        Whether the bars of a row are joined to one.
    in_bytes
        Whether the numbers are bytes.
    """

    def __init__(
        self,
        title: str,
        explanation: str,
        colours: Mapping[str, str],
        *,
        details: Mapping[str, str] | None = None,
        nested: bool = False,
        stacked: bool = False,
        in_bytes: bool = True,
    ) -> None:
        from bokeh.layouts import column
        from bokeh.models import (
            BasicTicker,
            ColumnDataSource,
            DataRange1d,
            FactorRange,
            HoverTool,
            NumeralTickFormatter,
        )
        from bokeh.models.annotations import LegendItem
        from bokeh.models.widgets import Div
        from bokeh.plotting import figure

        self.title, self.explanation = title, explanation
        self.colours, self.details = colours, dict(details or {})
        self.format: Callable[[int], str] = format_bytes if in_bytes else "{:,}".format
        self.stacked = stacked
        self.source = ColumnDataSource(self._columns({}))
        self.chart: Any = figure(
            x_range=DataRange1d(start=0, default_span=1024 if in_bytes else 10),
            y_range=FactorRange(factors=[]),
            x_axis_label="bytes" if in_bytes else "tasks",
            tools="",
            toolbar_location=None,
            height=100,
            min_width=200,
            sizing_mode="stretch_width",
        )
        items: list[Any] = []
        left = 0.0
        for number, (name, filled) in enumerate(colours.items()):
            height = 0.8
            if nested:
                height = 0.8 if number == 0 else 0.4
            elif not stacked:
                height = 0.8 / len(colours)
                left = 0.4 - (number + 0.5) * height
            bars: Any = self.chart.hbar(
                source=self.source,
                y=_shifted(left, self.chart.y_range),
                left=f"{name} from" if stacked else 0,
                right=f"{name} to" if stacked else name,
                height=height * 0.92,
                color=filled,
                line_color=None,
            )
            items.append(LegendItem(label=name, renderers=[bars]))
        chart: Any = self.chart
        self.legend_items = items
        add_legend(chart, items)
        colour(chart)
        if in_bytes:
            count_in_bytes(chart.xaxis[0])
        else:
            chart.xaxis.ticker = BasicTicker(mantissas=[1, 2, 5], min_interval=1)
            chart.xaxis.formatter = NumeralTickFormatter(format="0,0")
        chart.xgrid.ticker = chart.xaxis.ticker
        chart.ygrid.visible = False
        tips = [("", "@name"), *((name, f"@{{{name} text}}") for name in colours)]
        tips += [(name, f"@{{{column}}}") for name, column in self.details.items()]
        chart.add_tools(HoverTool(tooltips=tips, point_policy="follow_mouse"))
        self.heading = Div(sizing_mode="stretch_width", styles={**_TEXT, "margin-top": "0.8em"})
        self.root = column(
            self.heading, chart, sizing_mode="stretch_width", styles={"min-width": "0"}
        )
        self._describe(0)

    def _describe(self, rows: int) -> None:
        """Write the title and the explanation, and hide a chart without rows."""
        explanation = self.explanation if rows else f"{self.explanation} Nothing so far."
        text = (
            f"<div style='font-weight: bold; font-size: 14px'>{html.escape(self.title)}</div>"
            f"<div style='font-size: 12px; opacity: 0.8'>{html.escape(explanation)}</div>"
        )
        if self.heading.text != text:
            self.heading.text = text
            self.chart.visible = rows > 0

    def _columns(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
        data: dict[str, list[Any]] = {"name": list(rows)}
        ends = [0] * len(rows)
        for name in self.colours:
            values = [row.get(name, 0) for row in rows.values()]
            data[name] = values
            data[f"{name} text"] = [self.format(value) for value in values]
            if self.stacked:
                data[f"{name} from"] = ends
                ends = [end + value for end, value in zip(ends, values, strict=True)]
                data[f"{name} to"] = ends
        for column in self.details.values():
            data[column] = [row.get(column, "") for row in rows.values()]
        return data

    def show(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Show numbers and details by name of a row, the first row on top."""
        data = self._columns(rows)
        if self.source.data == data:
            return
        # Bokeh draws the last row on top.
        names = data["name"][::-1]
        if self.chart.y_range.factors != names:
            self.chart.y_range.factors = names
            self.chart.height = 95 + 26 * max(len(names), 1)
        self.source.data = data
        self._describe(len(rows))
        if self.stacked:
            for item, name in zip(self.legend_items, self.colours, strict=True):
                item.visible = any(data[name])


def _shifted(by: float, factors: Any) -> Any:
    from bokeh.transform import dodge

    return dodge("name", by, range=factors)
