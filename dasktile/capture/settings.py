"""Limits and estimates of capture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Limits on the reading of graphs, and estimates of work.

    The values are choices, not measurements.

    Parameters
    ----------
    max_traced_tasks
        Number of tasks of a layer up to which they are run on positions to recognise a view.
        A larger layer is unchanged.  It bounds the time of capture.
    sampled_keys
        Number of keys of a layer that are inspected to choose the reason for an unchanged
        operation.
    store_wrappers
        Number of nested wrappers of an array-like (such as those of xarray) that are followed
        to its stored chunks.
    extra_stretches
        A selection along one axis is read as a concatenation of contiguous stretches while
        these number at most so many more than the output chunks; with more it is a take.
    window_gain
        A take is read through a moving window if the window is at least so many times smaller
        than the range of all positions; otherwise every tile reads that range.
    reshape_coarsening
        Number of times by which the tiles of a reshape may be larger than its chunks, where
        its loop cannot be cut at the chunks.
    reshape_iterations
        Least number of iterations of such a loop, so that there are enough tiles to
        distribute.
    runs
        Number of runs of equal groups, or of equal positions of a take, up to which those of a
        tile are counted; with more, a tile is taken to have all.  It bounds the time of planning.
    joined_sources
        Unchanged sources of one block that are joined from which they are one node.
    join_work
        Operations of a matrix product that take the time of one iteration of any other join
        in an ``einsum``, whose result is written to memory and read by the reduction.
    """

    max_traced_tasks: int = 200_000
    sampled_keys: int = 64
    store_wrappers: int = 8
    extra_stretches: int = 3
    window_gain: int = 4
    reshape_coarsening: int = 4
    reshape_iterations: int = 8
    runs: int = 20_000
    joined_sources: int = 8
    join_work: float = 20.0


#: The settings that all recognisers use.
SETTINGS = CaptureSettings()
