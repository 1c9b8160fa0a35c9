"""What dasktile uses of the package ``dask_array``: the nodes of its expressions.

An expression is a tree of nodes.  The class of a node says what it computes, its operands from
what; the classes, and the functions in the operands, are not documented.  ``dask_array`` is never
imported here: its arrays come from a process that has imported it.  Those of a release that was not
checked are returned unchanged, as those of Dask's own array expressions are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dis import get_instructions
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType
from typing import Any, Final

#: Releases of ``dask_array``, without their last number, whose nodes were checked.
CHECKED: Final = ("0.7",)

#: Modules of Dask that have the functions of ``dask_array`` under the same names.
_MODULES: Final = ("chunk", "reductions", "core", "routines", "overlap", "einsumfuncs", "ufunc")

#: Functions of ``dask_array`` with other code or another name than those of Dask that compute the
#: same.  The partial results of means and moments have one count where Dask's have one for each
#: element.
_SAME: Final[Mapping[str, str]] = {
    "_chunk_sum": "_chunk_sum",
    "_concatenate2": "_concatenate2",
    "_matmul": "_matmul",
    "_tensordot": "_tensordot",
    "_variadic_choose": "variadic_choose",
    "mean_chunk": "mean_chunk",
    "moment_chunk": "moment_chunk",
}


def is_readable(array: Any) -> bool:
    """Whether this is an array of ``dask_array`` whose expression can be read."""
    kind = type(array)
    return is_of_package(kind) and hasattr(kind, "expr") and _is_checked()


def is_of_package(thing: Any) -> bool:
    """Whether a class or a function is one of ``dask_array``."""
    return str(thing.__module__).partition(".")[0] == "dask_array"


@cache
def _is_checked() -> bool:
    try:
        release = version("dask-array")
    except PackageNotFoundError:
        return False
    return release.rpartition(".")[0] in CHECKED


def _is_node(value: Any) -> bool:
    return is_of_package(type(value)) and hasattr(type(value), "_layer") and _is_checked()


def computed_nodes(expression: Any) -> list[Any]:
    """The nodes whose values a computation returns; none if it is not one of ``dask_array`` only.

    Parameters
    ----------
    expression
        What Dask gives a scheduler: an expression, or a sequence of them.
    """
    if _is_node(expression):
        # the task that joins the blocks of a result
        joins = type(expression).__name__ == "FinalizeComputeArray"
        return [expression.operand("arr") if joins else expression]
    if type(expression).__module__.partition(".")[0] != "dask":
        return []
    found = [computed_nodes(each) for each in getattr(expression, "operands", ())]
    return [node for nodes in found for node in nodes] if all(found) else []


def simplified(node: Any) -> Any:
    """A node after the rewrites of ``dask_array`` itself."""
    return node.simplify()


def kinds(node: Any) -> tuple[str, ...]:
    """Names of a node's class and of its base classes."""
    return tuple(kind.__name__ for kind in type(node).__mro__)


def name_of(node: Any) -> str:
    """The name in the keys of a node's blocks."""
    return str(node._name)


def meta_of(node: Any) -> Any:
    """An empty array of the type of a node's blocks."""
    return node._meta


def inputs_of(node: Any) -> list[Any]:
    """The nodes that a node reads."""
    return list(node.dependencies())


def lowered(node: Any) -> Any:
    """The nodes that ``dask_array`` writes a node with; None if it writes the tasks of the node."""
    if type(node).__name__ == "FusedBlockwise":
        # the nodes that were fused, the last one first
        return node.operand("exprs")[0]
    new = node._lower()
    return None if new is None or new._name == node._name else new


def names_in_tasks(node: Any) -> list[str]:
    """The names in the keys with which tasks refer to the blocks of a node.

    A few classes ask a node for its keys.  These have the name of what the node is written with,
    and are computed once for each node.
    """
    asked = "_cached_keys" in vars(node)
    return [node._name, node.lower_completely()._name] if asked else [node._name]


def tasks_of(node: Any) -> dict[Any, Any]:
    """The tasks of a node, by their keys; their inputs are blocks of the nodes that it reads."""
    return dict(node._layer())


def output(array: Any, graph: Mapping[Any, Any], name: str, chunks: Any) -> Any:
    """An array of ``dask_array`` from a graph that computes its blocks.

    Parameters
    ----------
    array
        The array of ``dask_array`` that it replaces.
    graph
        A graph with the blocks of an array `name`, in these `chunks`.
    """
    build, (meta, *_) = array.__dask_postpersist__()
    return build(graph, meta, chunks, [], name)


def counterpart(function: Any) -> Any:
    """The function of Dask that a function of ``dask_array`` is a copy of, else the function.

    ``dask_array`` has its own copies of Dask's functions.  A function is a copy if Dask has one of
    the same name and with the same code, or if it is one of a few that were compared by hand.
    """
    if isinstance(function, partial):
        arguments = tuple(map(counterpart, function.args))
        options = {name: counterpart(value) for name, value in function.keywords.items()}
        return partial(counterpart(function.func), *arguments, **options)
    if not isinstance(function, FunctionType) or not is_of_package(function):
        return function
    if function.__closure__ and function.__name__ not in _SAME:
        return function
    return _counterpart(function)


@cache
def _counterpart(function: FunctionType) -> Any:
    name = function.__name__
    for module in _MODULES:
        found = getattr(import_module(f"dask.array.{module}"), _SAME.get(name, name), None)
        if isinstance(found, FunctionType) and (name in _SAME or _has_same_code(function, found)):
            return found
    return function


def _has_same_code(one: FunctionType, other: FunctionType) -> bool:
    if one.__qualname__ != other.__qualname__ or other.__closure__:
        return False
    if not _has_same_defaults(one, other):
        return False
    return _steps(one.__code__) == _steps(other.__code__)


def _has_same_defaults(one: FunctionType, other: FunctionType) -> bool:
    ours, theirs = (
        [*(each.__defaults__ or ()), *sorted((each.__kwdefaults__ or {}).items())]
        for each in (one, other)
    )
    return len(ours) == len(theirs) and all(
        a is b or counterpart(a) is b or (type(a) is type(b) and bool(a == b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _steps(code: CodeType) -> list[tuple[str, Any]]:
    """The instructions of a function, without the numbers of its constants and lines."""
    return [
        (step.opname, _steps(step.argval) if isinstance(step.argval, CodeType) else step.argval)
        for step in get_instructions(code)
    ]
