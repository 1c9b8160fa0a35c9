"""The private names of flox that dasktile uses: the functions in the tasks of its group-by.

A graph that has such tasks comes from a process that has imported flox, and unpickling it imports
flox.  So flox is looked up among the modules that are loaded, and never imported.  Where the
installed flox is of a release that was not checked, or lacks a name, :func:`flox_names` is None:
no step of a group-by is recognised, and its tasks are unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from dask.sizeof import sizeof

Function = Callable[..., Any]

#: Releases of flox, without their last number, whose tasks and partial results were checked.
CHECKED: Final = ("0.11",)

#: The name of a function that puts a block and the positions of its elements into a tuple.
_ZIPPED: Final = "argreduce_preprocess.<locals>._zip_index"


@dataclass(frozen=True, slots=True, eq=False)
class FloxNames:
    """Private names of flox.

    Parameters
    ----------
    extract
        Takes the array out of what `aggregate` returns.
    aggregate, combine
        Finish a reduction, and combine partial results of blocks, both given nested lists.
    grouped
        Combines partial results as `combine` does, by another reduction by groups.
    chunk, expand
        Reduce a block to a partial result by group, and give it an axis to be combined along.
    argchunk
        As `chunk`, of a block and positions in a tuple.
    moments
        Computes the deviations, the sum and the count of every group of a block.
    reduce
        Computes the groups of a block, all elements of which are in it.
    reindex
        Selects groups of a partial result.
    strategy
        The class of the argument `reindex` of `aggregate` and `combine`.
    arrays
        Types of arrays, of a strategy, with which blocks are NumPy arrays.
    reductions
        The aggregations of flox itself, by name.
    codes, ravel
        Replace labels by their number among the expected ones, and numbers along several labels by
        one; both element by element.
    """

    extract: Function
    aggregate: Function
    combine: Function
    grouped: Function
    chunk: Function
    argchunk: Function
    expand: Function
    moments: Function
    reduce: Function
    reindex: Function
    strategy: type
    arrays: tuple[Any, ...]
    reductions: Mapping[str, Any]
    codes: Function
    ravel: Function

    def is_step(self, function: Any) -> bool:
        """Whether the chunks that Dask notes for a layer are not those of a function's results."""
        return self.is_partial(function) or function in (self.reduce, self.reindex)

    def is_partial(self, function: Any) -> bool:
        """Whether the results of a function are not the arrays that Dask notes for its layer.

        They are tuples or dicts, of partial results, of groups with their results, or of elements
        with their positions.
        """
        if getattr(function, "__qualname__", "") == _ZIPPED:
            return bool(function.__module__ == "flox.aggregations")
        known = (self.aggregate, self.combine, self.grouped, self.chunk, self.argchunk, self.expand)
        return any(function is each for each in known)


def flox_names() -> FloxNames | None:
    """The names of the flox that is loaded; None without one, or if it was not checked."""
    if "flox.dask" not in sys.modules or not _is_checked():
        return None
    modules = (f"flox.{name}" for name in ("dask", "core", "reindex", "aggregations", "factorize"))
    try:
        return _names_of(*map(sys.modules.get, modules))
    except AttributeError:
        return None


@cache
def _names_of(dask: Any, core: Any, reindex: Any, aggregations: Any, factorize: Any) -> FloxNames:
    """The names of some modules.

    That some are missing is not kept: another thread may be importing flox.
    """
    kinds = reindex.ReindexArrayType
    return FloxNames(
        extract=dask._extract_result,
        aggregate=dask._aggregate,
        combine=dask._simple_combine,
        grouped=dask._grouped_combine,
        chunk=core.chunk_reduce,
        argchunk=core.chunk_argreduce,
        expand=dask._expand_dims,
        moments=aggregations.var_chunk,
        reduce=core._reduce_blockwise,
        reindex=dask.reindex_intermediates,
        strategy=reindex.ReindexStrategy,
        arrays=(kinds.AUTO, kinds.NUMPY),
        reductions=aggregations.REDUCTIONS,
        codes=factorize._lazy_factorize_wrapper,
        ravel=factorize._ravel_factorized,
    )


@cache
def _is_checked() -> bool:
    """Whether the release of the flox that is loaded was checked."""
    try:
        return ".".join(version("flox").split(".")[:2]) in CHECKED
    except PackageNotFoundError:
        return False


def is_elementwise(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of flox replaces every label by a number that depends on no other label."""
    names = flox_names()
    if names is None:
        return False
    if function is names.ravel:
        return set(kwargs) == {"grp_shape"}
    if function is not names.codes:
        return False
    groups = kwargs.get("expected_groups")
    # without expected groups, numbers depend on the labels of the block
    return (
        set(kwargs) == {"expected_groups", "axes", "fastpath", "reindex", "sort"}
        and kwargs["reindex"] is True
        and kwargs["fastpath"] is True
        and kwargs["axes"] == ()
        and isinstance(groups, tuple)
        and all(group is not None for group in groups)
    )


def count_bytes() -> None:
    """Let Dask count the bytes of partial results of variances, of which it sees no arrays.

    In this process only: workers without the plugin count fewer.
    """
    sizeof.register_lazy("flox", _register_size)


def _register_size() -> None:
    try:
        multiarray = import_module("flox.multiarray").MultiArray
    except (ImportError, AttributeError):
        return
    sizeof.register(multiarray, lambda value: sum(map(sizeof, value.arrays)))
