"""Functions of the tasks of a contraction: products of tiles, computed by BLAS."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dask.array.dispatch import einsum_lookup, tensordot_lookup

from dasktile.capture.rules.blockwise import Contract

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def multiply(recipe: Contract, *tiles: Any) -> Any:
    """The product of `tiles`, summed over the labels that the result lacks."""
    operands: list[Any] = []
    spec: list[tuple[int, ...]] = []
    for tile, labels in zip(tiles, recipe.spec, strict=True):
        if None in labels:
            tile = tile[tuple(0 if label is None else slice(None) for label in labels)]
        operands.append(_cast(tile, recipe))
        spec.append(tuple(label for label in labels if label is not None))
    present = {label for labels in spec for label in labels}
    output = tuple(label for label in recipe.output if label in present)
    if _pairwise(recipe):
        result = _binary(operands[0], operands[1], spec[0], spec[1], output)
    else:
        result = _einsum(operands, spec, output, recipe)
    if len(output) < len(recipe.output):
        # axes of size one that no tile has
        result = result[tuple(slice(None) if label in present else None for label in recipe.output)]
    # a result without axes is a scalar, as in NumPy
    return result if recipe.output else result[()]


def accumulate(recipe: Contract, before: Any, *tiles: Any) -> Any:
    """The product of `tiles` plus the partial result `before`, which is unchanged."""
    product = multiply(recipe, *tiles)
    plain = type(before) is type(product) is np.ndarray and before.dtype == product.dtype
    if plain and _pairwise(recipe):
        # in place: the product is a new array without other references
        return np.add(before, product, out=product)
    return before + product


def _pairwise(recipe: Contract) -> bool:
    """True for two tiles, neither of which repeats a label."""
    axes = [[label for label in labels if label is not None] for labels in recipe.spec]
    return len(axes) == 2 and all(len(set(labels)) == len(labels) for labels in axes)


def total(*partials: Any) -> Any:
    """The sum of two or more partial results, which are unchanged."""
    first, *rest = partials
    return functools.reduce(_add_to, rest[1:], first + rest[0])


def _add_to(fresh: Any, term: Any) -> Any:
    fresh += term
    return fresh


def _cast(tile: Any, recipe: Contract) -> Any:
    # a tile may have a wider dtype than its array: it keeps its precision
    if tile.dtype == recipe.dtype or not np.can_cast(tile.dtype, recipe.dtype, "safe"):
        return tile
    return tile.astype(recipe.dtype)


def _einsum(
    operands: Sequence[Any],
    spec: Sequence[Sequence[int]],
    output: Sequence[int],
    recipe: Contract,
) -> Any:
    used = sorted({label for labels in spec for label in labels})
    letter = dict(zip(used, _LETTERS, strict=False))
    inputs = ",".join("".join(letter[label] for label in labels) for labels in spec)
    subscripts = f"{inputs}->{''.join(letter[label] for label in output)}"
    kwargs = dict(recipe.kwargs)
    if isinstance(kwargs.get("optimize", False), bool):
        # chains of BLAS calls, instead of one loop over all labels
        kwargs["optimize"] = len(operands) > 1
    einsum = einsum_lookup.dispatch(type(_foremost(operands)))
    result = einsum(subscripts, *operands, dtype=recipe.dtype, **kwargs)
    return _positive(result) if len(operands) > 1 else result


def _positive(fresh: Any) -> Any:
    """Replace negative zeros: NumPy sums products from zero, so 0 * -2 is 0."""
    fresh += fresh.dtype.type(0)
    return fresh


def _foremost(operands: Sequence[Any]) -> Any:
    return max(operands, key=lambda operand: getattr(operand, "__array_priority__", 0))


def _binary(
    left: Any, right: Any, of_left: Sequence[int], of_right: Sequence[int], output: Sequence[int]
) -> Any:
    """The product of two tiles; the result is always a new array."""
    left, of_left = _sum_lone(left, of_left, {*of_right, *output})
    right, of_right = _sum_lone(right, of_right, {*of_left, *output})
    # for one summed element, np.dot returns 0 where a factor is 0 and the other is NaN
    left, of_left, right, of_right = _drop_single(left, of_left, right, of_right, output)
    shared = [label for label in of_left if label in of_right]
    summed = [label for label in shared if label not in output]
    batch = [label for label in output if label in shared]
    if not summed:
        return _positive(_spread(left, of_left, output) * _spread(right, of_right, output))
    if output and output[0] in of_right and output[0] not in of_left:
        # swapped, the axes of the result are in the order of the output more often
        left, right, of_left, of_right = right, left, of_right, of_left
    rows = [label for label in output if label in of_left and label not in shared]
    columns = [label for label in output if label in of_right and label not in shared]
    if batch:
        result = _batched(left, right, of_left, of_right, (batch, rows, summed, columns))
    else:
        tensordot = tensordot_lookup.dispatch(type(_foremost((left, right))))
        axes = [[list(labels).index(label) for label in summed] for labels in (of_left, of_right)]
        result = tensordot(left, right, axes=axes)
        rows = [label for label in of_left if label in rows]
        columns = [label for label in of_right if label in columns]
    order = [*batch, *rows, *columns]
    if order == list(output):
        return result
    return result.transpose([order.index(label) for label in output])


def _sum_lone(tile: Any, labels: Sequence[int], kept: set[int]) -> tuple[Any, Sequence[int]]:
    """Sum over labels that neither the other tile nor the result has."""
    lone = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not lone:
        return tile, labels
    return tile.sum(axis=lone, dtype=tile.dtype), [label for label in labels if label in kept]


def _drop_single(
    left: Any, of_left: Sequence[int], right: Any, of_right: Sequence[int], output: Sequence[int]
) -> tuple[Any, Sequence[int], Any, Sequence[int]]:
    """Drop the summed axes of size one that both tiles have."""
    single = {
        label
        for label, size in zip(of_left, left.shape, strict=True)
        if size == 1 and label in of_right and label not in output
    }
    if not single:
        return left, of_left, right, of_right

    def dropped(tile: Any, labels: Sequence[int]) -> tuple[Any, Sequence[int]]:
        index = tuple(0 if label in single else slice(None) for label in labels)
        return tile[index], [label for label in labels if label not in single]

    return *dropped(left, of_left), *dropped(right, of_right)


def _spread(tile: Any, labels: Sequence[int], output: Sequence[int]) -> Any:
    """A view of a tile with all axes of the result; those that it lacks have size one."""
    order = [label for label in output if label in labels]
    tile = tile.transpose([list(labels).index(label) for label in order])
    return tile[tuple(slice(None) if label in labels else None for label in output)]


def _batched(
    left: Any,
    right: Any,
    of_left: Sequence[int],
    of_right: Sequence[int],
    groups: tuple[list[int], list[int], list[int], list[int]],
) -> Any:
    """A matrix product for every index of the labels that both tiles and the result have."""
    batch, rows, summed, columns = groups
    size = dict(zip((*of_left, *of_right), (*left.shape, *right.shape), strict=True))

    def stack(tile: Any, labels: Sequence[int], *groups: list[int]) -> Any:
        order = [list(labels).index(label) for group in groups for label in group]
        shape = [_count(size, group) for group in groups]
        return tile.transpose(order).reshape(shape)

    product = np.matmul(
        stack(left, of_left, batch, rows, summed), stack(right, of_right, batch, summed, columns)
    )
    return product.reshape([size[label] for label in (*batch, *rows, *columns)])


def _count(size: Mapping[int, int], labels: Sequence[int]) -> int:
    count = 1
    for label in labels:
        count *= size[label]
    return count
