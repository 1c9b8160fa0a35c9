"""A page about dasktile in the dashboard of the scheduler, at ``/dasktile``.

Distributed's dashboard is a Bokeh application behind the scheduler's HTTP server, which asks a
list of applications in turn; this is one more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Scheduler

from dasktile._compat import distributed as internals
from dasktile.report.explanation import format_bytes
from dasktile.runtime.metrics import Planned, owners, short_name
from dasktile.runtime.worker.plugin import Summary

logger = logging.getLogger(__name__)

#: Name of the page in the dashboard's menu.
_PAGE = "dasktile"

#: Milliseconds between two looks at the counts; heartbeats come every 500 ms or more.
_INTERVAL = 1000

#: Bars in a chart, those with most bytes.
_BARS = 40


def add_page(scheduler: Scheduler, plugin: Planned) -> bool:
    """Add the page to a scheduler's dashboard.  Never raises.

    Call it where the event loop of the scheduler runs.

    Parameters
    ----------
    scheduler
        The running scheduler.
    plugin
        Its plugin; ``errors`` is raised by one for every error.

    Returns
    -------
    False where nothing was added, because there is no dashboard.
    """
    try:
        remove_page(scheduler)
        return internals.add_page(scheduler, _PAGE, _Document(plugin))
    except Exception:
        plugin.errors += 1
        logger.exception("dasktile could not add its page to the dashboard")
        return False


def remove_page(scheduler: Scheduler) -> None:
    """Take the page away again.  Never raises, nor minds if there is none.

    Pages that are open in a browser stay there and change no more.

    Parameters
    ----------
    scheduler
        That was given to `add_page`.
    """
    try:
        internals.remove_page(scheduler, _PAGE)
    except Exception:
        logger.exception("dasktile could not remove its page from the dashboard")


def layer_bars(
    predicted: Mapping[str, int], workers: Sequence[Summary]
) -> dict[str, tuple[int, int]]:
    """Bytes predicted and received of the layers that have most.

    Heartbeats name some layers of each worker only, so that small ones may lack bytes.

    Parameters
    ----------
    predicted
        Bytes by layer.
    workers
        What they said last.

    Returns
    -------
    By layer, most bytes first.
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
    return {name: (plan[name], received[name]) for name in names[:_BARS]}


class _Document:
    """Writes the page for every browser that asks."""

    def __init__(self, plugin: Planned) -> None:
        self.plugin = plugin

    def __call__(self, scheduler: Scheduler, extra: Mapping[str, Any], doc: Any) -> None:
        charts = _Charts(scheduler, self.plugin)
        charts.update()
        doc.title = "Dask: dasktile"
        doc.add_root(charts.root)
        doc.template_variables.update(extra)
        internals.style(doc)
        doc.add_periodic_callback(charts.update, _INTERVAL)


class _Charts:
    """Bars of layers and of workers."""

    def __init__(self, scheduler: Scheduler, plugin: Planned) -> None:
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
        # The page may be open when the plugin, and this with it, is removed.
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
        told = {
            address: summary
            for address, worker in self.scheduler.workers.items()
            if (summary := Summary.of(worker.metrics)) is not None
        }
        received = sum(summary.received for summary in told.values())
        self.summary.text = (
            f"{len(told)} of {len(self.scheduler.workers)} workers received"
            f" {format_bytes(received)} from each other,"
            f" predicted {format_bytes(sum(self.plugin.predicted.values()))};"
            f" {self.plugin.placed:,} tasks placed, {self.plugin.errors:,} errors"
        )
        layers = layer_bars(self.plugin.predicted, list(told.values()))
        _show(
            self.layers,
            self.layer_source,
            {
                "name": list(layers),
                "predicted": [plan for plan, _ in layers.values()],
                "received": [seen for _, seen in layers.values()],
                "label": [""] * len(layers),
            },
        )
        most = sorted(told, key=lambda address: (-told[address].received, address))[:_BARS]
        _show(
            self.workers,
            self.worker_source,
            {
                "name": most,
                "received": [told[address].received for address in most],
                "held": [told[address].held for address in most],
                "label": [f"tiles: {told[address].tiles:,}" for address in most],
            },
        )


def _bars(title: str, colours: Mapping[str, str], label: str = "") -> tuple[Any, Any]:
    """A chart of horizontal bars, one of each colour in every row, and its data."""
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
    # The first row on top, where Bokeh has the last.
    names = data["name"][::-1]
    if chart.y_range.factors != names:
        chart.y_range.factors = names
        chart.height = 100 + 34 * len(names)
    source.data = data
