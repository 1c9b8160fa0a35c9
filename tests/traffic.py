"""Bytes that workers receive from each other, counted without a cluster.

Every task runs on the home worker that the scheduler plugin assigns to it.  A tile is sent once to
each worker that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dask
import dask.array as da
from dask._task_spec import DataNode
from dask.base import collections_to_expr
from dask.callbacks import Callback
from dask.sizeof import sizeof

from dasktile.lower.bundle_tasks import run_bundle
from dasktile.schedule.homes import Homes
from dasktile.schedule.placement import token


class _Sizes(Callback):
    def __init__(self) -> None:
        self.sizes: dict[Any, int] = {}
        super().__init__(posttask=self._note)

    def _note(self, key: Any, value: Any, *args: Any) -> None:
        self.sizes[key] = sizeof(value)


def traffic(
    arrays: Sequence[da.Array], workers: int, resident: Mapping[Any, str] | None = None
) -> tuple[Counter[str], list[Any]]:
    """Bytes received by workers, by the layer that reads them; and tasks without a home worker.

    Parameters
    ----------
    arrays
        The arrays to compute.
    workers
        Number of workers.
    resident
        The workers of blocks that are in memory.
    """
    received, _, lost = _moved(arrays, workers, resident)
    return received, lost


def busiest_link(arrays: Sequence[da.Array], workers: int) -> int:
    """Bytes that the worker with most receives, or sends; arguments as for `traffic`."""
    _, links, _ = _moved(arrays, workers, None)
    ends: Counter[tuple[int, str]] = Counter()
    for pair, size in links.items():
        for end, worker in enumerate(pair):
            ends[end, worker] += size
    return max(ends.values(), default=0)


def _moved(
    arrays: Sequence[da.Array], workers: int, resident: Mapping[Any, str] | None
) -> tuple[Counter[str], Counter[tuple[str, str]], list[Any]]:
    """Bytes by the layer that reads them, by sender and receiver, and tasks without a home."""
    expr = collections_to_expr(arrays).optimize()
    graph = dict(expr.__dask_graph__())
    sizes = _Sizes()
    with sizes:
        dask.get(graph, list(dask.core.flatten(expr.__dask_keys__())))
    homes = _homes(graph, workers, dict(resident or {}))
    # blocks that are data of the graph have no home of their own
    lost = [
        key for key, home in homes.items() if home is None and not isinstance(graph[key], DataNode)
    ]
    _place_roots(graph, homes)
    for key, task in graph.items():
        if isinstance(task, DataNode):
            sizes.sizes[key] = sizeof(task.value)
    received: Counter[str] = Counter()
    links: Counter[tuple[str, str]] = Counter()
    sent = set()
    for key, task in graph.items():
        for read in task.dependencies:
            reader_home, home_of_input = homes.get(key), homes.get(read)
            if (
                reader_home == home_of_input
                or reader_home is None
                or home_of_input is None
                or (read, reader_home) in sent
            ):
                continue
            sent.add((read, reader_home))
            received[key[0] if isinstance(key, tuple) else key] += sizes.sizes[read]
            links[home_of_input, reader_home] += sizes.sizes[read]
    return received, links, lost


def _homes(graph: Mapping[Any, Any], workers: int, known: dict[Any, str]) -> dict[Any, str | None]:
    table = Homes([str(number) for number in range(workers)])
    homes: dict[Any, str | None] = {}
    leaders = {token(key[0]): key[0] for key in known}
    for key in dask.core.toposort(graph):
        task = graph[key]
        home = known.get(key)
        for part in [key, *reversed(_fused_keys(task))]:
            name = part[0] if isinstance(part, tuple) else part
            layer = table.layer(name)
            if home is None and layer is not None:
                home = layer.home(part[1:])
                block = layer.followed(part[1:])
                if block is not None and layer.placement and layer.placement.follow:
                    home = known.get((leaders.get(layer.placement.follow.token), *block))
        if home is None:
            there = Counter(actual for read in task.dependencies if (actual := homes.get(read)))
            home = max(there, key=lambda name: (there[name], name)) if there else None
        # other data is an argument of tasks, not a block of an array
        if home is not None or isinstance(key, tuple) or not isinstance(task, DataNode):
            homes[key] = home
    return homes


def _fused_keys(task: Any) -> list[Any]:
    """Keys of the tasks that Dask fused into one, inputs first, or of the only one in a bundle."""
    if getattr(task, "func", None) is run_bundle:
        return [part.key for part in task.args[0]] if len(task.args[0]) == 1 else []
    parts = [part for part in getattr(task, "args", ()) if isinstance(part, dict)]
    if getattr(getattr(task, "func", None), "__name__", "") != "_execute_subgraph" or not parts:
        return []
    return [inner for key, part in parts[0].items() for inner in (*_fused_keys(part), key)]


def _place_roots(graph: Mapping[Any, Any], homes: dict[Any, str | None]) -> None:
    """Assign tasks without a home as the plugin and the scheduler do.

    A task that reads only data of the graph runs where most of its readers are, those of its slices
    included, and a slice where its block is.
    """
    readers: dict[Any, list[Any]] = {}
    for key, task in graph.items():
        for read in task.dependencies:
            readers.setdefault(read, []).append(key)
    order = dask.core.toposort(graph)
    for key in order:
        if key not in homes or homes[key] is not None:
            continue
        if not all(isinstance(graph[read], DataNode) for read in graph[key].dependencies):
            continue
        there = list(readers.get(key, ()))
        for reader in readers.get(key, ()):
            if homes.get(reader) is None:
                there += readers.get(reader, ())
        counts = Counter(home for reader in there if (home := homes.get(reader)) is not None)
        if counts:
            # of several the first one
            most = max(counts.values())
            homes[key] = min((home for home in counts if counts[home] == most), key=int)
    for key in order:
        if key in homes and homes[key] is None:
            inputs = (homes.get(read) for read in graph[key].dependencies)
            there = [home for home in inputs if home is not None]
            homes[key] = Counter(there).most_common(1)[0][0] if there else None
