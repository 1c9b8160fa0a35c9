"""The result of ``diagnose``: where the time and the bytes of a computation went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dasktile.ir import ALREADY_TILED
from dasktile.report import html as page
from dasktile.report.explanation import Explanation
from dasktile.report.formatting import format_bytes, format_count, format_seconds, wrapped
from dasktile.report.page import save_report
from dasktile.report.summary import LARGE, shared_processes
from dasktile.report.tables import text_table

#: Rows of a printed table at the most.
_MAX_ROWS = 12

#: What the columns are.
_LEGEND = (
    "computing, waiting, idle: shares of the time of all threads, in tasks, without a task while"
    " data was on its way, and without a task otherwise. received: bytes from other workers."
    " results: most bytes of results that a worker held. process: most bytes of its process."
)

#: Why a run is not predicted, where its explanation does not say so.
_NO_RUN = "its run is not simulated"

#: The prefix of the key of a task of each P2P shuffle.
_P2P = "shuffle-barrier"

#: The prefix of the keys of tasks that join a result on one worker: see `joins_blocks`.
_JOINS = "finalize-hlgfinalizecompute"


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What one worker did.

    Parameters
    ----------
    threads
        Threads that run tasks.
    tasks
        Tasks run.
    received
        Bytes received from other workers.
    spilled, read_back
        Bytes of results written to disk and read from it.
    computing
        Seconds of threads that ran a task.  A task that calls ``distributed.secede`` leaves its
        thread to others; its seconds from then on are not counted.
    waiting
        Seconds of threads without a task while data was on its way from other workers.
    idle
        All other seconds of threads without a task: the scheduler was busy, a task that had to come
        first ran elsewhere, or there was nothing to do.
    results
        Most bytes of results that it held, spilled ones included.
    process
        Most bytes of its process, as measured now and then.
    """

    threads: int
    tasks: int
    received: int
    spilled: int
    read_back: int
    computing: float
    waiting: float
    idle: float
    results: int
    process: int


