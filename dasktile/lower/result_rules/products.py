"""Products and factorisations of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.result_rules.given import Given, Rule, of_common_type


def _are_matrices(sources: Sequence[KnownResult], count: int) -> bool:
    """Whether there are so many results, all of them matrices."""
    return len(sources) == count and all(
        each.is_array and len(each.shapes[0]) == 2 for each in sources
    )


def _are_arrays(given: Given, count: int) -> bool:
    """Whether a function is called with so many arrays, none of them in a list."""
    sources = given.sources
    return len(sources) == count and not given.is_listed and all(each.is_array for each in sources)


def _product(given: Given) -> KnownResult | None:
    """The product of a matrix with a matrix or a vector."""
    sources = given.sources
    if not _are_arrays(given, 2) or len(sources[0].shapes[0]) != 2:
        return None
    first, second = sources
    shape = (first.shapes[0][0], *second.shapes[0][1:])
    known = of_common_type(shape, sources)
    return known or KnownResult((shape,), first.itemsize)


def _matrix_product(given: Given) -> KnownResult | None:
    """A product of stacks of matrices, with an axis for the sum before the last one."""
    sources = given.sources
    if not _are_arrays(given, 2) or any(len(each.shapes[0]) < 2 for each in sources):
        return None
    left, right = (each.shapes[0] for each in sources)
    stack = np.broadcast_shapes(left[:-2], right[:-2])
    return of_common_type((*stack, left[-2], 1, right[-1]), sources)


def _tensor_product(given: Given) -> KnownResult | None:
    """A sum of products along axes, which have the length one among those of the first block."""
    sources, axes = given.sources, given.option("axes")
    if not _are_arrays(given, 2) or not isinstance(axes, tuple) or len(axes) != 2:
        return None
    (left, right), (first, second) = (each.shapes[0] for each in sources), axes
    first, second = {axis % len(left) for axis in first}, {axis % len(right) for axis in second}
    shape = [size for axis, size in enumerate(left) if axis not in first]
    shape += [size for axis, size in enumerate(right) if axis not in second]
    for axis in sorted(first):
        shape.insert(axis, 1)
    return of_common_type(tuple(shape), sources)


def _einsum(given: Given) -> KnownResult | None:
    """Dask's step of an Einstein summation; axes that are summed have the length one at the end."""
    sources, options = given.sources, given.keywords
    read, arrow, made = str(options.get("subscripts", "")).partition("->")
    terms = read.split(",")
    if not arrow or "." in read or not _are_arrays(given, len(terms)):
        return None
    sizes: dict[str, int] = {}
    for term, source in zip(terms, sources, strict=True):
        for symbol, size in zip(term, source.shapes[0], strict=True):
            sizes[symbol] = max(size, sizes.get(symbol, 1))
    shape = (*(sizes[each] for each in made), *(1,) * options.get("ncontract_inds", 0))
    dtype = options.get("kernel_dtype")
    if dtype is None:
        return of_common_type(shape, sources)
    return known_array(shape, dtype)


def _factors(given: Given) -> KnownResult | None:
    """The factors Q and R of a matrix."""
    sources = given.sources
    if not _are_matrices(sources, 1):
        return None
    [source] = sources
    rows, columns = source.shapes[0]
    inner = min(rows, columns)
    shapes, dtype = ((rows, inner), (inner, columns)), source.dtype
    if dtype is not None and dtype.kind != "f":
        return None
    return KnownResult(shapes, source.itemsize, is_array=False, dtype=dtype)


def _singular(given: Given) -> KnownResult | None:
    """The factors U and V of a matrix, and its singular values between them."""
    factors = _factors(given)
    if factors is None:
        return None
    left, right = factors.shapes
    return replace(factors, shapes=(left, left[1:], right))


def _triangular(given: Given) -> KnownResult | None:
    """The factors P, L and U of a square matrix."""
    sources = given.sources
    if not _are_matrices(sources, 1):
        return None
    return replace(sources[0], shapes=sources[0].shapes * 3, is_array=False)


def _like_last(given: Given) -> KnownResult | None:
    """A result of the shape of the last input: a factor, or a solution."""
    sources = given.sources
    return sources[-1] if sources and all(each.is_array for each in sources) else None


def _python_sum(given: Given) -> KnownResult | None:
    """A sum by Python's own function, which begins with an integer."""
    known = _like_last(given)
    if known is None:
        return None
    return known if known.dtype is None else of_common_type(known.shapes[0], [known, _INTEGER])


#: An integer of Python among numbers of NumPy.
_INTEGER = known_array((), int)


def _transform(given: Given) -> KnownResult | None:
    """A Fourier transform along one axis, with as many elements as its array."""
    array = given.array
    if array is None or given.is_listed or given.option("n") is not None or array.dtype is None:
        return None
    if array.shapes[0][given.option("axis", 1)] == 0:
        return None
    return known_array(array.shapes[0], np.fft.fft(np.ones(1, array.dtype)).dtype)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("numpy.fft", "numpy.ifft"), _transform),
    "numpy.dot": _product,
    "dask._matmul": _matrix_product,
    "dask._tensordot": _tensor_product,
    "dask.chunk_einsum": _einsum,
    "numpy.qr": _factors,
    "dask._wrapped_qr": _factors,
    "numpy.svd": _singular,
    "scipy.lu": _triangular,
    "builtins.sum": _python_sum,
    "dask._cholesky_lower": _like_last,
    "dask._solve_triangular_lower": _like_last,
    "dask.solve_triangular_safe": _like_last,
}
