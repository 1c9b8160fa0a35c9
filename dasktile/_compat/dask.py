"""The private names of Dask that dasktile uses, each with its use and a replacement.

A name is private if it or its module starts with an underscore, or if the documentation of
Dask does not mention it: the functions in the tasks of its layers, which capture recognises
by identity, and the classes of its layers' arguments.  Dask may rename any of them in any
release.  Only this module imports them; :func:`_lookup` looks each of them up.

Where this Dask lacks a name, there is one :class:`~dasktile.errors.MissingNameWarning` when
dasktile is imported, and

- a function is its replacement in this module, if there is one, else an :class:`Absent`.  No
  function of a graph is identical to that, so its rules do not apply and such operations are
  unchanged;
- a class is an empty class, of which there are no instances;
- the features of the name are off, see :func:`missing`.  Without :data:`CAPTURE` no graph is
  read, and ``optimize`` returns its input unchanged: either there are no task objects to read,
  or arrays with wrong metadata would not be recognised.

:data:`NAMES` lists all names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from warnings import warn

import numpy as np

from dasktile._compat.merged_parts import keys_of_parts
from dasktile.errors import MissingNameWarning

#: The release of the installed Dask.
VERSION: Final = version("dask")

#: Releases of Dask with which all names were checked, oldest first.
CHECKED: Final = ("2026.1.1", "2026.3.0", "2026.7.1", "2026.8.0")

#: Features that are off without some names: reading graphs, fusing tasks, planning the order
#: of tasks, and measuring a cluster.
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
        The module, and the name in it; ``Class.name`` for an attribute of a class.
    use
        The effect on users where it is missing, in a sentence without a full stop.
    features
        The features that are off without it.
    since
        The first release of Dask that has it, if that is newer than the first of
        :data:`CHECKED`; there is no warning in older ones.
    exists
        Whether the installed Dask has it.
    """

    module: str
    name: str
    use: str
    features: tuple[str, ...] = ()
    since: str = ""
    exists: bool = True

    @property
    def path(self) -> str:
        """The full name."""
        return f"{self.module}.{self.name}"


class Absent:
    """Placeholder of a function that the installed Dask lacks; no function is identical to it.

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
    """Whether the installed Dask has all of the functions."""
    return not any(isinstance(function, Absent) for function in functions)


def missing(feature: str) -> tuple[str, ...]:
    """Full names that the installed Dask lacks and that a feature needs."""
    return tuple(name.path for name in NAMES if feature in name.features and not name.exists)


def require(feature: str, call: str) -> None:
    """Raise an error if the feature of a call is off.

    Raises
    ------
    NotImplementedError
        With the call and the names that the installed Dask lacks.
    """
    names = missing(feature)
    if names:
        raise NotImplementedError(f"{call} needs {', '.join(names)}, which Dask {VERSION} lacks")


def _lookup(
    module: str,
    name: str,
    use: str,
    *features: str,
    fallback: Any = None,
    since: str = "",
) -> Any:
    """The object of a name, or its replacement."""
    value: Any
    try:
        value = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        entry = Name(module, name, use, features, since, exists=False)
        _names.append(entry)
        if not (since and release(VERSION) < release(since)):
            warn(
                f"Dask {VERSION} has no {entry.path}: {use}. dasktile was checked with"
                f" Dask {CHECKED[0]} to {CHECKED[-1]}",
                MissingNameWarning,
                stacklevel=2,
            )
        return Absent(entry.path) if fallback is None else fallback
    _names.append(Name(module, name, use, features, since))
    return value


def _class(module: str, name: str, use: str, *features: str, since: str = "") -> Any:
    """A class, or an empty one in its place."""
    empty = type(name, (), {"__module__": __name__, "__doc__": f"Placeholder of {module}.{name}."})
    return _lookup(module, name, use, *features, fallback=empty, since=since)


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparisons."""
    numbers = text.split("+")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdigit())


# Replacements of functions that dasktile calls ----------------------------------------


def _getitem(array: Any, index: Any) -> Any:
    """``array[index]``, copied where it is a small part of the array, whose memory is freed."""
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
    """The placeholder of an argument in the task of a Blockwise layer."""
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
    convert_legacy_graph = _lookup(_SPEC, "convert_legacy_graph", _ALL, CAPTURE, PLAN)
    collections_to_expr = _lookup(
        "dask.base", "collections_to_expr", "dasktile.plan raises an error", PLAN
    )