@dataclass(frozen=True, slots=True)
class OperationUse:
    """What the tasks of one operation did, named by the prefix of their keys.

    Parameters
    ----------
    tasks
        Tasks run.
    seconds
        Seconds that they ran, of all threads, until they ended or seceded.
    received
        Bytes of their results that workers received from each other.
    made
        Bytes of all their results.
    """

    tasks: int
    seconds: float
    received: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class Missed:
    """One computation, and what ``dasktile.optimize`` would change in it.

    Parameters
    ----------
    name
        The operations that make its results.
    explanation
        The plan; None if there is none.
    reason
        Why there is none.
    """

    name: str
    explanation: Explanation | None
    reason: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Where the time and the bytes of computations went, and what a plan would save.

    ``str()`` shows tables of operations, of workers, and of computations.  *computing*, *waiting*
    and *idle* are shares of the time of all threads: in tasks, without a task while data was on
    its way, and without a task otherwise.  *received* are bytes that workers received from each
    other.  Numbers with an arrow are simulated: for Dask's own graph, and for the plan of
    ``dasktile.optimize`` on a cluster with ``dasktile.enable``, both by the simulation that
    ``explain`` calls *as it runs*; what Dask's scheduler does differs from run to run.  Numbers *by
    the model* are shown in their place where there is no simulation: *moved after* and *n tasks* of
    ``explain``.

    Parameters
    ----------
    seconds
        Length of the diagnosis.
    workers
        What every worker did, by address.
    operations
        What the tasks of each operation did.
    computations
        The computations of arrays that this process started, in order.
    not_planned
        Number of further computations for which no plan was made.
    left
        Number of workers that left during the diagnosis, and are not counted.
    planning
        Seconds that it took to make the plans.
    reason
        Why no plans were made; empty if they were.
    pending
        Number of results of the client that were not complete at the end of the diagnosis.
    """

    seconds: float
    workers: Mapping[str, WorkerUse]
    operations: Mapping[str, OperationUse]
    computations: tuple[Missed, ...] = ()
    not_planned: int = 0
    left: int = 0
    planning: float = field(default=0.0, compare=False)
    reason: str = ""
    pending: int = 0

    @property
    def tasks(self) -> int:
        """Number of tasks run."""
        return sum(worker.tasks for worker in self.workers.values())

    @property
    def received(self) -> int:
        """Bytes that workers received from each other."""
        return sum(worker.received for worker in self.workers.values())

    @property
    def spilled(self) -> int:
        """Bytes of results written to disk."""
        return sum(worker.spilled for worker in self.workers.values())

    @property
    def read_back(self) -> int:
        """Bytes of results read from disk."""
        return sum(worker.read_back for worker in self.workers.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return {
            "seconds": self.seconds,
            "tasks": self.tasks,
            "received": self.received,
            "spilled": self.spilled,
            "read_back": self.read_back,
            "workers": {name: asdict(use) for name, use in self.workers.items()},
            "operations": {name: asdict(use) for name, use in self.operations.items()},
            "computations": [
                {
                    "name": each.name,
                    "reason": each.reason,
                    "explanation": each.explanation and each.explanation.to_dict(),
                }
                for each in self.computations
            ],
            "not_planned": self.not_planned,
            "left": self.left,
            "planning": self.planning,
            "reason": self.reason,
            "pending": self.pending,
        }

    def __str__(self) -> str:
        parts = ["\n".join(map(wrapped, self.summary()))]
        parts += [
            f"{table.caption}\n\n{text_table(table.titles, table.rows, table.total)}"
            for table in self.tables()
            if table.rows
        ]
        parts.append("\n".join(map(wrapped, self.advice())))
        return "\n\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        workers, tasks = format_count(len(self.workers), "worker"), format_count(self.tasks, "task")
        return (
            f"<Diagnosis: {format_seconds(self.seconds)}, {workers}, {tasks},"
            f" {format_bytes(self.received)} received>"
        )

    def _repr_html_(self) -> str:
        tables = (
            page.lines([table.caption]) + page.table(table.titles, table.rows, total=table.total)
            for table in self.tables()
            if table.rows
        )
        return page.block(
            page.lines(self.summary()), *tables, page.legend(_LEGEND), page.lines(self.advice()),
            *(
                page.folded(f"computation {number}: {each.name}", each.explanation._repr_html_())
                for number, each in enumerate(self.computations)
                if each.explanation is not None
            ),
        )  # fmt: skip

    def save(self, filename: str | Path = "diagnosis.html") -> Path:
        """Write the diagnosis as an HTML page, with the plans of all computations, JSON or text.

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
            filename, "dasktile: a diagnosis", self._repr_html_(), self.to_dict(), str(self)
        )

    def summary(self) -> list[str]:
        """What was measured, in sentences."""
        threads = sum(worker.threads for worker in self.workers.values())
        lines = [
            f"{format_seconds(self.seconds)} on {format_count(len(self.workers), 'worker')} with"
            f" {format_count(threads, 'thread')}: {format_count(self.tasks, 'task')},"
            f" {format_bytes(self.received)} received from other workers"
        ]
        total = sum(map(_time, self.workers.values()))
        if total:
            shares = (
                sum(getattr(worker, name) for worker in self.workers.values()) / total
                for name in ("computing", "waiting", "idle")
            )
            computing, waiting, idle = (f"{100 * share:.0f} %" for share in shares)
            lines.append(
                f"threads ran tasks for {computing} of the time, waited for data for {waiting}"
                f" and had no task for {idle}"
            )
        if self.spilled or self.read_back:
            lines.append(
                f"{format_bytes(self.spilled)} spilled to disk, {format_bytes(self.read_back)}"
                " read back"
            )
        joined = self.operations.get(_JOINS)
        if joined is not None and joined.made >= LARGE:
            # the blocks that these tasks receive count under their own names
            results = f"{format_count(joined.tasks, 'result')} ({format_bytes(joined.made)})"
            lines.append(
                f"dask.compute joined {results} on a worker, which receives the blocks: these bytes"
                " are measured and not predicted; dasktile.compute joins in the client"
            )
        if _P2P in self.operations:
            lines.append(
                "bytes that Dask's P2P shuffles send outside of tasks are not counted in received"
            )
        if self.pending:
            lines.append(
                f"{format_count(self.pending, 'result')} incomplete at the end, whose tasks are"
                " counted in part: wait for them inside the block (distributed.wait)"
            )
        if self.left:
            lines.append(f"not counted: {format_count(self.left, 'worker')} that left")
        return lines

    def tables(self) -> Iterator[Table]:
        """Tables of operations, workers and computations."""
        operations = sorted(
            self.operations.items(),
            key=lambda item: (-item[1].received, -item[1].seconds, -item[1].tasks, item[0]),
        )
        yield Table(
            "measured, by operation:",
            ("operation", "tasks", "seconds", "received"),
            [
                (name, f"{use.tasks:,}", f"{use.seconds:.2f}", format_bytes(use.received))
                for name, use in operations[:_MAX_ROWS]
            ],
            len(operations),
        )
        yield Table(
            "measured, by worker:",
            ("worker", "tasks", "computing", "waiting", "idle", "received", "spilled", "results",
             "process"),
            [_worker_row(*item) for item in list(self.workers.items())[:_MAX_ROWS]],
            len(self.workers),
        )  # fmt: skip
        yield Table(
            "simulated, Dask -> with dasktile.optimize and dasktile.enable:",
            ("computation", "tasks", "received", "results on one worker"),
            [_computation_row(each) for each in self.computations[:_MAX_ROWS]],
            len(self.computations),
        )

    def advice(self) -> list[str]:
        """What ``dasktile.optimize`` would change, in sentences."""
        count = len(self.computations)
        if self.reason:
            return [f"no plans were made: {self.reason}"]
        if not count:
            return ["no plans were made: no dask arrays were computed with this client"]
        plans = [each.explanation for each in self.computations if each.explanation is not None]
        # measured bytes are those that Dask counts, also between workers of one process
        lines = list(dict.fromkeys(filter(None, map(shared_processes, plans))))
        lines += _gain_lines(self.computations)
        if self.not_planned:
            lines.append(
                f"no plans were made for {format_count(self.not_planned, 'computation')} more"
            )
        return lines


