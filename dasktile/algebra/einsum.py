"""Extended Einstein summation: any join of matching elements, and any reduction.

``einsum("ij,jk->ik", A, B)`` is the matrix product.  Elements of both arrays with equal values of
the shared labels are joined, here by a product.  Results with equal values of the output's labels
are reduced, here by a sum.  With other functions it gives shortest paths of two steps, distances
between all rows, or reachability (EinDecomp, section 3).

The result is an ordinary dask array, written in the tensor-relational algebra (section 4.2).  A
*repartition* gives the operands equal cuts along shared labels, a *join* makes a partial result of
every set of matching tiles, and an *aggregate* reduces these to the tiles of the result.
:func:`dasktile.optimize` reads all of this as one node and chooses its tiles.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.array as da
import dask.config
import numpy as np
from dask.utils import funcname, parse_bytes

from dasktile.algebra.paths import Path, contraction_path, steps
from dasktile.algebra.semiring import Algebra, algebra_of
from dasktile.algebra.subscripts import Term, label_sizes, parsed
from dasktile.capture.rules.einsums import Recipe, reduced_labels
from dasktile.cluster.target import machine
from dasktile.ir import bounds
from dasktile.lower.kernels.einsums import aggregate_blocks, join_blocks, joined


def einsum(
    subscripts: str,
    *operands: Any,
    join: Callable[..., Any] = np.multiply,
    reduce: Callable[..., Any] = np.add,
    workers: Any = None,
) -> da.Array:
    """Extended Einstein summation on dask arrays.

    Parameters
    ----------
    subscripts
        Labels of the operands' axes and, after ``->``, of the result's, as for
        :func:`numpy.einsum`.  Without an output, its labels are those that occur once.  An ellipsis
        stands for axes that broadcast.  A label that an operand has twice means its diagonal.
        Axes of size one broadcast.
    *operands
        Dask arrays, NumPy arrays, or objects that can be converted to arrays.
    join
        The function of matching elements: a ufunc, or any elementwise function of as many
        arrays as there are operands, for arrays that broadcast.  A ufunc of two arguments joins
        more operands from left to right if it is one of the reductions below.  For a single
        operand it may be a function of one array.
    reduce
        The reduction over the labels that are not in the output.  One of the ufuncs
        ``add``, ``multiply``, ``maximum``, ``minimum``, ``fmax``, ``fmin``, ``logical_and``,
        ``logical_or``, ``logical_xor``, ``bitwise_and``, ``bitwise_or``, ``bitwise_xor``,
        ``logaddexp``, ``logaddexp2``, ``hypot``, ``gcd``, ``lcm``; an alias of one of these, such
        as :func:`numpy.max` or ``sum``; or any other elementwise function of two arrays that
        is associative and commutative, which is applied to pairs in any order.
    workers
        As in :func:`dasktile.optimize`: the processes for which an order of contraction of three
        operands or more is chosen.

    Returns
    -------
    dask.array.Array
        A lazy dask array.  Its dtype is that of :func:`numpy.einsum` for a sum of products,
        otherwise that of the ufunc's ``reduce`` for the join's dtype.

    Raises
    ------
    TypeError, ValueError
        For wrong arguments; the message names the subscript, the operand and the sizes.

    Notes
    -----
    Sums of products are contracted two operands at a time, in the order of least cost, operations
    and bytes together.  The same holds for joins that distribute
    over their reduction without rounding or overflow: and over or, minimum over maximum.  Other
    joins are of all operands at once; nest calls where an order of contraction is valid.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> d = da.from_array([[0.0, 3.0, 9.0], [3.0, 0.0, 4.0], [9.0, 4.0, 0.0]], chunks=2)
    >>> dasktile.einsum("ij,jk->ik", d, d, join=np.add, reduce=np.minimum).compute()
    array([[0., 3., 7.],
           [3., 0., 4.],
           [7., 4., 0.]])
    """
    if not isinstance(subscripts, str):
        raise TypeError(
            "subscripts must be a string such as 'ij,jk->ik';"
            f" got {subscripts!r} of type {type(subscripts).__name__}"
        )
    for name, function in (("join", join), ("reduce", reduce)):
        if not callable(function):
            raise TypeError(f"{name} must be a function; got {function!r}")
    target = machine(workers) if workers is not None else None
    arrays = [_array(number, operand) for number, operand in enumerate(operands)]
    shapes = [array.shape for array in arrays]
    inputs, output = parsed(subscripts, shapes)
    sizes = label_sizes(subscripts, shapes, inputs)
    arrays, inputs = _squeezed(arrays, inputs, sizes)
    algebra = algebra_of(arrays, join, reduce)
    if 0 in sizes.values():
        return _empty_reduction(subscripts, arrays, inputs, output, sizes, algebra)
    if len(arrays) == 1 or not algebra.distributes:
        return _computed(arrays, inputs, output, algebra)
    arrays, inputs = _presummed(arrays, inputs, output, algebra)
    path: Path = (tuple(range(len(arrays))),)
    if len(arrays) > 2:
        target = target or machine()
        itemsize = np.result_type(*(array.dtype for array in arrays)).itemsize
        path = contraction_path(
            inputs, output, sizes, itemsize, target.workers, target.threads, target.settings()
        )
    held = dict(enumerate(zip(arrays, inputs, strict=True)))
    for step, (numbers, term) in enumerate(steps(path, inputs, output)):
        some, terms = zip(*(held.pop(number) for number in numbers), strict=True)
        held[len(arrays) + step] = _computed(some, terms, term, algebra), term
    ((result, _),) = held.values()
    return result


# --- the tensor-relational algebra -------------------------------------------------------


def repartition(array: da.Array, labels: Term, cuts: Mapping[str, tuple[int, ...]]) -> da.Array:
    """An array cut along its labels as the einsum needs it (EinDecomp, section 4.2)."""
    return array.rechunk(tuple(cuts[label] for label in labels))


def join(recipe: Recipe, arrays: Sequence[da.Array]) -> da.Array:
    """The partial results of all sets of matching tiles (EinDecomp, section 4.2).

    Returns
    -------
    An array over all labels, with the reduced ones last; its tiles have size one along those.
    """
    reduced = reduced_labels(recipe)
    pairs = [part for pair in zip(arrays, recipe.spec, strict=True) for part in pair]
    return da.blockwise(
        join_blocks,
        (*recipe.output, *reduced),
        *pairs,
        recipe=recipe,
        adjust_chunks=dict.fromkeys(reduced, 1),
        align_arrays=False,
        token="einsum",
        dtype=recipe.dtype,
        meta=np.empty((0,) * (len(recipe.output) + len(reduced)), recipe.dtype),
    )


def aggregate(recipe: Recipe, partials: da.Array) -> da.Array:
    """The partial results reduced over the tiles, in a tree (EinDecomp, section 4.2)."""
    kept, reduced = len(recipe.output), len(reduced_labels(recipe))
    if not reduced:
        return partials
    function = functools.partial(aggregate_blocks, recipe=recipe)
    return da.reduction(
        partials,
        chunk=functools.partial(joined, recipe=recipe),
        combine=function,
        aggregate=function,
        axis=tuple(range(kept, kept + reduced)),
        name="einsum",
        dtype=recipe.dtype,
        meta=np.empty((0,) * kept, recipe.dtype),
    )


def _computed(
    arrays: Sequence[da.Array], inputs: Sequence[Term], output: Term, algebra: Algebra
) -> da.Array:
    """One join and its aggregation, of operands without broadcast axes."""
    order = dict.fromkeys(itertools.chain(output, *inputs))
    number = {label: place for place, label in enumerate(order)}
    spec = tuple(tuple(number[label] for label in term) for term in inputs)
    recipe = algebra.recipe(arrays, spec, tuple(range(len(output))))
    cuts = _cuts(arrays, inputs, output, recipe)
    tiles = [repartition(array, term, cuts) for array, term in zip(arrays, inputs, strict=True)]
    return aggregate(recipe, join(recipe, tiles))


def _cuts(
    arrays: Sequence[da.Array], inputs: Sequence[Term], output: Term, recipe: Recipe
) -> dict[str, tuple[int, ...]]:
    """Chunks of every label: at the cuts of all operands, and finer where results are large."""
    edges: dict[str, set[int]] = {}
    largest = 1
    for array, term in zip(arrays, inputs, strict=True):
        largest = max(largest, array.dtype.itemsize * math.prod(map(max, array.chunks)))
        for label, sizes in zip(term, array.chunks, strict=True):
            edges.setdefault(label, set()).update(bounds(sizes))
    cuts = {label: tuple(np.diff(sorted(positions)).tolist()) for label, positions in edges.items()}
    room = max(largest, parse_bytes(dask.config.get("array.chunk-size")))
    while recipe.dtype.itemsize * math.prod(max(cuts[label]) for label in output) > room:
        longest = max(output, key=lambda label: max(cuts[label]))
        most = -(-max(cuts[longest]) // 2)
        if most == max(cuts[longest]):
            break
        halves = ((size,) if size <= most else (size - size // 2, size // 2)
                  for size in cuts[longest])  # fmt: skip
        cuts[longest] = tuple(itertools.chain(*halves))
    return cuts


def _presummed(
    arrays: Sequence[da.Array], inputs: Sequence[Term], output: Term, algebra: Algebra
) -> tuple[list[da.Array], list[Term]]:
    """Operands reduced over the labels that no other operand and no output has."""
    operands = []
    for number, (array, term) in enumerate(zip(arrays, inputs, strict=True)):
        others = {*output, *itertools.chain(*inputs[:number], *inputs[number + 1 :])}
        rest = tuple(label for label in dict.fromkeys(term) if label in others)
        if set(rest) != set(term):
            array, term = _computed([array], [term], rest, algebra), rest
        operands.append((array, term))
    return [array for array, _ in operands], [term for _, term in operands]


def _empty_reduction(
    subscripts: str,
    arrays: Sequence[da.Array],
    inputs: Sequence[Term],
    output: Term,
    sizes: Mapping[str, int],
    algebra: Algebra,
) -> da.Array:
    """The result where some label has size 0: empty, or the identity of the reduction."""
    order = dict.fromkeys(itertools.chain(output, *inputs))
    number = {label: place for place, label in enumerate(order)}
    spec = tuple(tuple(number[label] for label in term) for term in inputs)
    dtype = algebra.recipe(arrays, spec, tuple(range(len(output)))).dtype
    shape = tuple(sizes[label] for label in output)
    if 0 in shape:
        return da.zeros(shape, dtype=dtype)
    if not isinstance(algebra.reduce, np.ufunc) or algebra.reduce.identity is None:
        label = next(label for label, size in sizes.items() if size == 0)
        raise ValueError(
            f"einsum {subscripts!r}: label {label!r} has size 0, and reduce"
            f" {funcname(algebra.reduce)} has no identity"
        )
    return da.full(shape, algebra.reduce.reduce(np.empty(0, dtype)), dtype=dtype)


# --- operands ------------------------------------------------------------------------------


def _array(number: int, operand: Any) -> da.Array:
    """An operand as a dask array with known chunks of NumPy or CuPy arrays."""
    array = operand if isinstance(operand, da.Array) else da.asarray(operand)
    if not isinstance(array, da.Array):
        raise TypeError(
            f"operand {number} of einsum must be an array; got one of type {type(operand).__name__}"
        )
    kind = type(array._meta)
    if kind is not np.ndarray and not kind.__module__.startswith("cupy"):
        raise TypeError(
            f"operand {number} of einsum must be made of numpy.ndarray chunks; they are of type"
            f" {kind.__module__}.{kind.__qualname__}"
        )
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise ValueError(
            f"operand {number} of einsum has unknown chunk sizes {array.chunks}; its"
            " compute_chunk_sizes() computes them"
        )
    return array


def _squeezed(
    arrays: Sequence[da.Array], inputs: Sequence[Term], sizes: Mapping[str, int]
) -> tuple[list[da.Array], list[Term]]:
    """Operands without the axes that broadcast."""
    operands = []
    for array, term in zip(arrays, inputs, strict=True):
        keep = [size == sizes[label] for label, size in zip(term, array.shape, strict=True)]
        if not all(keep):
            array = array[tuple(slice(None) if stays else 0 for stays in keep)]
            term = tuple(label for label, stays in zip(term, keep, strict=True) if stays)
        operands.append((array, term))
    return [array for array, _ in operands], [term for _, term in operands]
