"""The private names of Dask that dasktile uses, each with its use and a replacement.

Private is a name that starts with an underscore or is in a module that does, and what no
documentation of Dask mentions: the functions in the tasks of its layers, which capture
recognises by identity, and the classes of its layers' arguments.  Dask may rename any of them
in any release.  Only this module imports them; :func:`_find` looks each of them up.

Where this Dask lacks a name, there is one :class:`~dasktile.errors.MissingNameWarning` when
dasktile is imported, and

- a function has a replacement here if one is given, else it is an :class:`Absent`, to which no
  function of a graph is identical: the rules for it do not apply, and such operations are
  unchanged;
- a class is an empty class, of which there are no instances;
- a feature named with the name is off, see :func:`missing`.  Without :data:`CAPTURE`
  no graph is read, and ``optimize`` returns its input unchanged: there are no task objects to
  read, or arrays that Dask describes wrongly would not be noticed.

:data:`NAMES` lists all names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from warnings import warn

import numpy as np

from dasktile.errors import MissingNameWarning

#: The release of the installed Dask.
VERSION: Final = version("dask")

#: Releases of Dask with which all names were checked.
CHECKED: Final = ("2026.1.1", "2026.3.0", "2026.7.1", "2026.8.0")

#: Features that are off without some names: reading graphs, making one task of several,
#: planning the order of tasks, and measuring a cluster.
CAPTURE: Final = "capture"
FUSE: Final = "fuse"
PLAN: Final = "plan"
CALIBRATE: Final = "calibrate"


@dataclass(frozen=True, slots=True)
class Name:
    """A private name of Dask.

    Parameters
    ----------
    module, name
        Where it is; `name` may be that of a class's attribute.
    use
        What is unchanged, or done by other means, without it.
    features
        The features that are off without it.
    since
        The first release of Dask that has it, where that is newer than the first of
        :data:`CHECKED`; no warning is due in older ones.
    found
        Whether this Dask has it.
    """

    module: str
    name: str
    use: str
    features: tuple[str, ...] = ()
    since: str = ""
    found: bool = True

    @property
    def path(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}"


class Absent:
    """Stands for a function that this Dask lacks; nothing is identical to it.

    Parameters
    ----------
    path
        Full name of the function.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<{self.path}, which this Dask lacks>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"Dask {VERSION} has no {self.path}")


_names: list[Name] = []


def available(*functions: Any) -> bool:
    """Whether this Dask has all of the functions."""
    return not any(isinstance(function, Absent) for function in functions)


def missing(feature: str) -> tuple[str, ...]:
    """Full names that this Dask lacks and without which a feature is off."""
    return tuple(name.path for name in NAMES if feature in name.features and not name.found)


def require(feature: str, call: str) -> None:
    """Refuse a call whose feature is off.

    Raises
    ------
    NotImplementedError
        Naming the call and what this Dask lacks.
    """
    names = missing(feature)
    if names:
        raise NotImplementedError(f"{call} needs {', '.join(names)}, which Dask {VERSION} lacks")


def _find(
    module: str,
    name: str,
    use: str,
    *features: str,
    otherwise: Any = None,
    since: str = "",
) -> Any:
    """The object of a name, or what replaces it."""
    value: Any
    try:
        value = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        entry = Name(module, name, use, features, since, found=False)
        _names.append(entry)
        if not (since and _release(VERSION) < _release(since)):
            warn(
                f"Dask {VERSION} has no {entry.path}: {use}. dasktile was checked with"
                f" Dask {CHECKED[0]} to {CHECKED[-1]}",
                MissingNameWarning,
                stacklevel=2,
            )
        return Absent(entry.path) if otherwise is None else otherwise
    _names.append(Name(module, name, use, features, since))
    return value


def _class(module: str, name: str, use: str, *features: str, since: str = "") -> Any:
    """A class, or an empty one in its place."""
    empty = type(name, (), {"__module__": __name__, "__doc__": f"Stands for {module}.{name}."})
    return _find(module, name, use, *features, otherwise=empty, since=since)


def _release(text: str) -> tuple[int, ...]:
    numbers = text.split("+")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdigit())


# What replaces functions that dasktile calls ------------------------------------------