resolve_aliases: Any = _lookup(_SPEC, "resolve_aliases", "dasktile.plan raises an error", PLAN)
execute_subgraph: Any = _lookup(
    _SPEC,
    "_execute_subgraph",
    "chains of tasks are not fused, and tasks that Dask has fused are not recognised",
    FUSE,
)
list_to_container: Any = _lookup(
    _SPEC, "List.to_container", "reductions over several chunks are unchanged"
)
identity_cast: Any = _lookup(
    _SPEC,
    "_identity_cast",
    "reductions, concatenations and takes of several chunks are unchanged",
)
argument_of_delayed: Any = _lookup(
    "dask._expr", "ProhibitReuse._identity", "explain gives less precise reasons"
)
delayed_swap: Any = _lookup("dask.delayed", "_swap", "sums of delayed results have unknown sizes")
blockwise_token: Callable[[int], str] = _lookup(
    "dask.blockwise",
    "blockwise_token",
    "reductions and broadcasts are unchanged if Dask names arguments of tasks differently",
    fallback=_blockwise_token,
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
    # layers of broadcasts have it as well
    ArrayChunkShapeDep = _class(
        _LAYERS, "ArrayChunkShapeDep", "ones, zeros, full and broadcast_to are unchanged"
    )
    ArraySliceDep = _class(_LAYERS, "ArraySliceDep", "from_array of stored arrays is unchanged")
    ArrayOverlapLayer = _class(_LAYERS, "ArrayOverlapLayer", "map_overlap is unchanged")

# Moving elements ----------------------------------------------------------------------

_CHUNK, _CORE = "dask.array.chunk", "dask.array.core"

getitem: Any = _lookup(
    _CHUNK, "getitem", "products and takes that use it are unchanged", fallback=_getitem
)
getter: Any = _lookup(_CORE, "getter", "from_array of stored arrays is unchanged")
getter_inline: Any = _lookup(_CORE, "getter_inline", "from_array with inline_array is unchanged")
getter_nofancy: Any = _lookup(_CORE, "getter_nofancy", "from_array with fancy=False is unchanged")
concatenate2: Any = _lookup(
    _CORE,
    "_concatenate2",
    "reductions that join partial results first are unchanged",
    fallback=_concatenate_levels,
)
concatenate3: Any = _lookup(
    _CORE,
    "concatenate3",
    "some rechunked blocks are unchanged",
    fallback=_concatenate_nested,
)
concatenate_shaped: Any = _lookup(_CORE, "concatenate_shaped", "rechunked blocks are unchanged")
shuffle_getitem: Any = _lookup(
    "dask.array._shuffle", "_getitem", "shuffles and takes are unchanged"
)
shuffle_concatenate: Any = _lookup(
    "dask.array._shuffle", "concatenate_arrays", "shuffles and takes are unchanged"
)
trim: Any = _lookup("dask.array.overlap", "_trim", "map_overlap is unchanged")

# Element by element -------------------------------------------------------------------

_REDUCTIONS, _ROUTINES = "dask.array.reductions", "dask.array.routines"

enforce_dtype: Any = _lookup(_CORE, "_enforce_dtype", "ufuncs with dtype= are unchanged")
handle_where: Any = _lookup(_CORE, "_elemwise_handle_where", "ufuncs with where= are unchanged")
apply_and_enforce: Any = _lookup(
    _CORE, "apply_and_enforce", "map_blocks with enforce_ndim=True is unchanged"
)
broadcast_trick: Any = _lookup(
    "dask.array.wrap", "_broadcast_trick_inner", "ones, zeros, full and empty are unchanged"
)
chunk_astype: Any = _lookup(_CHUNK, "astype", "astype is unchanged")
chunk_coarsen: Any = _lookup(_CHUNK, "coarsen", "coarsen is unchanged")
chunk_arange: Any = _lookup(_CHUNK, "arange", "arange is unchanged")
chunk_linspace: Any = _lookup(_CHUNK, "linspace", "explain gives less precise reasons")
fftfreq_block: Any = _lookup("dask.array.fft", "_fftfreq_block", "fftfreq is unchanged")
safe_sqrt: Any = _lookup(_REDUCTIONS, "_sqrt", "std is unchanged")
asarray_isnull: Any = _lookup(_ROUTINES, "_asarray_isnull", "isnull and notnull are unchanged")
isnonzero: Any = _lookup(_ROUTINES, "_isnonzero", "nonzero and argwhere are unchanged")
select_block: Any = _lookup(_ROUTINES, "_select", "select is unchanged")
variadic_choose: Any = _lookup(_ROUTINES, "variadic_choose", "choose is unchanged")

# Products and loops -------------------------------------------------------------------

matmul_block: Any = _lookup(_ROUTINES, "_matmul", "matmul is unchanged")
tensordot_block: Any = _lookup(_ROUTINES, "_tensordot", "tensordot and dot are unchanged")
einsum_block: Any = _lookup("dask.array.einsumfuncs", "chunk_einsum", "einsum is unchanged")
sum_products: Any = _lookup(_ROUTINES, "_chunk_sum", "matmul is unchanged")
chunk_sum: Any = _lookup(_CHUNK, "sum", "einsum and tensordot are unchanged")
along_axis_block: Any = _lookup(
    _ROUTINES, "_inner_apply_along_axis", "apply_along_axis is unchanged"
)
isin_block: Any = _lookup(_ROUTINES, "_isin_kernel", "isin is unchanged")
gradient_block: Any = _lookup(_ROUTINES, "_gradient_kernel", "gradient is unchanged")
block_kwargs: Any = _lookup(_CORE, "_pass_extra_kwargs", "gradient is unchanged")

# Reductions ---------------------------------------------------------------------------

chunk_min: Any = _lookup(_REDUCTIONS, "chunk_min", "min is unchanged")
chunk_max: Any = _lookup(_REDUCTIONS, "chunk_max", "max is unchanged")
nanmin_skip: Any = _lookup(_REDUCTIONS, "_nanmin_skip", "nanmin is unchanged")
nanmax_skip: Any = _lookup(_REDUCTIONS, "_nanmax_skip", "nanmax is unchanged")
numel: Any = _lookup(_REDUCTIONS, "numel", "mean, var and std are unchanged")
nannumel: Any = _lookup(_REDUCTIONS, "nannumel", "nanmean, nanvar and nanstd are unchanged")
mean_chunk: Any = _lookup(_REDUCTIONS, "mean_chunk", "mean is unchanged")
mean_combine: Any = _lookup(_REDUCTIONS, "mean_combine", "mean is unchanged")
mean_agg: Any = _lookup(_REDUCTIONS, "mean_agg", "mean is unchanged")
moment_chunk: Any = _lookup(_REDUCTIONS, "moment_chunk", "var, std and moment are unchanged")
moment_combine: Any = _lookup(_REDUCTIONS, "moment_combine", "var, std and moment are unchanged")
moment_agg: Any = _lookup(_REDUCTIONS, "moment_agg", "var, std and moment are unchanged")
wrapped_qr: Any = _lookup("dask.array.linalg", "_wrapped_qr", "sizes of its results are guesses")
masked_block: Any = _lookup("dask.array.ma", "_masked_array", "ma.masked_array is unchanged")
count_block: Any = _lookup("dask.array.ma", "_chunk_count", "ma.count is unchanged")

chunk_argmin: Any = _lookup(_CHUNK, "argmin", "argmin is unchanged")
chunk_argmax: Any = _lookup(_CHUNK, "argmax", "argmax, nanargmin and nanargmax are unchanged")
nanargmin_block: Any = _lookup(_REDUCTIONS, "_nanargmin", "nanargmin is unchanged")
nanargmax_block: Any = _lookup(_REDUCTIONS, "_nanargmax", "nanargmax is unchanged")
arg_chunk: Any = _lookup(_REDUCTIONS, "arg_chunk", "argmin and argmax are unchanged")
arg_combine: Any = _lookup(_REDUCTIONS, "arg_combine", "argmin and argmax are unchanged")
arg_agg: Any = _lookup(_REDUCTIONS, "arg_agg", "argmin and argmax are unchanged")
nanarg_agg: Any = _lookup(_REDUCTIONS, "nanarg_agg", "nanargmin and nanargmax are unchanged")

histogram_counts: Any = _lookup(_ROUTINES, "_block_hist", "histogram is unchanged")

cumsum_merge: Any = _lookup(_REDUCTIONS, "_cumsum_merge", "cumsum in sequence is unchanged")
cumprod_merge: Any = _lookup(_REDUCTIONS, "_cumprod_merge", "cumprod in sequence is unchanged")
prefixscan_first: Any = _lookup(_REDUCTIONS, "_prefixscan_first", "parallel cumsum is unchanged")
custom_nanquantile: Any = _lookup(
    _REDUCTIONS, "_custom_nanquantile", "nanquantile is unchanged", since="2026.8.0"
)
prefixscan_combine: Any = _lookup(
    _REDUCTIONS, "_prefixscan_combine", "parallel cumsum is unchanged"
)

# Arrays with wrong metadata in Dask, which would be used if they were not recognised ----

chunk_topk: Any = _lookup(_CHUNK, "topk", _ALL, CAPTURE)
chunk_argtopk: Any = _lookup(_CHUNK, "argtopk", _ALL, CAPTURE)
topk_aggregate: Any = _lookup(_CHUNK, "topk_aggregate", _ALL, CAPTURE)
argtopk_aggregate: Any = _lookup(_CHUNK, "argtopk_aggregate", _ALL, CAPTURE)
argtopk_preprocess: Any = _lookup(_CHUNK, "argtopk_preprocess", _ALL, CAPTURE)
getitem_variadic: Any = _lookup("dask.array.slicing", "getitem_variadic", _ALL, CAPTURE)
setitem: Any = _lookup("dask.array.slicing", "setitem", "assignments are unchanged")
slice_with_int_dask_array: Any = _lookup(_CHUNK, "slice_with_int_dask_array", _ALL, CAPTURE)
bincount_agg: Any = _lookup(_ROUTINES, "_bincount_agg", _ALL, CAPTURE)
unique_internal: Any = _lookup(_ROUTINES, "_unique_internal", "explain gives less precise reasons")
histogramdd_rect: Any = _lookup(_ROUTINES, "_block_histogramdd_rect", _ALL, CAPTURE)
histogramdd_multiarg: Any = _lookup(_ROUTINES, "_block_histogramdd_multiarg", _ALL, CAPTURE)

# Graphs in the expressions that Dask's schedulers receive --------------------------------

_NO_PLANS = "dasktile.diagnose makes no plans"

HLGExpr: Any = _class("dask._expr", "HLGExpr", _NO_PLANS)
HLGFinalizeCompute: Any = _class("dask._expr", "HLGFinalizeCompute", _NO_PLANS)

#: All private names, in the order above.
NAMES: Final[tuple[Name, ...]] = tuple(_names)


def keep_tasks(layer: Any, tasks: Mapping[Any, Any]) -> None:
    """Let a Blockwise layer keep its tasks, as when Dask has made them.

    Where another version of Dask keeps them elsewhere, it makes them once more.

    Parameters
    ----------
    layer, tasks
        The layer, and its tasks by key.
    """
    layer._cached_dict = {"dsk": tasks}  # as Dask 2026.1 to 2026.8


def without_tasks(layer: Any) -> dict[str, Any]:
    """The attributes of a Blockwise layer, without the tasks that it keeps.

    Parameters
    ----------
    layer
        The layer.
    """
    return {name: value for name, value in vars(layer).items() if name != "_cached_dict"}


def run_fused(tasks: Mapping[Any, Any], key: Any, reads: Collection[Any], *values: Any) -> Any:
    """Run the tasks of a fused task; each result is released once its last reader has run.

    ``_execute_subgraph`` does the same in Dask's own order, which it computes in every task and
    which may need far more memory.  Dask's optimisation does not rewrite tasks that call this
    function.

    Parameters
    ----------
    tasks
        The tasks, by key, each after its inputs.
    key
        Key of the last, whose result is returned.
    reads, values
        Keys and values of the inputs.
    """
    known = dict(zip(reads, values, strict=True))
    unread = Counter(read for task in tasks.values() for read in task.dependencies)
    for name, task in tasks.items():
        known[name] = task(known)
        for read in task.dependencies:
            unread[read] -= 1
            if not unread[read]:
                del known[read]
    return known[key]


def is_fused(function: Any) -> bool:
    """Whether this is the function of a task into which others are fused."""
    return function is run_fused or function is execute_subgraph


def fused_tasks(task: Any) -> Mapping[Any, Any]:
    """The tasks that are fused into a task by key, inputs first; empty if there are none."""
    # called for every task of all graphs
    if not is_fused(getattr(task, "func", None)) or not task.args:
        return {}
    parts, *after = task.args
    if not isinstance(parts, Mapping):
        return {}
    # Dask merges Blockwise layers with the last one first
    is_last_first = len(parts) > 1 and after and next(iter(parts)) == after[0]
    return dict(reversed([*parts.items()])) if is_last_first else parts


def fused_keys(task: Any) -> tuple[Any, ...]:
    """Keys of the tasks that are fused into a task, inputs first; empty if there are none."""
    parts = fused_tasks(task)
    if not parts:
        return ()  # as most tasks
    keys = keys_of_parts(list(parts), task.key)
    return tuple(
        inner
        for key, part in zip(keys, parts.values(), strict=True)
        for inner in (*fused_keys(part), key)
    )


def graphs_of(expression: Any) -> Iterator[tuple[Any, Any]]:
    """The high-level graphs of a computation, before Dask optimises them, and their wanted keys.

    Parameters
    ----------
    expression
        What Dask gives a scheduler: an expression, or a sequence of them.
    """
    if isinstance(expression, HLGFinalizeCompute):
        yield from graphs_of(expression.operand("dsk"))
    elif isinstance(expression, HLGExpr):
        yield expression.hlg, expression.__dask_keys__()
    else:
        for operand in getattr(expression, "operands", ()):
            yield from graphs_of(operand)


def joins_blocks(layer: str) -> bool:
    """Whether a layer of this name joins all blocks of a result, as ``compute`` adds it."""
    return layer.startswith("finalize-hlgfinalizecompute-")
