"""The call of the user that a layer is a step of, where its own name is that of another function.

Calls are known by the names that Dask, flox and xarray give to layers, and by what these read.
Where a user writes the steps of a call one by one, they are named like the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from dask.utils import key_split

from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called_function
from dasktile.capture.references import references, tasks_of
from dasktile.capture.titles import call_of_layer

#: Factorisations of matrices, and calls with layers of this name that use them.
_FACTORISATIONS = frozenset(("cholesky", "lstsq", "lu", "qr", "solve_triangular", "svd"))

#: Calls through which a factor of a matrix, or the product with it, reaches the next step.
_PRODUCTS = frozenset(("conjugate", "getitem", "rechunk", "sum", "tensordot", "transpose"))

#: What Dask puts into the names of all layers of one call.
_TOKEN = re.compile(r"-([0-9a-f]{32})")

#: What the steps of flox's scans are called.
_SCANS = frozenset(("chunk_scan", "finalize_scan", "groupby-scan", "grouped_reduce"))

#: flox's names of reductions.
_NAMED_GROUPING = re.compile("groupby_([a-z_]+)-")


def call_of_step(view: GraphView, name: str) -> str:
    """The call that the row of a layer is named after."""
    call = call_of_layer(name)
    if call in _SCANS and _is_grouping(view, name):
        return "groupby_scan"
    return "map_blocks" if mapped_by_xarray(view, name) else call


def _reads(view: GraphView, name: str) -> set[str]:
    """The layers that a layer reads, as a graph declares them, without order.

    Those whose names are no strings, such as delayed values with tuples as keys, are left out here
    and below: they are no steps of a call.
    """
    return {other for other in view.graph.dependencies.get(name, ()) if isinstance(other, str)}


def _readers(view: GraphView, name: str) -> set[str]:
    return {other for other in _named(view) if name in view.graph.dependencies.get(other, ())}


def _named(view: GraphView) -> Iterator[str]:
    return (name for name in view.layers if isinstance(name, str))


# Solvers and factorisations of da.linalg


def factorisation(view: GraphView, name: str) -> str:
    """The call of ``da.linalg`` that a layer is a step of; empty if there is none."""
    steps, seen = [name], {name}
    while steps:
        step = steps.pop()
        call = call_of_layer(step)
        if call in _FACTORISATIONS:
            if view.solvers is None:
                view.solvers = _solvers(view)
            return view.solvers.get(step) or view.solvers.get(_token(step)) or call
        # the steps between a factorisation and its results are no arrays
        others = [
            other
            for other in view.dependencies(step)
            if isinstance(other, str) and view.array(other) is None
        ]
        steps += [other for other in others if other not in seen]
        seen.update(others)
    return ""


def _solvers(view: GraphView) -> dict[str, str]:
    """Calls that use factorisations, by the tokens of these or the names of other layers.

    Several calls share the factorisation of a matrix.
    """
    calls: dict[str, set[str]] = {}
    for name in _named(view):
        found: dict[str, str] = {}
        if name.startswith("solve-triangular-"):
            found = _solution(view, name)
        elif name.startswith("svd-"):
            found = _singular_values(view, name)
        elif name.startswith("lstsq-"):
            read = _below(view, _reads(view, name))
            found = dict.fromkeys(map(_token, filter(_is_factor, read)), "lstsq")
        for step, call in found.items():
            calls.setdefault(step, set()).add(call)
    return {step: " and ".join(sorted(names)) for step, names in calls.items()}


def _solution(view: GraphView, name: str) -> dict[str, str]:
    """``solve``, ``inv`` or ``lstsq`` by its last layer, which solves with an upper triangle."""
    reads = _reads(view, name)
    for upper in reads:
        token, others = _token(upper), reads - {upper}
        lower = {f"lu-u-{token}": f"lu-l-{token}", f"cholesky-upper-{token}": f"cholesky-{token}"}
        if upper in lower:
            for other in others:
                if other.startswith("solve-triangular-") and lower[upper] in _reads(view, other):
                    call = "inv" if _solves_for_identity(view, other, token) else "solve"
                    return dict.fromkeys((token, name, other), call)
        is_triangle = upper.startswith("getitem-") and f"qr-{token}" in view.layers
        if is_triangle and any(_token(other) == token for other in _below(view, others)):
            return dict.fromkeys((token, name), "lstsq")
    return {}


def _solves_for_identity(view: GraphView, name: str, token: str) -> bool:
    """Whether the right side of a layer that solves is a permuted identity matrix."""
    return any(
        any(other.startswith("eye-") for other in _reads(view, product))
        and any(f"lu-p-{token}" in _reads(view, other) for other in _reads(view, product))
        for product in _below(view, _reads(view, name))
        if call_of_layer(product) == "tensordot"
    )


def _singular_values(view: GraphView, name: str) -> dict[str, str]:
    """``svd``, or ``svd_compressed``: of the product with a basis of random combinations."""
    token = _token(name)
    found = _bases(view, token)
    tokens = [token]
    while found:
        basis = found.pop()
        if basis in tokens:
            continue
        tokens.append(basis)
        if _combines_at_random(view, basis):
            return dict.fromkeys(tokens, "svd_compressed")
        # bases of power iterations
        found += _bases(view, basis)
    return {token: "svd"}


def _factored(view: GraphView, token: str) -> Iterator[str]:
    """What a QR factorisation reads, and the layers of products below."""
    return _below(view, _reads(view, f"qr-{token}"))


def _bases(view: GraphView, token: str) -> list[str]:
    """Tokens of the factorisations whose basis is in the product that another one reads."""
    return [_token(name) for name in _factored(view, token) if _is_factor(name)]


def _combines_at_random(view: GraphView, token: str) -> bool:
    """Whether a QR factorisation is that of a product with random numbers."""
    return any(
        call_of_layer(product) == "tensordot"
        and any(call_of_layer(other) == "standard_normal" for other in _reads(view, product))
        for product in _factored(view, token)
    )


def _is_factor(name: str) -> bool:
    """Whether a layer is one of the factors of a QR factorisation."""
    return name.startswith(("dot-", "getitem-")) and name.endswith(("-q3", "-r2"))


def _token(name: str) -> str:
    match = _TOKEN.search(name)
    return match[1] if match else name


def _below(view: GraphView, names: Iterable[str]) -> Iterator[str]:
    """Some layers, and those that they read through products."""
    stack, seen = sorted(names), set(names)
    while stack:
        name = stack.pop()
        yield name
        if call_of_layer(name) in _PRODUCTS and not _is_factor(name):
            others = _reads(view, name) - seen
            seen |= others
            stack += sorted(others)


# flox


def group_by(view: GraphView, name: str) -> str:
    """The group-by of flox that a layer is a step of, with its axes; empty if there is none."""
    if not _is_grouping(view, name):
        return ""
    stack, seen = [name], {name}
    function, axes = "", tuple[int, ...]()
    while stack and not (function and axes):
        step = stack.pop(0)
        keywords = called_function(view.layers[step])[1]
        named = _NAMED_GROUPING.match(step)
        function = function or (named[1] if named else getattr(keywords.get("agg"), "name", ""))
        axes = axes or _axes(view, step, keywords.get("axis"))
        is_first = key_split(step).endswith("-preprocess")
        # those below the first step are of another group-by
        others = _readers(view, step) if is_first else _reads(view, step)
        new = [each for each in others if each not in seen and _is_grouping(view, each)]
        seen.update(new)
        stack += sorted(new)
    return group_by_title(function, axes)


def group_by_title(function: str, axes: Iterable[int]) -> str:
    """What a group-by is called in reasons, by its function and its axes."""
    numbers = list(map(str, axes))
    plural = "es" if len(numbers) > 1 else "is"
    over = f" over ax{plural} {' and '.join(numbers)}" if numbers else ""
    return f"flox's group-by{' ' * bool(function)}{function}{over}"


def _is_grouping(view: GraphView, name: str) -> bool:
    function = called_function(view.layers[name])[0]
    module = getattr(function, "__module__", "") or ""
    return module.partition(".")[0] == "flox"


def _axes(view: GraphView, name: str, axes: Any) -> tuple[int, ...]:
    """Axes that are given to a step, without negative ones."""
    given = (axes,) if isinstance(axes, int) else axes
    if not isinstance(given, tuple):
        return ()
    array = view.result(name)
    if array is None:
        return given if min(given, default=-1) >= 0 else ()
    return tuple(axis % max(1, len(array.shape)) for axis in given)


# xarray


def mapped_by_xarray(view: GraphView, name: str) -> str:
    """The function of ``xarray.map_blocks`` whose results a layer takes apart; empty if none."""
    for other in _reads(view, name):
        if not name.endswith(f"-{other}"):
            # the name of a variable and that of the layer with the results
            continue
        task = next(iter(view.tasks(name).values()), None)
        for key in references(task) if task is not None else ():
            result = tasks_of(view.layers[other]).get(key)
            first = result[0] if type(result) is tuple and result else None
            called = getattr(result, "func", first)
            if (getattr(called, "__module__", "") or "").startswith("xarray."):
                return key_split(other)
    return ""
