"""What a cluster measured of itself, and how long plans take by that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dasktile.ir import Kind, Node, Program
from dasktile.tiling.candidates import BYTE_WORK, effort
from dasktile.tiling.plan import Price, TilingPlan
from dasktile.tiling.settings import Settings

#: ``np.einsum`` on a block does not run as BLAS; dasktile's blocks do.  Measured on
#: attention and regridding, where stock spends 15 to 30 times as long in its blocks.
EINSUM_SLOWDOWN = 16.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast a cluster is, as measured by :func:`dasktile.calibrate`.

    Parameters
    ----------
    bandwidth
        Bytes a second that a worker receives from another while others receive too; None
        where there are no two processes.
    task_seconds
        Seconds that each task of a graph adds, whatever it does: the scheduler's and the
        workers' overhead, all workers together.
    flops
        Floating-point operations a second of one worker thread while all are busy, as
        float64 matrix products.
    workers, threads
        Of the cluster when it was measured, all threads together.
    memory
        Bytes a second that one worker thread writes to new memory while all are busy, as
        results of elementwise operations; None where that is not known.
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
        """What :meth:`to_dict` said, or None if it is anything else."""
        if not isinstance(numbers, Mapping):
            return None
        bandwidth, memory = numbers.get("bandwidth"), numbers.get("memory")
        task_seconds, flops = numbers.get("task_seconds"), numbers.get("flops")
        workers, threads = numbers.get("workers"), numbers.get("threads")
        known = [number for number in (bandwidth, memory) if number is not None]
        if not all(map(_positive, (task_seconds, flops, workers, threads, *known))):
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
    """Seconds that the input's own chunks take, and those that the plan takes.

    A rough model, to compare the two and to tell a minute from an hour: the busiest
    worker's operations at full speed, plus the bytes moved, over the bandwidth of all
    workers together, plus what tasks cost, one after another.  In truth the three overlap
    in part, and every worker's mix of products and other operations is taken to be that
    of the whole; reading from storage, spilling and waiting are left out.

    Parameters
    ----------
    plan
        The decision.
    settings
        Speeds.
    task_seconds
        Seconds that each task adds.
    threads
        Tasks that each worker runs at once.
    memory
        Bytes a second that a thread writes as results of operations other than matrix
        products; None to take these operations to be as fast as matrix products.

    Returns
    -------
    Before and after.
    """

    def seconds(price: Price, stock: bool) -> float:
        # a mesh of fewer workers than there are stands for groups of them
        group = -(-plan.workers // max(1, len(price.loads)))
        work = max(price.loads, default=0.0)
        return (
            work * _each(plan.program, settings, memory, stock) / (threads * group)
            + price.bytes / (settings.bytes_per_second * plan.workers)
            + sum(price.tasks) * task_seconds
        )

    before = seconds(plan.before, stock=True)
    return before, before if plan.tiled is None else seconds(plan.after, stock=False)


def _each(program: Program, settings: Settings, memory: float | None, stock: bool) -> float:
    """Seconds of an operation of a program, the mean of all."""
    products = 1 / settings.work_per_second
    # what is not a product waits for memory, and its operations are counted by that
    others = products if memory is None else 1 / (BYTE_WORK * memory)
    work = total = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node)
        work += operations
        each = products if node.kind is Kind.CONTRACT else others
        total += operations * each * (_slowdown(node) if stock else 1.0)
    return total / work if work else products


def stock_slowdown(program: Program) -> float:
    """How much longer stock dask computes than the operations say."""
    work = slow = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node)
        work += operations
        slow += operations * _slowdown(node)
    return slow / work if work else 1.0


def _slowdown(node: Node) -> float:
    return EINSUM_SLOWDOWN if node.kind is Kind.CONTRACT and "einsum" in node.op else 1.0


def _positive(number: object) -> bool:
    return (
        isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf
    )
