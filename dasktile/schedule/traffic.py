"""Bytes that workers send to each other when a graph runs, and those between hosts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dasktile.schedule.placed_tasks import PlacedTasks


def bytes_between(tasks: PlacedTasks, workers: int) -> npt.NDArray[np.int64]:
    """Bytes that each worker sends to each other one.

    A result is sent once to each worker that reads it, also where another worker of its host has it
    already.  Tasks without a home, and those that read their results, are left out.

    Parameters
    ----------
    tasks
        The tasks of a graph, with their homes.
    workers
        Number of workers.

    Returns
    -------
    Shape ``(workers, workers)``: the sender first.
    """
    sent = np.zeros((workers, workers), np.int64)
    data = set(tasks.data)
    found: set[tuple[int, int]] = set()
    for number, reads in enumerate(tasks.reads):
        reader = tasks.homes[number]
        if reader is None:
            continue
        for read in reads:
            maker = tasks.homes[read]
            if maker is None or maker == reader or read in data or (read, reader) in found:
                continue
            found.add((read, reader))
            sent[maker, reader] += tasks.sizes[read]
    return sent


def bytes_between_hosts(sent: npt.NDArray[np.int64], hosts: npt.ArrayLike) -> int:
    """Bytes that workers receive from workers of other hosts.

    Parameters
    ----------
    sent
        Bytes that each worker sends to each other one, as :func:`bytes_between` returns them.
    hosts
        For every worker, the number of its host.
    """
    at = np.asarray(hosts)
    senders, receivers = np.nonzero(sent)
    crosses = at[senders] != at[receivers]
    return int(sent[senders[crosses], receivers[crosses]].sum())
