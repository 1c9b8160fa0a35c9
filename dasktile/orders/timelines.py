"""Pictures of plans: computation, copies and memory over time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from dasktile.report.formatting import format_bytes, format_seconds
from dasktile.report.timeline import Timeline, lane
from dasktile.schedule.search import SearchResult
from dasktile.schedule.simulate import SimulatedRun
from dasktile.schedule.simulated_worker import WorkerRun
from dasktile.schedule.taskgraph import TaskGraph


def timeline_of_worker(
    run: WorkerRun, names: Sequence[Hashable], sizes: Sequence[int], limit: int
) -> Timeline:
    """The tasks and copies of a simulated worker.

    Parameters
    ----------
    run
        The simulated worker.
    names, sizes
        Of the tasks, and of their results in bytes.
    limit
        Bytes of memory.
    """
    lanes = {
        name: lane(
            [(span.start, span.end, str(names[span.task]), int(sizes[span.task])) for span in spans]
        )
        for name, spans in (
            ("compute", run.tasks),
            ("copy in", run.copies_in),
            ("copy out", run.copies_out),
        )
    }
    return Timeline(lanes, run.memory, limit, _title(len(run.tasks), limit, run.makespan))


def _title(count: int, limit: int, makespan: float) -> str:
    return f"{count:,} tasks in {format_bytes(limit)}: {format_seconds(makespan)}"


def timeline_of_swaps(
    graph: TaskGraph, planned: SearchResult, run: SimulatedRun, limit: int
) -> Timeline:
    """The operations and copies of planned swaps."""
    swaps = planned.swaps

    def named(data: Any, times: Any) -> tuple[Any, ...]:
        return lane(
            [
                (float(start), float(end), _name(graph.data_names, datum), int(graph.size[datum]))
                for datum, start, end in zip(data, *times, strict=True)
                if end > start
            ]
        )

    made = graph.writes
    computed = [
        (float(start), float(end), _name(graph.op_names, op), int(graph.size[made[op]].sum()))
        for op, start, end in zip(planned.order, *run.operations, strict=True)
    ]
    lanes = {
        "compute": lane(computed),
        "copy in": named(swaps.in_datum, run.copies_in),
        "copy out": named(swaps.out_datum, run.copies_out),
    }
    title = _title(len(graph), limit, planned.makespan)
    return Timeline(lanes, _taken(graph, planned, run), limit, title)


def _name(names: Sequence[Hashable] | None, number: int) -> str:
    """The name of an operation or a datum in a picture."""
    return f"number {number}" if names is None else str(names[number])


def _taken(
    graph: TaskGraph, planned: SearchResult, run: SimulatedRun
) -> tuple[tuple[float, int], ...]:
    """Bytes in memory over time."""
    swaps, size = planned.swaps, graph.size
    changes: list[tuple[float, int]] = [(0.0, int(size[swaps.started].sum()))]
    trace = graph.trace(planned.order)
    owners = trace.touched.owners()
    made = graph.writes
    for at, op in enumerate(planned.order.tolist()):
        grown = int(size[made[op]].sum())
        if grown:
            changes.append((float(run.operations[0, at]), grown))
    last = trace.next == len(planned.order)
    for datum, at in zip(trace.touched.index[last].tolist(), owners[last].tolist(), strict=True):
        if not graph.kept[datum]:
            changes.append((float(run.operations[1, at]), -int(size[datum])))
    for datum, end in zip(swaps.out_datum.tolist(), run.copies_out[1].tolist(), strict=True):
        changes.append((end, -int(size[datum])))
    for datum, start in zip(swaps.in_datum.tolist(), run.copies_in[0].tolist(), strict=True):
        changes.append((start, int(size[datum])))
    taken, steps = 0, []
    for seconds, change in sorted(changes):
        taken += change
        steps.append((seconds, taken))
    return tuple(steps)
