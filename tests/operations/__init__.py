"""The operations of random expressions.

Each takes an expression and one of its arrays and adds the result to the expression, or returns
None if it does not apply to the array.  Operations that are listed several times are more frequent.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.expressions import Expression, Value
from tests.operations.axes import (
    blocks,
    centred,
    computed_mask,
    fft,
    gufunc,
    moving,
    overlap,
    shifted,
)
from tests.operations.elementwise import astype, binary, clip, operators, special, unary, where
from tests.operations.handwritten import cloned, layer
from tests.operations.moves import (
    assigned,
    broadcast,
    coarsen,
    diagonal,
    diff,
    dims,
    fancy,
    flip,
    insertion,
    join,
    pad,
    pointwise_index,
    rechunk,
    repeat,
    reshape,
    roll,
    rotate,
    slicing,
    swap,
    transpose,
    triangle,
)
from tests.operations.products import einsum, gram, matmul, outer, tensordot
from tests.operations.reductions import argument, counts, fold, median, scan, topk

Operation = Callable[[Expression, Value], Value | None]

OPERATIONS: tuple[Operation, ...] = (
    *(unary, unary, binary, binary, binary, binary, operators, where, clip, astype, special),
    *(matmul, matmul, matmul, gram, tensordot, einsum, einsum, einsum, outer),
    *(fold, fold, fold, fold, argument, argument, median, scan, scan, topk, counts),
    *(transpose, transpose, swap, slicing, slicing, slicing, fancy, fancy, pointwise_index),
    *(reshape, reshape, join, join, broadcast, flip, roll, rechunk, rechunk, dims, pad, diff),
    *(triangle, diagonal, repeat, rotate, insertion, assigned, coarsen),
    *(layer, layer, layer, cloned),
    *(fft, shifted, overlap, overlap, moving, gufunc, blocks, computed_mask, centred),
)
