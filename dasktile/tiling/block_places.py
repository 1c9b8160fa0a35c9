"""Where the blocks of a node are, once its labels are cut: shardings with numbers of blocks.

The first level has chosen the mesh axes that divide each label.  Each of their parts has the blocks
that start in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dasktile.ir import AxisMap, Chunks, Follow, Sharding, Share, Where, bounds
from dasktile.tiling.grid import Grid, split
from dasktile.tiling.local_choices import Choice
from dasktile.tiling.mesh import Mesh


def place_work(mesh: Mesh, choice: Choice, cuts: Sequence[Sequence[int]]) -> Where:
    """Which workers have the blocks of the loop nest, or of a kept array.

    Parameters
    ----------
    mesh, choice
        The worker mesh, and the node with the candidate of the first level.
    cuts
        Chunk sizes of the labels, or of the axes of a kept array.
    """
    work = choice.option.work
    if isinstance(work, Follow):
        return work
    shares = (
        _share(mesh, choice, label, share.by, sizes)
        for label, (share, sizes) in enumerate(zip(work.dims, cuts, strict=True))
    )
    return Sharding(tuple(shares), work.replicated)


def place_result(mesh: Mesh, choice: Choice, out: Sequence[AxisMap], chunks: Chunks) -> Where:
    """Which workers have the blocks of the result.

    Parameters
    ----------
    mesh, choice
        The worker mesh, and the node with the candidate of the first level.
    out, chunks
        The labels that the axes of the result have, and its chunks.
    """
    held = choice.option.held
    if isinstance(held, Follow):
        return held
    return Sharding(
        tuple(
            Share()
            if axis.label is None
            else _share(mesh, choice, axis.label, share.by, sizes, axis.width)
            for axis, share, sizes in zip(out, held.dims, chunks, strict=True)
        )
    )


def _share(
    mesh: Mesh,
    choice: Choice,
    label: int,
    by: tuple[int, ...],
    sizes: Sequence[int],
    width: int = 1,
) -> Share:
    """How these mesh axes divide the blocks of a label."""
    if not by:
        return Share()
    parts = mesh.parts(by)
    grid = choice.grids[label]
    return Share(by, _runs(choice.label_sizes[label], parts, grid, tuple(sizes), width))


@lru_cache(maxsize=4096, typed=True)
def _runs(
    size: int, parts: int, grid: Grid, lengths: tuple[int, ...], width: int
) -> tuple[int, ...]:
    """The number of blocks, of some lengths, that start in each part of a label."""
    starts = np.array(bounds(lengths)[:-1], np.int64) // width
    found = np.searchsorted(split(size, parts, grid), starts, side="right") - 1
    runs: list[int] = np.bincount(found.clip(0, parts - 1), minlength=parts).tolist()
    return tuple(runs)