def _getitem(array: Any, index: Any) -> Any:
    """``array[index]``, copied where little is left of the array, so that the rest is freed."""
    result = array[index]
    flags = getattr(result, "flags", None)
    if flags is not None and not flags.owndata and array.size >= 2 * result.size:
        return result.copy()
    return result


def _concatenate_levels(arrays: Any, axes: Any = ()) -> Any:
    """Concatenate arrays in nested lists, the lists of each level along one of `axes`."""
    if isinstance(arrays, Iterator):
        arrays = list(arrays)
    if not isinstance(arrays, (list, tuple)):
        return arrays
    if not axes:
        return arrays[0]
    if len(axes) > 1:
        arrays = [_concatenate_levels(part, axes[1:]) for part in arrays]
    if isinstance(arrays[0], dict):
        return {
            field: np.concatenate([part[field] for part in arrays], axis=axes[0])
            for field in arrays[0]
        }
    return np.concatenate(arrays, axis=axes[0])


def _concatenate_nested(arrays: Any) -> Any:
    """Concatenate arrays in nested lists, one level for each axis."""
    depth, inner = 0, arrays
    while isinstance(inner, (list, tuple)):
        depth, inner = depth + 1, inner[0]
    return _concatenate_levels(arrays, tuple(range(depth)))


def _blockwise_token(place: int) -> str:
    """What stands for an argument in the task of a Blockwise layer."""
    return f"__dask_blockwise__{place}"


# Tasks ------------------------------------------------------------------------------

_SPEC = "dask._task_spec"
_ALL = "no graph is read, and expressions are returned unchanged"

if TYPE_CHECKING:
    from dask._task_spec import Alias as Alias
    from dask._task_spec import DataNode as DataNode
    from dask._task_spec import Dict as Dict
    from dask._task_spec import GraphNode as GraphNode
    from dask._task_spec import List as List
    from dask._task_spec import NestedContainer as NestedContainer
    from dask._task_spec import Task as Task
    from dask._task_spec import TaskRef as TaskRef
    from dask._task_spec import convert_legacy_graph as convert_legacy_graph
    from dask.base import collections_to_expr as collections_to_expr
else:
    GraphNode = _class(_SPEC, "GraphNode", _ALL, CAPTURE, PLAN, CALIBRATE)
    Task = _class(_SPEC, "Task", _ALL, CAPTURE, PLAN, CALIBRATE)
    TaskRef = _class(_SPEC, "TaskRef", _ALL, CAPTURE, PLAN, CALIBRATE)
    Alias = _class(_SPEC, "Alias", _ALL, CAPTURE, PLAN)
    DataNode = _class(_SPEC, "DataNode", _ALL, CAPTURE, PLAN)
    NestedContainer = _class(_SPEC, "NestedContainer", _ALL, CAPTURE, PLAN)
    List = _class(_SPEC, "List", _ALL, CAPTURE, PLAN, CALIBRATE)
    Dict = _class(_SPEC, "Dict", _ALL, CAPTURE, PLAN)
    convert_legacy_graph = _find(_SPEC, "convert_legacy_graph", _ALL, CAPTURE, PLAN)
    collections_to_expr = _find(
        "dask.base", "collections_to_expr", "dasktile.plan is refused", PLAN
    )

resolve_aliases: Any = _find(_SPEC, "resolve_aliases", "dasktile.plan is refused", PLAN)
fuse_tasks: Any = _find(_SPEC, "Task.fuse", "chains of tasks are not made one", FUSE)
execute_subgraph: Any = _find(
    _SPEC,
    "_execute_subgraph",
    "chains of tasks are not made one, nor are those that Dask has made one recognised",
    FUSE,
)
list_to_container: Any = _find(
    _SPEC, "List.to_container", "reductions over several chunks are unchanged"
)
identity_cast: Any = _find(
    _SPEC,
    "_identity_cast",
    "reductions, concatenations and takes of several chunks are unchanged",
)
blockwise_token: Callable[[int], str] = _find(
    "dask.blockwise",
    "blockwise_token",
    "reductions and broadcasts are unchanged if Dask's tasks name arguments in another way",
    otherwise=_blockwise_token,
)

# Arguments of Blockwise layers --------------------------------------------------------

_LAYERS = "dask.layers"

