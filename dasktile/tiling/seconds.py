"""What a cluster measured of itself, and how long plans take by that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dasktile.ir import Kind, Program
from dasktile.tiling.plan import Plan, Price
from dasktile.tiling.settings import Settings
from dasktile.tiling.space import effort

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
    """

    bandwidth: float | None
    task_seconds: float
    flops: float
    workers: int
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """Numbers by name, ready for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, said: object) -> Calibration | None:
        """What :meth:`to_dict` said, or None if it is anything else."""
        if not isinstance(said, Mapping):
            return None
        bandwidth = said.get("bandwidth")
        task_seconds, flops = said.get("task_seconds"), said.get("flops")
        workers, threads = said.get("workers"), said.get("threads")
        numbers = (task_seconds, flops, workers, threads)
        if not all(map(_positive, numbers if bandwidth is None else (*numbers, bandwidth))):
            return None
        return cls(
            bandwidth=None if bandwidth is None else float(bandwidth),
            task_seconds=float(task_seconds or 0),
            flops=float(flops or 0),
            workers=int(workers or 0),
            threads=int(threads or 0),
        )

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        bandwidth = (
            "no bandwidth: one process"
            if self.bandwidth is None
            else f"{self.bandwidth / 1e6:,.0f} MB/s between two workers"
        )
        return (
            f"{workers}, {threads}: {bandwidth}, {self.task_seconds * 1e3:.2g} ms a task,"
            f" {self.flops / 1e9:.3g} Gflop/s a thread"
        )


def predicted(
    plan: Plan, settings: Settings, task_seconds: float, threads: int = 1
) -> tuple[float, float]:
    """Seconds that the input's own chunks take, and those that the plan takes.

    A rough model, to compare the two and to tell a minute from an hour: the busiest
    worker's operations at full speed, plus the bytes moved, over the bandwidth of all
    workers together, plus what tasks cost, one after another.  In truth the three overlap
    in part; memory traffic counts as operations; reading from storage, spilling and
    waiting are left out.

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

    Returns
    -------
    Before and after.
    """

    def seconds(price: Price, slowdown: float) -> float:
        # a mesh of fewer workers than there are stands for groups of them
        group = -(-plan.workers // max(1, len(price.loads)))
        work = max(price.loads, default=0.0) * slowdown
        return (
            work / settings.work_per_second / (threads * group)
            + price.bytes / (settings.bytes_per_second * plan.workers)
            + sum(price.tasks) * task_seconds
        )

    slowdown = stock_slowdown(plan.program)
    before = seconds(plan.before, slowdown)
    return before, before if plan.tiled is None else seconds(plan.after, 1.0)


def stock_slowdown(program: Program) -> float:
    """How much longer stock dask computes than the operations say."""
    work = slow = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node)
        work += operations
        if node.kind is Kind.CONTRACT and "einsum" in node.op:
            slow += operations * (EINSUM_SLOWDOWN - 1)
    return 1 + slow / work if work else 1.0


def _positive(number: object) -> bool:
    return (
        isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf
    )
