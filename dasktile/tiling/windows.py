"""Elements that are sent of moving windows: their readers make the views, of tiles with a halo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dasktile.ir import Node
from dasktile.tiling.blocks import Blocks
from dasktile.tiling.boxes import Boxes

Bools = npt.NDArray[np.bool_]
Table = npt.NDArray[np.float64]


def sent_share(
    node: Node,
    held: Boxes,
    held_blocks: Sequence[Blocks],
    needs: Sequence[Boxes],
    needed_blocks: Sequence[Sequence[Blocks]],
) -> Table | float:
    """Elements that are sent over those that are read, for candidates of an array and a reader.

    A reader of whole windows receives the elements of which these are views.  They are as many as
    the windows, and those of a halo for each piece.  Where windows themselves are cut, or taken
    with a step, the elements are sent that are read.

    Parameters
    ----------
    node
        The array.
    held, held_blocks
        What each worker holds of it: candidates that are boxes, then those that are blocks.
    needs, needed_blocks
        The same for what it needs.

    Returns
    -------
    1 for arrays that are no moving windows; else a table.
    """
    if node.windows == 1:
        return 1.0
    own = [axis for axis, out in enumerate(node.out) if out.label is not None]
    inner = [axis for axis, out in enumerate(node.out) if out.label is None]
    of_boxes = np.logical_and.reduce([_whole(node, need, own, inner) for need in needs])
    of_blocks = [_is_whole(node, reads, inner) for reads in needed_blocks]
    whole = np.append(of_boxes, np.array(of_blocks, dtype=bool))
    there = _lengths(held, held_blocks, own)
    needed = _lengths(needs[0], [reads[0] for reads in needed_blocks], own)
    share = np.ones((len(there), len(needed)))
    for place, axis in enumerate(own):
        halo = node.edges[0].axes[axis].width - 1
        piece = np.minimum(there[:, place, None], needed[None, :, place])
        share *= (piece + halo) / np.maximum(piece, 1)
    share = np.minimum(share / node.windows, 1.0)
    return np.where(whole, share, 1.0)


def _whole(node: Node, need: Boxes, own: Sequence[int], inner: Sequence[int]) -> Bools:
    """For every candidate, whether all workers read whole windows, one after another."""
    is_taken = need.taken is not None and need.taken.axis in inner
    if is_taken or any(need.step(axis).step != 1 for axis in own):
        return np.zeros(len(need), dtype=bool)
    length = (need.hi - need.lo)[:, :, inner]
    full = (length == [node.shape[axis] for axis in inner]).all(axis=2)
    return (full | ~need.active).all(axis=1)


def _is_whole(node: Node, reads: Sequence[Blocks], inner: Sequence[int]) -> bool:
    """The same for a candidate that is blocks."""
    return all(
        all(tuple(read.edges[axis]) == (0, node.shape[axis]) for axis in inner)
        and all(step.step == 1 for step in read.steps)
        for read in reads
    )


def _lengths(boxes: Boxes, blocks: Sequence[Blocks], axes: Sequence[int]) -> Table:
    """The longest part of a worker along some axes: (candidates, axes)."""
    length = np.where(boxes.active[:, :, None], (boxes.hi - boxes.lo)[:, :, axes], 0)
    longest = length.max(axis=1, initial=0).astype(np.float64)
    of_blocks = [[float(np.diff(each.edges[axis]).max()) for axis in axes] for each in blocks]
    return np.concatenate([longest, np.array(of_blocks).reshape(-1, len(axes))])
