"""The counts of a cluster, as ``dasktile.metrics`` returns and shows them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dasktile.report import html as page
from dasktile.report.formatting import format_bytes, format_count
from dasktile.report.layer_names import short_name, short_names
from dasktile.report.page import save_report
from dasktile.report.tables import text_table

#: Rows of a printed table at the most.
_MAX_ROWS = 30

#: What the columns are.
_LEGEND = (
    "layer: an operation; matmul 2 is the second layer of that operation. row: of the explanation;"
    " 2 matmul is row 2, other: a layer of no row. predicted: bytes that workers receive by the"
    " plans, as bytes_counted of explain. received: bytes that they received from each other."
    " tiles, held: number of results on workers now, and their bytes, if there are any."
)


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """The counts of one layer, including its intermediate layers, on all workers.

    Parameters
    ----------
    received
        Bytes that workers received from each other for its tasks.
    predicted
        Bytes that they receive by the model of the plan; 0 for a layer of no plan.
    tiles, held
        Number of its results on workers, including replicas, and their bytes.
    """

    received: int = 0
    predicted: int = 0
    tiles: int = 0
    held: int = 0

    def plus(self, other: LayerCounts) -> LayerCounts:
        """The counts of two layers together."""
        return LayerCounts(
            self.received + other.received,
            self.predicted + other.predicted,
            self.tiles + other.tiles,
            self.held + other.held,
        )


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The counts of one worker.

    Parameters
    ----------
    received
        Bytes received from other workers.
    tasks
        Number of tasks that have run.
    tiles, held
        Number of results that it has, on any tier, and their bytes.
    spilled, read_back
        Bytes copied to each lower tier, and back from it.
    on
        Bytes on each tier now; empty for a worker that does not use dasktile's store.
    prefetched, hits
        Number of prefetched results, and of those that were prefetched on time: before a task
        requested them.
    blocked
        Seconds for which the event loop has waited for results to be read back.
    """

    received: int = 0
    tasks: int = 0
    tiles: int = 0
    held: int = 0
    spilled: Mapping[str, int] = field(default_factory=dict)
    read_back: Mapping[str, int] = field(default_factory=dict)
    on: Mapping[str, int] = field(default_factory=dict)
    prefetched: int = 0
    hits: int = 0
    blocked: float = 0.0


