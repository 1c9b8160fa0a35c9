"""Numbers that the tiling weighs; the caller takes them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the cost model and limits of the search.

    Parameters
    ----------
    task_bytes
        What scheduling one task costs, in bytes moved between workers.
    work_per_second
        Floating-point operations a second of one worker.
    bytes_per_second
        Bytes a second between workers.
    tiles_per_worker
        How many tiles of a large array a worker should have, so that the transfer of
        one overlaps the computation of another.
    min_tile
        Bytes below which a tile is not cut for overlap alone.
    max_task
        Bytes that the tiles of one task may take where no memory limit is given.
    usual_task
        Bytes that they may take although no task of the input takes as much: workers are
        to need no more memory than they did.
    max_states
        Tilings considered for one node at the most.
    copies
        Bytes of further copies of arrays that one worker may hold, all together; None for any
        number.
    width_budget
        Entries of the largest table of the exact solver; beyond it the answer comes
        with a bound instead of a proof.
    """

    task_bytes: float = 0.8e6
    work_per_second: float = 20e9
    bytes_per_second: float = 0.8e9
    tiles_per_worker: int = 2
    min_tile: int = 4 * 2**20
    max_task: int = 2**30
    usual_task: int = 32 * 2**20
    max_states: int = 128
    width_budget: int = 4_000_000
    copies: int | None = None