@dataclass(frozen=True, slots=True)
class Table:
    """Cells to show.

    Parameters
    ----------
    caption
        What they are.
    titles, rows
        Titles of the columns, and the cells of each row.
    total
        Number of all rows, of which `rows` are the first.
    """

    caption: str
    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]
    total: int


def _worker_row(address: str, use: WorkerUse) -> tuple[str, ...]:
    total = max(_time(use), 1e-9)
    shares = (f"{100 * part / total:.0f} %" for part in (use.computing, use.waiting, use.idle))
    sizes = (use.received, use.spilled, use.results, use.process)
    name = address.rpartition("//")[2]
    return (name, f"{use.tasks:,}", *shares, *map(format_bytes, sizes))


def _computation_row(each: Missed) -> tuple[str, str, str, str]:
    plan = each.explanation
    if plan is None:
        return each.name, each.reason, "", ""
    plan = _as_computed(plan)
    if _is_plan(plan) and not _is_simulated(plan):
        return each.name, "that of a plan already", "", ""
    return (
        each.name,
        _tasks(plan),
        _received(plan),
        "unknown"
        if plan.results_before is None or plan.results_after is None
        else _arrow(plan.results_before, plan.results_after, format_bytes),
    )


def _as_computed(plan: Explanation) -> Explanation:
    """An explanation in which *before* is what was computed, that of a plan maybe."""
    if not plan.planned:
        return plan
    return replace(
        plan,
        bytes_before=plan.bytes_after,
        tasks_before=plan.tasks_after,
        run_tasks_before=plan.run_tasks_after,
        received_before=plan.received_after,
        results_before=plan.results_after,
    )


