"""What a tiling costs: what local cuts and the acceptance of plans share.

Costs are bytes.  All that takes time besides bytes between workers counts as the bytes that are
moved in that time, with the speeds of :class:`~dasktile.tiling.settings.Settings`: defaults, or
those that ``dasktile.calibrate`` measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.ir import Kind, Node, Program
from dasktile.tiling.plan import Price
from dasktile.tiling.settings import CostModel, Settings


@dataclass(frozen=True, slots=True)
class Objective:
    """What tasks, joins, lost time and memory cost, in bytes moved between workers.

    Parameters
    ----------
    settings
        Speeds, and constants of the cost model.
    threads
        Tasks that each worker runs at once.
    """

    settings: Settings
    threads: int = 1

    @property
    def task(self) -> float:
        """The cost of a task."""
        return self.settings.task_bytes

    @property
    def joined_byte(self) -> float:
        """The cost of a byte that a worker copies to join tiles."""
        return self.settings.model.join_byte

    def lost(self, operations: float) -> float:
        """The cost of time in which all threads of a worker run some operations.

        Parameters
        ----------
        operations
            Floating-point operations, as :func:`effort` counts them.
        """
        seconds = operations / self.settings.work_per_second / self.threads
        return seconds * self.settings.bytes_per_second

    def excess(self, need: npt.ArrayLike, limit: int) -> npt.NDArray[np.float64]:
        """The cost of tasks that hold too much: above any other; 0 for those within the limit.

        Parameters
        ----------
        need
            Bytes that each task holds.
        limit
            Bytes that a task should not exceed.
        """
        share = np.asarray(need) / limit
        return np.where(share > 1, self.settings.model.over_limit * share, 0.0)

    def cost(self, price: Price, slowdown: float = 1.0) -> float:
        """The whole cost of a tiling: bytes moved, spilled and read, tasks, and lost time.

        The lost time is that of the worker with most work beyond an even share, which is the same
        for every tiling.

        Parameters
        ----------
        price
            The tiling's price.
        slowdown
            Factor by which the functions that run take longer than ours.
        """
        return (
            price.bytes
            + price.spilled
            + sum(price.read)
            + sum(price.tasks) * self.task
            + self._lost_by(price, slowdown)
        )

    def _lost_by(self, price: Price, slowdown: float = 1.0) -> float:
        """The cost of the time in which the worker with most work runs it, beyond an even share."""
        busiest = max(price.loads, default=0.0) * slowdown
        even = sum(price.loads) / max(len(price.loads), 1)
        return self.lost(busiest - even)

    def saved(self, before: Price, after: Price) -> float:
        """What a tiling costs less than another, its bytes between workers and tasks left out.

        Parameters
        ----------
        before, after
            The other's price, and its own.
        """
        storage = before.spilled + sum(before.read) - after.spilled - sum(after.read)
        return storage + self._lost_by(before) - self._lost_by(after)

    def elapsed(self, price: Price, bundled: bool = False, slowdown: float = 1.0) -> float:
        """The time that a tiling takes, in bytes that one worker receives in that time.

        It compares tilings for all workers with those for fewer.  Unlike in :meth:`cost`, all
        workers receive, spill and read at once, and the work counts in full.  The worker that
        receives most, and the one that has most work, take longest.

        Parameters
        ----------
        price
            The tiling's price.
        bundled
            Whether tasks are bundled.
        slowdown
            Factor by which the functions that run take longer than ours.
        """
        task = self.task * (self.settings.model.bundled_task if bundled else 1.0)
        storage = (price.spilled + sum(price.read)) / max(len(price.loads), 1)
        busiest = max(price.loads, default=0.0) * slowdown
        return price.busiest + storage + sum(price.tasks) * task + self.lost(busiest)

    def cost_in_bundles(self, price: Price) -> float:
        """The cost of the tasks of a tiling if they are bundled, of joining tiles, and lost time.

        Parameters
        ----------
        price
            The tiling's price.
        """
        bundled = self.settings.model.bundled_task * self.task
        joins = self.joined_byte * sum(price.joined)
        return bundled * sum(price.tasks) + joins + self._lost_by(price)


def effort(node: Node, model: CostModel) -> float:
    """Operations per iteration of a node, its memory traffic counted as operations."""
    if node.homes is not None:
        return 0.0  # a persisted array is not computed
    if node.kind is Kind.CONTRACT:
        return node.work
    return node.work + model.byte_work * node.itemsize


def stock_slowdown(program: Program, model: CostModel) -> float:
    """Factor by which stock Dask computes longer than the number of operations implies."""
    work = slow = 0.0
    for node in program.nodes:
        operations = node.iterations * effort(node, model)
        work += operations
        slow += operations * stock_slowdown_of(node, model)
    return slow / work if work else 1.0


def stock_slowdown_of(node: Node, model: CostModel) -> float:
    """Factor by which stock Dask computes a node longer than its number of operations implies."""
    return model.einsum_slowdown if node.kind is Kind.CONTRACT and "einsum" in node.op else 1.0


def seconds_alone(program: Program, workers: int, settings: Settings) -> float:
    """Seconds of the operations that have fewer tasks in the input than there are workers.

    Parameters
    ----------
    program
        The program.
    workers
        Number of workers.
    settings
        Speeds and constants of the cost model.
    """
    operations = sum(
        node.iterations * effort(node, settings.model) * stock_slowdown_of(node, settings.model)
        for node in program.nodes
        if math.prod(len(label.cuts) for label in node.labels) < workers
    )
    return operations / settings.work_per_second
