"""The measured speed of a cluster, and the time that plans take at that speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dasktile.ir import Kind, Node, Program
from dasktile.tiling.candidates import effort
from dasktile.tiling.plan import Price, TilingPlan
from dasktile.tiling.settings import CostModel, Settings


@dataclass(frozen=True, slots=True)
class Calibration:
    """The speed of a cluster, as measured by :func:`dasktile.calibrate`.

    Parameters
    ----------
    bandwidth
        Bytes a second that a worker receives from another while others receive too; None
        where all workers are in one process.
    task_seconds
        Seconds that each further task adds to a graph: the overhead of the scheduler and of the
        workers, all workers together.
    flops
        Floating-point operations a second of one worker thread while all are busy, as
        float64 matrix products.
    workers, threads
        Number of worker processes, and of threads of all workers, when this was measured.
    memory
        Bytes a second that one worker thread writes to new memory while all are busy, as
        results of elementwise operations; None where that is unknown.
    """

    bandwidth: float | None
    task_seconds: float
    flops: float
    workers: int
    threads: int
    memory: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Numbers by name, ready for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, numbers: object) -> Calibration | None:
        """The calibration of a :meth:`to_dict`, or None for any other object."""
        if not isinstance(numbers, Mapping):
            return None
        bandwidth, memory = numbers.get("bandwidth"), numbers.get("memory")
        task_seconds, flops = numbers.get("task_seconds"), numbers.get("flops")
        workers, threads = numbers.get("workers"), numbers.get("threads")
        optional = [number for number in (bandwidth, memory) if number is not None]
        if not all(map(_positive, (task_seconds, flops, workers, threads, *optional))):
            return None
        return cls(
            bandwidth=None if bandwidth is None else float(bandwidth),
            task_seconds=float(task_seconds or 0),
            flops=float(flops or 0),
            workers=int(workers or 0),
            threads=int(threads or 0),
            memory=None if memory is None else float(memory),
        )

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        bandwidth = (
            "no bandwidth: one process"
            if self.bandwidth is None
            else f"{self.bandwidth / 1e6:,.0f} MB/s between two workers"
        )
        memory = "" if self.memory is None else f" and {self.memory / 1e6:,.0f} MB/s to memory"
        return (
            f"{workers}, {threads}: {bandwidth}, {self.task_seconds * 1e3:.2g} ms a task,"
            f" {self.flops / 1e9:.3g} Gflop/s{memory} a thread"
        )


def predict_seconds(
    plan: TilingPlan,
    settings: Settings,
    task_seconds: float,
    threads: int = 1,
    memory: float | None = None,
) -> tuple[float, float]:
    """Seconds that the input's own chunks take, and seconds that the plan takes.

    A rough model that compares the two: the operations of the worker with most work at full speed,
    plus the bytes moved at the bandwidth of all workers together, plus the overhead of all tasks.
    In reality the three overlap in part.  The mix of products and other operations is assumed to be
    the same on all workers.  Reading from storage, spilling and waiting are not counted.

    Parameters
    ----------
    plan
        The plan.
    settings
        Speeds and constants of the cost model.
    task_seconds
        Seconds that each task adds.
    threads
        Tasks that each worker runs at once.
    memory
        Bytes a second that a thread writes as results of operations other than matrix
        products; None if these operations are as fast as matrix products.

    Returns
    -------
    Seconds before and seconds after.
    """

    def seconds(price: Price, stock: bool) -> float:
        # each place of a mesh with fewer places than workers is a group of workers
        group = -(-plan.workers // max(1, len(price.loads)))
        work = max(price.loads, default=0.0)
        return (
            work * _seconds_per_operation(plan.program, settings, memory, stock) / (threads * group)
            + price.bytes / (settings.bytes_per_second * plan.workers)
            + sum(price.tasks) * task_seconds
        )

    before = seconds(plan.before, stock=True)
    return before, before if plan.tiled is None else seconds(plan.after, stock=False)


def _seconds_per_operation(
    program: Program, settings: Settings, memory: float | None, stock: bool
) -> float:
    """Mean seconds of one operation of a program."""
    products = 1 / settings.work_per_second
    # other operations are bound by memory, and counted by the bytes that they write
    others = products if memory is None else 1 / (settings.model.byte_work * memory)
    work = total = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node, settings.model)
        work += operations
        each = products if node.kind is Kind.CONTRACT else others
        total += operations * each * (_slowdown(node, settings.model) if stock else 1.0)
    return total / work if work else products


def stock_slowdown(program: Program, model: CostModel) -> float:
    """Factor by which stock Dask computes longer than the number of operations implies."""
    work = slow = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node, model)
        work += operations
        slow += operations * _slowdown(node, model)
    return slow / work if work else 1.0


def _slowdown(node: Node, model: CostModel) -> float:
    return model.einsum_slowdown if node.kind is Kind.CONTRACT and "einsum" in node.op else 1.0


def _positive(number: object) -> bool:
    return (
        isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf
    )