if TYPE_CHECKING:
    from dask.layers import ArrayBlockIdDep as ArrayBlockIdDep
    from dask.layers import ArrayChunkShapeDep as ArrayChunkShapeDep
    from dask.layers import ArrayOverlapLayer as ArrayOverlapLayer
    from dask.layers import ArraySliceDep as ArraySliceDep
    from dask.layers import ArrayValuesDep as ArrayValuesDep
else:
    ArrayBlockIdDep = _class(_LAYERS, "ArrayBlockIdDep", "explain gives less precise reasons")
    ArrayValuesDep = _class(_LAYERS, "ArrayValuesDep", "explain gives less precise reasons")
    # broadcasts are written with it too
    ArrayChunkShapeDep = _class(
        _LAYERS, "ArrayChunkShapeDep", "ones, zeros, full and broadcast_to are unchanged"
    )
    ArraySliceDep = _class(_LAYERS, "ArraySliceDep", "from_array of stored arrays is unchanged")
    ArrayOverlapLayer = _class(_LAYERS, "ArrayOverlapLayer", "map_overlap is unchanged")

# Moving elements ----------------------------------------------------------------------

_CHUNK, _CORE = "dask.array.chunk", "dask.array.core"

getitem: Any = _find(
    _CHUNK, "getitem", "products and takes that use it are unchanged", otherwise=_getitem
)
getter: Any = _find(_CORE, "getter", "from_array of stored arrays is unchanged")
getter_inline: Any = _find(_CORE, "getter_inline", "from_array with inline_array is unchanged")
getter_nofancy: Any = _find(_CORE, "getter_nofancy", "from_array with fancy=False is unchanged")
concatenate2: Any = _find(
    _CORE,
    "_concatenate2",
    "reductions that join partial results first are unchanged",
    otherwise=_concatenate_levels,
)
concatenate3: Any = _find(
    _CORE,
    "concatenate3",
    "some rechunked blocks are unchanged",
    otherwise=_concatenate_nested,
)
concatenate_shaped: Any = _find(_CORE, "concatenate_shaped", "rechunked blocks are unchanged")
shuffle_getitem: Any = _find("dask.array._shuffle", "_getitem", "shuffles and takes are unchanged")
shuffle_concatenate: Any = _find(
    "dask.array._shuffle", "concatenate_arrays", "shuffles and takes are unchanged"
)
trim: Any = _find("dask.array.overlap", "_trim", "map_overlap is unchanged")

# Element by element -------------------------------------------------------------------

_REDUCTIONS, _ROUTINES = "dask.array.reductions", "dask.array.routines"

enforce_dtype: Any = _find(_CORE, "_enforce_dtype", "ufuncs with dtype= are unchanged")
handle_where: Any = _find(_CORE, "_elemwise_handle_where", "ufuncs with where= are unchanged")
apply_and_enforce: Any = _find(
    _CORE, "apply_and_enforce", "map_blocks with enforce_ndim=True is unchanged"
)
broadcast_trick: Any = _find(
    "dask.array.wrap", "_broadcast_trick_inner", "ones, zeros, full and empty are unchanged"
)
chunk_astype: Any = _find(_CHUNK, "astype", "astype is unchanged")
chunk_arange: Any = _find(_CHUNK, "arange", "arange is unchanged")
chunk_linspace: Any = _find(_CHUNK, "linspace", "explain gives less precise reasons")
fftfreq_block: Any = _find("dask.array.fft", "_fftfreq_block", "fftfreq is unchanged")
safe_sqrt: Any = _find(_REDUCTIONS, "_sqrt", "std is unchanged")
asarray_isnull: Any = _find(_ROUTINES, "_asarray_isnull", "isnull and notnull are unchanged")
isnonzero: Any = _find(_ROUTINES, "_isnonzero", "nonzero and argwhere are unchanged")
select_block: Any = _find(_ROUTINES, "_select", "select is unchanged")
variadic_choose: Any = _find(_ROUTINES, "variadic_choose", "choose is unchanged")

# Products and loops -------------------------------------------------------------------

matmul_block: Any = _find(_ROUTINES, "_matmul", "matmul is unchanged")
tensordot_block: Any = _find(_ROUTINES, "_tensordot", "tensordot and dot are unchanged")
einsum_block: Any = _find("dask.array.einsumfuncs", "chunk_einsum", "einsum is unchanged")
sum_products: Any = _find(_ROUTINES, "_chunk_sum", "matmul is unchanged")
chunk_sum: Any = _find(_CHUNK, "sum", "einsum and tensordot are unchanged")
along_axis_block: Any = _find(_ROUTINES, "_inner_apply_along_axis", "apply_along_axis is unchanged")
isin_block: Any = _find(_ROUTINES, "_isin_kernel", "isin is unchanged")

