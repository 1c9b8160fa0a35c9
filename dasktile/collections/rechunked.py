"""Collections in the chunks that a user wants, before they are tiled.

The last step of such an array is a ``rechunk``.  The program that is tiled ends below it, and the
plan makes and prices its chunks as it does those of ``keep_chunks=True``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
from dask.array.core import Array
from dask.base import is_dask_collection

from dasktile.collections.unpack import (
    datasets_of,
    is_expression,
    is_tree,
    is_xarray,
    tree_of,
)


def rechunked(collections: Sequence[Any], chunks: Any) -> tuple[Any, ...]:
    """The same collections, their arrays in other chunks.

    Parameters
    ----------
    collections
        Dask arrays, xarray objects, and lists, tuples and dicts of them.
    chunks
        As for ``dask.array.rechunk``, and for xarray objects as for their method ``chunk``, except
        that their variables in memory stay there.

    Raises
    ------
    TypeError
        For other collections, whose chunks cannot be changed, and for True and False as sizes.
    ValueError
        As Dask, for chunks that do not fit an array.
    """
    _check_sizes(chunks, chunks)
    return tuple(_rechunked(value, chunks) for value in collections)


def _check_sizes(part: Any, chunks: Any) -> None:
    """Raise an error for negative sizes, and for True and False, in a part of `chunks`."""
    if isinstance(part, (tuple, list)):
        for each in part:
            _check_sizes(each, chunks)
    elif isinstance(part, Mapping):
        _check_sizes(list(part.values()), chunks)
    elif isinstance(part, (bool, np.bool_)):
        raise TypeError(f"chunks={chunks!r} must have sizes, not True or False")
    elif isinstance(part, Integral) and part < -1:
        raise ValueError(f"chunks={chunks!r} must have sizes of at least 1, or -1 for a whole axis")


@contextmanager
def _named(extent: str, chunks: Any) -> Iterator[None]:
    """Add to an error of Dask or xarray the argument, its value, and what is allowed."""
    try:
        yield
    except ZeroDivisionError:
        raise ValueError(
            f"chunks={chunks!r} must have sizes of at least 1, or -1, for axes with elements; got"
            f" {extent}"
        ) from None
    except Exception as error:
        error.add_note(
            f"chunks={chunks!r} of dasktile: give a size, a tuple or a dict of sizes that fit"
            f" {extent}, 'auto', bytes such as '100 MiB', or None"
        )
        raise


def _rechunked_tree(tree: Any, chunks: Any) -> Any:
    """As `_rechunked`; sizes by dimension apply to the nodes that have the dimension."""
    datasets = datasets_of(tree)
    known = {name for dataset in datasets.values() for name in dataset.dims}
    new = {}
    for path, dataset in datasets.items():
        part = chunks
        if isinstance(chunks, Mapping):
            # an unknown dimension is an error of xarray
            part = {
                name: size
                for name, size in chunks.items()
                if name in dataset.dims or name not in known
            }
        new[path] = _rechunked(dataset, part)
    return tree_of(tree, new)


def _rechunked(value: Any, chunks: Any) -> Any:
    if isinstance(value, Array) or is_expression(value):
        _check_axes(value, chunks)
        with _named(f"shape {value.shape}", chunks):
            return value.rechunk(chunks)
    if is_xarray(value):
        if not is_dask_collection(value):
            return value
        with _named(f"dimensions {dict(value.sizes)}", chunks):
            return _in_memory_as_before(value, _chunked(value, _by_dimension(value, chunks)))
    if is_tree(value):
        return _rechunked_tree(value, chunks)
    if type(value) in (list, tuple):
        return type(value)(_rechunked(item, chunks) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rechunked(item, chunks) for item in value))
    if type(value) is dict:
        return {key: _rechunked(item, chunks) for key, item in value.items()}
    if is_dask_collection(value):
        kind = type(value)
        raise TypeError(
            f"chunks={chunks!r} is for dask arrays and xarray objects; got a collection of type"
            f" {kind.__module__}.{kind.__qualname__}: optimize it in a call without chunks"
        )
    return value


def _check_axes(array: Any, chunks: Any) -> None:
    """Raise an error for a tuple that has not one entry for each axis, or a dict with names.

    Dask ignores those that are too many.  A number without axes has no chunks to change.
    """
    names = [key for key in chunks if isinstance(key, str)] if isinstance(chunks, Mapping) else []
    if names:
        raise TypeError(
            f"chunks={chunks!r} must have integers for the axes of a dask array; got {names[0]!r}:"
            " names of dimensions are for xarray objects"
        )
    if isinstance(chunks, (tuple, list)) and len(chunks) != array.ndim > 0:
        raise ValueError(
            f"chunks={chunks!r} must have one entry for each axis of shape {array.shape}: a size,"
            " or a tuple with those of all chunks; give a size without a tuple for all axes, or a"
            " dict for some of them"
        )


def _by_dimension(value: Any, chunks: Any) -> Any:
    """Chunks for the method ``chunk`` of an object of xarray, where a tuple is deprecated."""
    if not isinstance(chunks, (tuple, list)):
        return chunks
    # of the class, because a dataset has its variables as attributes
    if hasattr(type(value), "data_vars"):
        return dict.fromkeys(value.sizes, chunks)
    if not hasattr(type(value), "variable"):
        return chunks
    if len(chunks) != len(value.dims):
        raise ValueError(
            f"chunks={chunks!r} must have one entry for each dimension of {value.dims}; use a dict"
            " to change those of some dimensions"
        )
    return dict(zip(value.dims, chunks, strict=True))


def _chunked(value: Any, chunks: Any) -> Any:
    """An object of xarray in other chunks, all variables in the same along each dimension.

    xarray divides every variable by itself if the chunks are bytes or ``"auto"``, and an object of
    different chunks can be neither stored nor asked for its chunks.  Those of the largest variable
    are taken.
    """
    new = value.chunk(chunks)
    given = chunks if isinstance(chunks, Mapping) else dict.fromkeys(value.sizes, chunks)
    largest = sorted(_in_chunks(value, new), key=lambda variable: variable.nbytes, reverse=True)
    found: dict[Any, list[tuple[int, ...]]] = {}
    for variable in largest:
        for dim, sizes in zip(variable.dims, variable.chunks, strict=True):
            found.setdefault(dim, []).append(sizes)
    # a dimension without a size keeps its chunks
    found = {dim: sizes for dim, sizes in found.items() if given.get(dim) is not None}
    if all(len(set(sizes)) == 1 for sizes in found.values()):
        return new
    return value.chunk({dim: sizes[0] for dim, sizes in found.items()})


def _in_chunks(old: Any, new: Any) -> list[Any]:
    """The variables of an object of xarray that are in chunks before it is chunked, and after it.

    The others are in memory, and stay there.
    """
    # of the class, because a dataset has its variables as attributes
    if hasattr(type(old), "data_vars"):
        before, after = old.variables, new.variables
    elif hasattr(type(old), "variable"):
        before = {None: old.variable} | {name: old.coords[name].variable for name in old.coords}
        after = {None: new.variable} | {name: new.coords[name].variable for name in new.coords}
    else:
        return [new]
    return [after[name] for name in before if is_dask_collection(before[name])]


def _in_memory_as_before(old: Any, new: Any) -> Any:
    """An object of xarray in other chunks, with the variables that were in memory."""
    coords = getattr(old, "coords", {})
    # indexes are never in chunks
    kept = {
        name: coords[name].variable
        for name in coords
        if not is_dask_collection(coords[name].variable)
        and is_dask_collection(new.coords[name].variable)
    }
    data = getattr(old, "data_vars", {})
    others = {
        name: each.variable for name, each in data.items() if not is_dask_collection(each.variable)
    }
    # of the class, because a dataset has its variables as attributes
    if hasattr(type(old), "variable") and not is_dask_collection(old.variable):
        new = new.copy(deep=False, data=old.variable.data)
    if kept:
        new = new.assign_coords(kept)
    return new.assign(others) if others else new
