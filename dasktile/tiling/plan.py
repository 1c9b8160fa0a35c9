"""The result of tiling a program: :class:`TilingPlan`, with predicted costs.

A :class:`TilingPlan` says how arrays are cut.  It is distinct from
:class:`dasktile.orders.schedule_plan.SchedulePlan`, the order of tasks that :func:`dasktile.plan`
returns, and from :class:`dasktile.schedule.swaps.SwapPlan`, the swaps of such an order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dasktile.ir import Program, TiledProgram

#: The verdict of a plan in which chunks change.
RETILED = "retiled"


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a tiling by the model, for every node.

    Parameters
    ----------
    moved
        Bytes that workers receive from other workers so that the node can run.
    read
        Bytes read from storage.
    tasks
        Tasks, including those that cut and join tiles of the inputs.
    loads
        Operations of each worker, over the whole program.
    peak
        Bytes of the largest working set of one task of the node: its tiles and result.
    spilled
        Bytes spilled and read back, of arrays that are held from one pass to the next and do not
        fit; 0 where the memory is unknown.
    joined
        Bytes of the arrays that are joined from pieces for the node.
    handed
        Bytes that workers receive so that the node's array has the chunks that it must have.
    by_worker
        Bytes that each worker receives, over the whole program, up to a byte a node; empty where
        that was not found out.
    """

    moved: tuple[int, ...]
    read: tuple[int, ...]
    tasks: tuple[int, ...]
    loads: tuple[float, ...]
    peak: tuple[int, ...]
    spilled: int = 0
    joined: tuple[int, ...] = ()
    handed: tuple[int, ...] = ()
    by_worker: tuple[float, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes that workers receive from other workers."""
        return sum(self.moved) + sum(self.handed)

    @property
    def busiest(self) -> float:
        """Bytes that the worker receives which receives most; an even share where unknown."""
        return max(self.by_worker, default=self.bytes / max(1, len(self.loads)))

    def received(self, index: int) -> int:
        """Bytes that workers receive for a node, those for its final chunks included."""
        return self.moved[index] + (self.handed[index] if self.handed else 0)

    @property
    def balance(self) -> float:
        """Largest worker's operations over the mean; 1 is perfect."""
        mean = sum(self.loads) / len(self.loads) if self.loads else 0.0
        return max(self.loads) / mean if mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class TilingPlan:
    """How the arrays of a program are cut, with predicted costs.

    Parameters
    ----------
    program
        The program that was tiled.  It has more nodes than the original where arrays have replicas.
    workers
        Number of processes that send bytes to each other; `used_workers` of them have tiles.
    method
        Name of the tiling method.
    before, after
        Costs of the input's own chunks, well placed, and of the plan.
    tiled
        The tiling, or None where the input stays unchanged.
    lower_bound
        Least bytes that any tiling on these `grids` moves that divides the work evenly among the
        workers of the grid.  The input's own chunks may move fewer if they do not.
    proven_optimal
        True where `after` was proven to move as few bytes as any of these tilings.
    grids
        The grids of workers for which the bound holds, in words; empty where it is 0.  All arrays
        are divided by one grid, of all workers or of fewer.  Arrays with replicas in two shardings
        have these in one order.
    counts_unneeded
        Whether the costs and the bound count blocks that are not computed, as they are not needed.
    reasons
        For every node, why it keeps its chunks; empty where its chunks change.
    verdict
        One sentence that says why the plan was chosen.
    uncounted
        Indices of nodes of which it is unknown which blocks their tasks read.  What they receive is
        not in the costs beyond the least that it can be, and nothing is proven.
    bytes_on_all
        Bytes that the best plan for all workers moves, where this one is for fewer of them; else
        None.
    origin
        For every node, the index in the original program of the same node, or of the node that it
        is a replica of; None where no nodes were added.
    """

    program: Program
    workers: int
    method: str
    before: Price
    after: Price
    tiled: TiledProgram | None
    lower_bound: int
    proven_optimal: bool
    grids: str = ""
    counts_unneeded: bool = False
    reasons: tuple[str, ...] = ()
    verdict: str = ""
    uncounted: tuple[int, ...] = ()
    origin: tuple[int, ...] | None = None
    bytes_on_all: int | None = None

    @property
    def used_workers(self) -> int:
        """Number of workers that have tiles: fewer than all where these have better grids."""
        if self.tiled is None or self.bytes_on_all is None:
            return self.workers
        return math.prod(self.tiled.mesh)

    @property
    def unchanged(self) -> bool:
        """True where all arrays keep their chunks: the tasks may still be placed on workers."""
        return self.verdict != RETILED