# Reductions ---------------------------------------------------------------------------

chunk_min: Any = _find(_REDUCTIONS, "chunk_min", "min is unchanged")
chunk_max: Any = _find(_REDUCTIONS, "chunk_max", "max is unchanged")
nanmin_skip: Any = _find(_REDUCTIONS, "_nanmin_skip", "nanmin is unchanged")
nanmax_skip: Any = _find(_REDUCTIONS, "_nanmax_skip", "nanmax is unchanged")
numel: Any = _find(_REDUCTIONS, "numel", "mean, var and std are unchanged")
nannumel: Any = _find(_REDUCTIONS, "nannumel", "nanmean, nanvar and nanstd are unchanged")
mean_chunk: Any = _find(_REDUCTIONS, "mean_chunk", "mean is unchanged")
mean_combine: Any = _find(_REDUCTIONS, "mean_combine", "mean is unchanged")
mean_agg: Any = _find(_REDUCTIONS, "mean_agg", "mean is unchanged")
moment_chunk: Any = _find(_REDUCTIONS, "moment_chunk", "var, std and moment are unchanged")
moment_combine: Any = _find(_REDUCTIONS, "moment_combine", "var, std and moment are unchanged")
moment_agg: Any = _find(_REDUCTIONS, "moment_agg", "var, std and moment are unchanged")
count_block: Any = _find("dask.array.ma", "_chunk_count", "ma.count is unchanged")

chunk_argmin: Any = _find(_CHUNK, "argmin", "argmin is unchanged")
chunk_argmax: Any = _find(_CHUNK, "argmax", "argmax, nanargmin and nanargmax are unchanged")
nanargmin_block: Any = _find(_REDUCTIONS, "_nanargmin", "nanargmin is unchanged")
nanargmax_block: Any = _find(_REDUCTIONS, "_nanargmax", "nanargmax is unchanged")
arg_chunk: Any = _find(_REDUCTIONS, "arg_chunk", "argmin and argmax are unchanged")
arg_combine: Any = _find(_REDUCTIONS, "arg_combine", "argmin and argmax are unchanged")
arg_agg: Any = _find(_REDUCTIONS, "arg_agg", "argmin and argmax are unchanged")
nanarg_agg: Any = _find(_REDUCTIONS, "nanarg_agg", "nanargmin and nanargmax are unchanged")

histogram_counts: Any = _find(_ROUTINES, "_block_hist", "histogram is unchanged")

cumsum_merge: Any = _find(_REDUCTIONS, "_cumsum_merge", "cumsum in sequence is unchanged")
cumprod_merge: Any = _find(_REDUCTIONS, "_cumprod_merge", "cumprod in sequence is unchanged")
prefixscan_first: Any = _find(_REDUCTIONS, "_prefixscan_first", "parallel cumsum is unchanged")
prefixscan_combine: Any = _find(_REDUCTIONS, "_prefixscan_combine", "parallel cumsum is unchanged")

# Arrays that Dask describes wrongly: not to recognise one would be to believe it --------

chunk_topk: Any = _find(_CHUNK, "topk", _ALL, CAPTURE)
chunk_argtopk: Any = _find(_CHUNK, "argtopk", _ALL, CAPTURE)
topk_aggregate: Any = _find(_CHUNK, "topk_aggregate", _ALL, CAPTURE)
argtopk_aggregate: Any = _find(_CHUNK, "argtopk_aggregate", _ALL, CAPTURE)
getitem_variadic: Any = _find("dask.array.slicing", "getitem_variadic", _ALL, CAPTURE)
bincount_agg: Any = _find(_ROUTINES, "_bincount_agg", _ALL, CAPTURE)
histogramdd_rect: Any = _find(_ROUTINES, "_block_histogramdd_rect", _ALL, CAPTURE)
histogramdd_multiarg: Any = _find(_ROUTINES, "_block_histogramdd_multiarg", _ALL, CAPTURE)

#: All private names, in the order above.
NAMES: Final[tuple[Name, ...]] = tuple(_names)
