"""Limits of the search for an order of contraction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PathSettings:
    """Limits of the search for an order of contraction.

    Parameters
    ----------
    minimize
        Objectives of the dynamic programming of opt_einsum: operations, sizes of intermediate
        arrays, and sums of both, in which one element counts as 16 or 256 operations.
    max_operands
        Operands up to which the dynamic programming runs: its time grows as a power of them.
    mesh_axes, mesh_workers
        Axes of the worker mesh on which orders are compared, and workers at the most.  More of
        either take longer and hardly change which order is the cheapest.
    """

    minimize: tuple[str, ...] = ("flops", "combo-16", "combo-256", "write", "size")
    max_operands: int = 10
    mesh_axes: int = 2
    mesh_workers: int = 64