def _tasks(plan: Explanation) -> str:
    """Tasks that run; those of the model, without fusion and bundles, where that is unknown."""
    if plan.run_tasks_before is None or plan.run_tasks_after is None:
        return f"{_arrow(plan.tasks_before, plan.tasks_after, '{:,}'.format)} (by the model)"
    return _arrow(plan.run_tasks_before, plan.run_tasks_after, "{:,}".format)


def _received(plan: Explanation) -> str:
    """Bytes received; those of Dask are unknown without a simulation, as it places no task well."""
    if plan.received_before is None or plan.received_after is None:
        after = f"unknown -> {format_bytes(plan.bytes_after)} (by the model)"
        return after if plan.changed else "unknown"
    return _arrow(plan.received_before, plan.received_after, format_bytes)


def _has_gain(plan: Explanation) -> bool | None:
    """Whether a plan is predicted to differ from what was computed, which may be a plan itself.

    None if its run is not simulated, and its tiles are as many and move as many bytes: only a
    simulation counts bundles.
    """
    if not plan.changed:
        return False
    if not _is_simulated(plan):
        if (plan.tasks_before, plan.bytes_before) != (plan.tasks_after, plan.bytes_after):
            return True
        return False if _is_plan(plan) else None
    return plan.run_tasks_before != plan.run_tasks_after or (
        _first(plan.received_before, plan.bytes_before)
        != _first(plan.received_after, plan.bytes_after)
    )


def _is_simulated(plan: Explanation) -> bool:
    """Whether it is known how many tasks run, of what was computed and of the plan."""
    return plan.run_tasks_before is not None and plan.run_tasks_after is not None


def _is_plan(plan: Explanation) -> bool:
    """Whether all results are those of a plan, whose tasks are in bundles already."""
    read = {index for node in plan.nodes for index in node.inputs}
    results = [node for index, node in enumerate(plan.nodes) if index not in read]
    return all(node.reason == ALREADY_TILED for node in results)


def _gain_lines(computations: Sequence[Missed]) -> Iterator[str]:
    """What plans are predicted to save, in sentences; `computations` is not empty."""
    count = format_count(len(computations), "computation")
    plans = {
        number: each.explanation
        for number, each in enumerate(computations)
        if each.explanation is not None
    }
    if not plans:
        reasons = dict.fromkeys(each.reason for each in computations)
        yield f"no plans were made: {'; '.join(reasons)}"
        return
    gains = {number: _has_gain(plan) for number, plan in plans.items()}
    changed = [number for number, gain in gains.items() if gain]
    unknown = [number for number, gain in gains.items() if gain is None]
    if changed:
        yield f"dasktile.optimize would change {len(changed):,} of {count}; {_shows(changed[0])}"
    if unknown:
        because = dict.fromkeys(plans[number].unpredicted or _NO_RUN for number in unknown)
        yield (
            f"not predicted for {len(unknown):,} of {count}: what dasktile.optimize would save,"
            f" besides moved bytes, as {'; '.join(because)}; {_shows(unknown[0])}"
        )
    if all(plan.planned for plan in plans.values()):
        yield "dasktile.optimize would change nothing: these are its results already"
    elif not changed and not unknown:
        yield "dasktile.optimize would change nothing: no plan is predicted to be cheaper"


def _shows(number: int) -> str:
    return f"print(diagnosis.result.computations[{number}].explanation) shows the plan"


def _arrow(before: int, after: int, written: Any) -> str:
    first, second = written(before), written(after)
    return str(first) if first == second else f"{first} -> {second}"


def _first(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _time(use: WorkerUse) -> float:
    return use.computing + use.waiting + use.idle
