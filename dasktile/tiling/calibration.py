"""The measured speed of a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Calibration:
    """The speed of a cluster, as measured by :func:`dasktile.calibrate`.

    Parameters
    ----------
    bandwidth
        Bytes a second that a worker receives from another while others receive too, of another host
        where there are several; None where all workers are in one process.
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
    bandwidth_within_host
        As `bandwidth`, between two workers of one host; None where there is one host only, or no
        host has two workers.
    """

    bandwidth: float | None
    task_seconds: float
    flops: float
    workers: int
    threads: int
    memory: float | None = None
    bandwidth_within_host: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Numbers by name, ready for ``json.dumps``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, numbers: object) -> Calibration | None:
        """The calibration of a :meth:`to_dict`, or None for any other object."""
        if not isinstance(numbers, Mapping):
            return None
        bandwidth, within = numbers.get("bandwidth"), numbers.get("bandwidth_within_host")
        memory = numbers.get("memory")
        task_seconds, flops = numbers.get("task_seconds"), numbers.get("flops")
        workers, threads = numbers.get("workers"), numbers.get("threads")
        optional = [number for number in (bandwidth, within, memory) if number is not None]
        if not all(map(_positive, (task_seconds, flops, workers, threads, *optional))):
            return None
        return cls(
            bandwidth=None if bandwidth is None else float(bandwidth),
            task_seconds=float(task_seconds or 0),
            flops=float(flops or 0),
            workers=int(workers or 0),
            threads=int(threads or 0),
            memory=None if memory is None else float(memory),
            bandwidth_within_host=None if within is None else float(within),
        )

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        bandwidth = (
            "no bandwidth: one process"
            if self.bandwidth is None
            else f"{self.bandwidth / 2**20:,.0f} MiB/s between two workers"
        )
        within = self.bandwidth_within_host
        if within is not None:
            bandwidth = bandwidth.replace("workers", "hosts")
            bandwidth += f", {within / 2**20:,.0f} MiB/s between two workers of one host"
        memory = "" if self.memory is None else f" and {self.memory / 2**20:,.0f} MiB/s to memory"
        return (
            f"{workers}, {threads}: {bandwidth}, {self.task_seconds * 1e3:.2g} ms a task,"
            f" {self.flops / 1e9:.3g} Gflop/s{memory} a thread"
        )


def _positive(number: object) -> bool:
    return (
        isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf
    )
