"""Constants of the description of a cluster and of its calibration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Constants of the description of a cluster and of its calibration.

    Parameters
    ----------
    memory_share
        Share of a worker's memory that its running tasks may fill.  It is the default of
        ``distributed.worker.memory.target``, at which distributed starts to spill.
    time_limit
        Seconds after which a calibration fails on a cluster that is busy.
    sample
        Workers that are measured at the most; of more workers, an evenly spaced sample.
    compute_seconds
        Seconds for which each thread multiplies matrices, and then adds arrays.
    first_bytes
        Bytes of the first arrays sent, from which a rough bandwidth is computed.
    least_bytes, most_bytes
        Bounds of the bytes of the arrays sent after that.
    travel_seconds
        Seconds that these arrays should take at the rough bandwidth.
    few_tasks, many_tasks
        Trivial tasks of each worker in a short graph and in a long one.  The difference of their
        times gives the seconds of one task.
    repeat
        Repetitions of each measurement, of which the median counts.
    priority
        Priority of the tasks, above all other tasks on the cluster.
    """

    memory_share: float = 0.6
    time_limit: float = 60.0
    sample: int = 16
    compute_seconds: float = 0.3
    first_bytes: int = 2 * 2**20
    least_bytes: int = 2**20
    most_bytes: int = 32 * 2**20
    travel_seconds: float = 0.05
    few_tasks: int = 10
    many_tasks: int = 400
    repeat: int = 3
    priority: int = 1_000_000
