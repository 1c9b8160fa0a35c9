"""A corpus of published array workloads, in a size that a laptop runs in seconds.

Every workload is a function of a `size` and a `source` of inputs (`benchmarks.corpus.inputs`) that
returns lazy collections.  The first line of its documentation names where it was published.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.corpus import coiled, dask_ml, flox_asv, local_cupy, pangeo, threads, xarray_asv

#: Size of a workload that is run before it is measured.
SMALL = 0.1

#: Speed of dasktile, Dask being 1, below which a workload is listed as slower.
SLOWER = 0.95

_MODULES = (coiled, pangeo, local_cupy, dask_ml, threads, flox_asv, xarray_asv)


@dataclass(frozen=True, slots=True)
class Workload:
    """One entry of the corpus.

    Parameters
    ----------
    name
        The module and the function, as ``coiled.anom_mean``.
    source
        Where it was published, and what it computes.
    function
        Builds the collections, from a size and a source of inputs.
    keep_chunks
        Whether plans keep the chunks of the results, which are what the workload is for.
    """

    name: str
    source: str
    function: Callable[..., list[Any]]
    keep_chunks: bool = False


def _workloads() -> dict[str, Workload]:
    found = {}
    for module in _MODULES:
        group = module.__name__.rpartition(".")[2]
        for name, function in vars(module).items():
            if (
                inspect.isfunction(function)
                and function.__module__ == module.__name__
                and not name.startswith("_")
            ):
                entry = Workload(
                    f"{group}.{name}",
                    inspect.getdoc(function) or "",
                    function,
                    getattr(function, "keep_chunks", False),
                )
                found[entry.name] = entry
    return found


#: All workloads, by name.
WORKLOADS: dict[str, Workload] = _workloads()


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of some names.

    Parameters
    ----------
    names
        Names of workloads, and of modules, which stand for all their workloads.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    result: dict[str, Workload] = {}
    for name in names:
        members = {
            key: entry
            for key, entry in WORKLOADS.items()
            if key == name or key.startswith(f"{name}.")
        }
        if not members:
            raise ValueError(f"no workload or module is called {name!r}")
        result |= members
    return list(result.values())