@dataclass(frozen=True)
class Metrics:
    """The counts of a cluster since dasktile was enabled, a restart, or the last reset.

    ``str()`` shows a table of layers and one of workers. *predicted* are the bytes of the plans
    by the model, the ``bytes_counted`` of ``explain``; *received* are measured. Where
    ``explain`` says that workers receive more *in all* than the plan moves, the rest is
    predicted for a layer ``bundle``, and received for the layers whose tasks read it. More is
    received than predicted where the sizes of results are unknown, as those of functions of the
    user.

    A number after an operation, as in ``matmul 2``, counts the layers of that operation; those of
    one operation are one row where there would be more than 30, as of a loop.  With an
    explanation, layers are shown as its rows: ``4 matmul`` is row 4 with all of its layers.  Bytes
    of an array that keeps its chunks are predicted for one of the operations that read it, and may
    be received for another, so that sums agree better than single layers do.

    Parameters
    ----------
    workers
        Counts of every worker, by address.
    layers
        Counts of every layer, by name, layers of plans first.
    placed
        Number of tasks that have got a home worker.
    stolen
        Number of these that ran on an idle worker, because their home worker was late: a function
        took long, or the worker was slow.  Bytes that are received for this are not predicted.
    errors
        Number of exceptions in dasktile's plugins on the scheduler and the workers.
    missing
        By address of a worker without counts: the reason.
    rows
        By name of a layer, the row of the given explanation that it belongs to, as ``4 matmul``;
        layers of other plans are missing.
    left
        Number of workers that left the cluster.
    of_left
        Their counts together, as of their last heartbeats: what they did since then is missing.
        All sums contain them.
    is_explained
        Whether an explanation was given.
    """

    workers: Mapping[str, WorkerCounts]
    layers: Mapping[str, LayerCounts]
    placed: int = 0
    errors: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    left: int = 0
    of_left: WorkerCounts = field(default_factory=WorkerCounts)
    is_explained: bool = False
    stolen: int = 0

    @property
    def by_row(self) -> dict[str, LayerCounts]:
        """Counts by row of the explanation, in its order; then those of all other layers."""
        names = dict(self.rows) | short_names(name for name in self.layers if name not in self.rows)
        order = sorted(self.layers, key=lambda name: _row_number(self.rows.get(name)))
        total: dict[str, LayerCounts] = {}
        for name in order:
            total[names[name]] = total.get(names[name], LayerCounts()).plus(self.layers[name])
        return total

    def _shown_layers(self) -> list[tuple[str, LayerCounts]]:
        """The counts of the first table: many layers, as of a loop, by their operation."""
        if self.rows:
            rows = set(self.rows.values())
            return [
                (name if name in rows else f"other: {name}", counts)
                for name, counts in self.by_row.items()
            ]
        layers = self.by_row
        if len(layers) > _MAX_ROWS:
            members = Counter(map(short_name, self.layers))
            layers = {}
            for name, counts in self.layers.items():
                operation = short_name(name)
                number = members[operation]
                title = f"{operation}, {number:,} layers" if number > 1 else operation
                layers[title] = layers.get(title, LayerCounts()).plus(counts)
        return sorted(
            layers.items(),
            key=lambda item: (item[1].predicted, item[1].received, item[1].held),
            reverse=True,
        )

    @property
    def received(self) -> dict[str, int]:
        """Bytes received from other workers, by address of the receiver."""
        return {address: counts.received for address, counts in self.workers.items()}

    @property
    def bytes_received(self) -> int:
        """Bytes that workers received from each other."""
        return sum(counts.received for counts in self._all())

    @property
    def bytes_spilled(self) -> int:
        """Bytes copied from any tier to one below, on all workers."""
        return sum(sum(counts.spilled.values()) for counts in self._all())

    @property
    def bytes_read_back(self) -> int:
        """Bytes copied from any tier to one above, on all workers."""
        return sum(sum(counts.read_back.values()) for counts in self._all())

    @property
    def bytes_predicted(self) -> int:
        """Bytes that workers receive by the model of the plans."""
        return sum(layer.predicted for layer in self.layers.values())

    @property
    def tasks(self) -> int:
        """Number of tasks that have run."""
        return sum(counts.tasks for counts in self._all())

    def _all(self) -> list[WorkerCounts]:
        """The counts of the workers that are there, and of those that left."""
        return [*self.workers.values(), self.of_left]

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, strings and numbers, ready for ``json.dumps``."""
        return {
            "bytes_received": self.bytes_received,
            "bytes_predicted": self.bytes_predicted,
            "bytes_spilled": self.bytes_spilled,
            "bytes_read_back": self.bytes_read_back,
            "tasks": self.tasks,
            "placed": self.placed,
            "stolen": self.stolen,
            "errors": self.errors,
            "workers": {address: asdict(counts) for address, counts in self.workers.items()},
            "layers": {name: asdict(layer) for name, layer in self.layers.items()},
            "missing": dict(self.missing),
            "rows": dict(self.rows),
            "left": self.left,
            "of_left": asdict(self.of_left),
        }

    def __str__(self) -> str:
        tables = (
            text_table(titles, rows, total, _left(titles)) for titles, rows, total in self._tables()
        )
        parts = [self._summary(), *tables]
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        return (
            f"<Metrics: {format_count(len(self.workers), 'worker')},"
            f" {format_bytes(self.bytes_received)} received,"
            f" {format_bytes(self.bytes_predicted)} predicted, {format_count(self.tasks, 'task')}>"
        )

    def _repr_html_(self) -> str:
        return page.block(
            page.lines(self._summary().split("\n")),
            *(
                page.table(titles, rows, _left(titles), total)
                for titles, rows, total in self._tables()
            ),
            page.legend(_LEGEND),
        )

    def save(self, filename: str | Path = "metrics.html") -> Path:
        """Write the counts as an HTML page, which loads nothing else, as JSON, or as text.

        Parameters
        ----------
        filename
            Ends in ``.html``, in ``.json`` for the values of :meth:`to_dict`, or in ``.txt`` for
            what ``print`` shows; letters may be capital.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        ValueError
            If the name has another suffix.
        OSError
            If the file cannot be written.
        """
        return save_report(
            filename, "dasktile: counts of a cluster", self._repr_html_(), self.to_dict(), str(self)
        )

    def _summary(self) -> str:
        predicted = f"predicted {format_bytes(self.bytes_predicted)}"
        if not self.placed and not self.bytes_predicted:
            predicted = "no plan was run"
        lines = [
            f"{format_count(len(self.workers), 'worker')} received"
            f" {format_bytes(self.bytes_received)} from each other,"
            f" {predicted}; {format_count(self.tasks, 'task')},"
            f" dasktile chose workers for {self.placed:,}"
        ]
        if self.stolen:
            lines.append(
                f"{format_count(self.stolen, 'task')} ran on another worker than planned, as"
                f" {'that one was' if self.stolen == 1 else 'those were'} late"
            )
        if self.bytes_spilled:
            prefetched = sum(counts.prefetched for counts in self._all())
            hits = sum(counts.hits for counts in self._all())
            blocked = sum(counts.blocked for counts in self._all())
            lines.append(
                f"spilled {format_bytes(self.bytes_spilled)}, read back"
                f" {format_bytes(self.bytes_read_back)}; {prefetched:,} results prefetched,"
                f" {hits:,} on time; event loops waited {blocked:.2f} s"
            )
        if self.left:
            lines.append(f"counted, too, as of the last heartbeat: {self._left_workers()}")
        if self.is_explained and self.layers and not self.rows:
            lines.append(
                "no layer that ran belongs to a row of the explanation: it is of other arrays, or"
                " their plan was not run; layers are shown instead"
            )
        if self.errors:
            lines.append(f"errors inside dasktile: {self.errors:,}, see the logs")
        total = len(self.workers) + len(self.missing)
        lines += [
            f"not counted: {count:,} of {total:,} workers, {reason}"
            for reason, count in Counter(self.missing.values()).items()
        ]
        return "\n".join(lines)

    def _left_workers(self) -> str:
        return f"{format_count(self.left, 'worker')} that left"

    def _tables(self) -> Iterable[tuple[tuple[str, ...], list[tuple[str, ...]], int]]:
        """For each table: titles, the rows that are printed, and the number of all rows."""
        layers = self._shown_layers()
        # after `compute`, workers hold nothing
        is_held = any(counts.tiles for counts in self.layers.values())
        is_held = is_held or any(counts.tiles for counts in self._all())
        held = ("tiles", "held") if is_held else ()

        def numbers(counts: LayerCounts | WorkerCounts) -> tuple[str, ...]:
            return (f"{counts.tiles:,}", format_bytes(counts.held)) if is_held else ()

        yield (
            ("row" if self.rows else "layer", "predicted", "received", *held),
            [
                (
                    name,
                    format_bytes(layer.predicted),
                    format_bytes(layer.received),
                    *numbers(layer),
                )
                for name, layer in layers[:_MAX_ROWS]
            ],
            len(layers),
        )
        shown = list(self.workers.items())[:_MAX_ROWS]
        left = [(self._left_workers(), self.of_left)] if self.left else []
        yield (
            ("worker", "tasks", "received", *held),
            [
                (
                    address,
                    f"{counts.tasks:,}",
                    format_bytes(counts.received),
                    *numbers(counts),
                )
                for address, counts in shown + left
            ],
            len(self.workers) + len(left),
        )
        tiers: list[tuple[str, ...]] = [
            (
                address,
                tier,
                format_bytes(counts.spilled.get(tier, 0)),
                format_bytes(counts.read_back.get(tier, 0)),
                format_bytes(counts.on.get(tier, 0)),
            )
            for address, counts in [*left, *self.workers.items()]
            if any(counts.spilled.values())
            for tier in counts.on or counts.spilled
        ]
        yield ("worker", "tier", "spilled to", "read back", "held"), tiers[:_MAX_ROWS], len(tiers)


def _row_number(row: str | None) -> float:
    return math.inf if row is None else int(row.partition(" ")[0])


def _left(titles: Sequence[str]) -> int:
    """Columns of a table that are aligned to the left."""
    return 2 if titles[1] == "tier" else 1
