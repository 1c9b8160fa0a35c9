"""A page about dasktile in the dashboard of the scheduler, at ``/dasktile``.

Distributed's dashboard is a Bokeh application in the list of applications of the scheduler's HTTP
server; this page is another one in that list.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Scheduler

from dasktile._compat import distributed as internals
from dasktile.report.explanation import format_bytes
from dasktile.runtime.metrics import PlanCounts, owners, short_name
from dasktile.runtime.worker.plugin import Summary

logger = logging.getLogger(__name__)

#: Name of the page in the dashboard's menu.
_PAGE = "dasktile"

#: Milliseconds between two updates of the page; heartbeats arrive every 500 ms or more.
_UPDATE_INTERVAL = 1000

#: Number of rows of a chart at the most, those with the most bytes.
_MAX_BARS = 40


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
        return internals.add_page(scheduler, _PAGE, _Document(plugin))
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
        internals.remove_page(scheduler, _PAGE)
    except Exception:
        logger.exception("dasktile could not remove its page from the dashboard")


def layer_bars(
    predicted: Mapping[str, int], workers: Sequence[Summary]
) -> dict[str, tuple[int, int]]:
    """Bytes predicted and received, of the layers with the most bytes.

    A heartbeat has only the largest layers of its worker, so that bytes of small layers may be
    missing.

    Parameters
    ----------
    predicted
        Predicted bytes by layer.
    workers
        The last summary of every worker.

    Returns
    -------
    Predicted and received bytes by layer, most bytes first.
    """
    plan: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for layer, size in predicted.items():
        plan[short_name(layer)] += size
    owner = owners(predicted)
    for summary in workers:
        for layer, size in summary.layers.items():
            received[short_name(owner(layer))] += size
    names = sorted({*plan, *received}, key=lambda name: (-max(plan[name], received[name]), name))
    return {name: (plan[name], received[name]) for name in names[:_MAX_BARS]}


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
        internals.style(doc)
        doc.add_periodic_callback(charts.update, _UPDATE_INTERVAL)


class _Charts:
    """The charts of the page: one of layers, one of workers."""

    def __init__(self, scheduler: Scheduler, plugin: PlanCounts) -> None:
        from bokeh.layouts import column
        from bokeh.models.widgets import Div

        self.scheduler = scheduler
        self.plugin = plugin
        self.summary = Div(text="", sizing_mode="stretch_width")
        self.layers, self.layer_source = _bars(
            "Bytes received from other workers, by layer",
            {"predicted": "#bbbbbb", "received": "#4477aa"},
        )
        self.workers, self.worker_source = _bars(
            "Bytes by worker, and number of tiles held",
            {"received": "#4477aa", "held": "#ccbb44"},
            label="held",
        )
        self.root = column(self.summary, self.layers, self.workers, sizing_mode="stretch_width")

    def update(self) -> None:
        # The page may still be open after the plugin was removed.
        applications = internals.applications(self.scheduler)
        if not any(internals.has_page(each, f"/{_PAGE}") for each in applications):
            return
        try:
            self._update()
        except Exception:
            self.plugin.errors += 1
            if self.plugin.errors == 1:
                logger.exception("dasktile could not update its page")

    def _update(self) -> None:
        summaries = {
            address: summary
            for address, worker in self.scheduler.workers.items()
            if (summary := Summary.of(worker.metrics)) is not None
        }
        received = sum(summary.received for summary in summaries.values())
        self.summary.text = (
            f"{len(summaries)} of {len(self.scheduler.workers)} workers received"
            f" {format_bytes(received)} from each other,"
            f" predicted {format_bytes(sum(self.plugin.predicted.values()))};"
            f" {self.plugin.placed:,} tasks placed, {self.plugin.errors:,} errors"
        )
        layers = layer_bars(self.plugin.predicted, list(summaries.values()))
        _show(
            self.layers,
            self.layer_source,
            {
                "name": list(layers),
                "predicted": [plan for plan, _ in layers.values()],
                "received": [received for _, received in layers.values()],
                "label": [""] * len(layers),
            },
        )
        largest = sorted(summaries, key=lambda address: (-summaries[address].received, address))[
            :_MAX_BARS
        ]
        _show(
            self.workers,
            self.worker_source,
            {
                "name": largest,
                "received": [summaries[address].received for address in largest],
                "held": [summaries[address].held for address in largest],
                "label": [f"tiles: {summaries[address].tiles:,}" for address in largest],
            },
        )


def _bars(title: str, colours: Mapping[str, str], label: str = "") -> tuple[Any, Any]:
    """A chart of horizontal bars, one of each colour in every row, and its data source."""
    from bokeh.models import (
        ColumnDataSource,
        DataRange1d,
        FactorRange,
        HoverTool,
        NumeralTickFormatter,
    )
    from bokeh.plotting import figure
    from bokeh.transform import dodge

    source = ColumnDataSource({"name": [], "label": [], **{column: [] for column in colours}})
    chart = figure(
        title=title,
        x_range=DataRange1d(start=0),
        y_range=FactorRange(factors=[]),
        tools="",
        toolbar_location=None,
        height=100,
        sizing_mode="stretch_width",
    )
    for number, (column, colour) in enumerate(colours.items()):
        chart.hbar(
            source=source,
            y=dodge("name", 0.2 - 0.4 * number, range=chart.y_range),
            right=column,
            height=0.36,
            color=colour,
            legend_label=column,
        )
    if label:
        chart.text(
            source=source,
            x=label,
            y=dodge("name", -0.2, range=chart.y_range),
            text="label",
            x_offset=4,
            text_baseline="middle",
            text_font_size="11px",
        )
    chart.xaxis[0].formatter = NumeralTickFormatter(format="0.0 b")
    chart.ygrid.visible = False
    tips = [("", "@name"), *((column, f"@{column}{{0.0 b}}") for column in colours)]
    chart.add_tools(HoverTool(tooltips=tips, point_policy="follow_mouse"))
    return chart, source


def _show(chart: Any, source: Any, data: dict[str, list[Any]]) -> None:
    if source.data == data:
        return
    # Bokeh draws the last row on top.
    names = data["name"][::-1]
    if chart.y_range.factors != names:
        chart.y_range.factors = names
        chart.height = 100 + 34 * len(names)
    source.data = data
