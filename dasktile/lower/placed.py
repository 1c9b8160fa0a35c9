"""The tasks that Dask runs for a graph, for a simulation: their inputs, sizes and workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.optimization import default_fused_keys_renamer
from dask.order import order
from dask.utils import key_split

from dasktile._compat.dask import Alias, DataNode, Task, TaskRef, argument_of_delayed
from dasktile.capture.base import GraphView
from dasktile.capture.references import head_of
from dasktile.capture.titles import call_of_layer
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.bundle_tasks import has_bundle
from dasktile.lower.merged_layers import merged
from dasktile.lower.queued import families_of, group_of, of_large_groups
from dasktile.lower.tasks import GraphTasks, fuses
from dasktile.schedule.edges import readers_of
from dasktile.schedule.joining import MOST_COMBINED, worker_of_most
from dasktile.schedule.placed_tasks import PlacedTasks
from dasktile.schedule.placement import SLICE_PREFIX, is_written
from dasktile.schedule.ranks import rank_of, ranked_order

Key = Any


class TaskMemory(NamedTuple):
    """What is known of one task.

    Parameters
    ----------
    size
        Bytes of its result.
    working
        Bytes that it holds while it runs, besides its inputs and its result.
    place
        Its mesh position; None if it has none.
    is_part
        Whether its result is a part of what it reads, in the same memory.
    shared
        Bytes of its result that take no memory where it runs: views of others of its arrays.
    """

    size: int
    working: int = 0
    place: int | None = None
    is_part: bool = False
    shared: int = 0


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """What is known of the tasks of a graph.

    Parameters
    ----------
    tasks
        By key, what is known of each task.
    guessed
        Bytes of results whose sizes are guesses, as a share of those of all results; infinite if
        nothing at all is known of some.
    """

    tasks: Mapping[Key, TaskMemory]
    guessed: float


def task_memory(tasks: GraphTasks, number: int, is_named: bool = False) -> TaskMemory:
    """What is known of a task that is in no bundle.

    Parameters
    ----------
    tasks, number
        The tasks of the graph, and the number of the task.
    is_named
        Whether the task gets a name that gives its home.
    """
    # the scheduler plugin finds a home for a task whose name gives none
    known = tasks.limits.mesh and (is_named or not tasks.is_loose(number))
    if not is_named and tasks.homes[number] is None:
        # of data, and of tasks that keep their keys, only a name gives the home
        known = known and tasks.named_homes[number] is not None
    place = tasks.places[number] if known else None
    size = tasks.sizes[number]
    shared = size - tasks.held.get(number, size)
    return TaskMemory(size, tasks.working[number], place, shared=shared)


def guessed_share(tasks: GraphTasks) -> float:
    """`GraphMemory.guessed` of the tasks of a graph.

    Parameters
    ----------
    tasks
        The tasks.
    """
    if tasks.unsized:
        return math.inf
    return sum(tasks.sizes[number] for number in tasks.guessed) / max(1, sum(tasks.sizes))


def guessed_operations(
    graph: HighLevelGraph, wanted: Mapping[str, Collection[Key]], limits: BundleLimits
) -> tuple[str, ...]:
    """The operations with results whose sizes are guesses, those of most such results first.

    Parameters
    ----------
    graph, wanted, limits
        As for `placed_tasks`.
    """
    return guessed_names(GraphTasks(merged(graph, wanted), wanted, list(graph.layers), limits))


def guessed_names(tasks: GraphTasks) -> tuple[str, ...]:
    """The operations of `guessed_operations`, of numbered tasks.

    Parameters
    ----------
    tasks
        The tasks.
    """
    counts = Counter(_operation(tasks, number) for number in tasks.unsized or tasks.guessed)
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _operation(tasks: GraphTasks, number: int) -> str:
    """What a task belongs to, in words of the user."""
    if has_bundle(tasks.tasks[number]):
        return "what was optimised before"
    if getattr(tasks.tasks[number], "func", None) is argument_of_delayed:
        return "arguments of delayed functions"
    return call_of_layer(tasks.heads[number])


def placed_tasks(
    graph: HighLevelGraph,
    wanted: Mapping[str, Collection[Key]],
    limits: BundleLimits,
    known: GraphMemory | None = None,
    by_place: bool = False,
    there: Mapping[Key, int] = MappingProxyType({}),
    threads: int = 0,
    is_enabled: bool = False,
) -> tuple[PlacedTasks, float]:
    """The tasks that Dask runs, after it has merged layers, culled the graph and fused chains.

    With them, `GraphMemory.guessed`.

    Parameters
    ----------
    graph
        The graph.
    wanted
        By the name of the layer of an output, the keys of it that are wanted.
    limits
        Sizes and homes, as for bundles.
    known
        What is known of each task of a graph with bundles; None for other graphs.
    by_place
        Whether tasks run on the workers of their mesh positions.
    there
        Blocks that are in memory already, and the mesh position of each.
    threads
        Threads of all workers; 0 if no task waits for a free one on the scheduler.
    is_enabled
        Whether the scheduler plugin divides root tasks into families.
    """
    ends = {key for keys in wanted.values() for key in keys}
    if known is None:
        graph = _with_data(graph, limits.shapes) if limits.shapes else graph
        numbered = GraphTasks(merged(graph, wanted), wanted, list(graph.layers), limits)
        tasks, known = dict(zip(numbered.keys, numbered.tasks, strict=True)), _known(numbered)
    else:
        tasks = _needed(graph, ends)
    return placed(tasks, ends, known.tasks, by_place, there, threads, is_enabled), known.guessed


def _with_data(graph: HighLevelGraph, data: Collection[Any]) -> HighLevelGraph:
    """A graph with the data that it reads, as a layer without values."""
    name = f"data-{tokenize(list(data))}"
    layer = MaterializedLayer({key: DataNode(key, None) for key in data})
    reads = {each: {*names, name} for each, names in graph.dependencies.items()}
    return HighLevelGraph({**graph.layers, name: layer}, {**reads, name: set()})


def placed(
    tasks: Mapping[Key, Any],
    ends: Collection[Key],
    known: Mapping[Key, TaskMemory],
    by_place: bool,
    there: Mapping[Key, int] = MappingProxyType({}),
    threads: int = 0,
    is_enabled: bool = False,
) -> PlacedTasks:
    """Tasks as a simulation sees them: chains that Dask fuses are one task.

    Dask gives a chain the names of all its tasks, and adds an alias with the key of the last one.
    A worker runs aliases like other tasks.

    Parameters
    ----------
    tasks
        The tasks by key.
    ends
        The wanted keys.
    known
        What is known of each task.
    by_place
        Whether tasks run on the workers of their mesh positions.
    there
        Blocks that are in memory already, and the mesh position of each.
    threads
        Threads of all workers; 0 if no task waits for a free one on the scheduler.
    is_enabled
        Whether the scheduler plugin divides root tasks into families.
    """
    keys, reads = _ordered(tasks)
    number = {key: at for at, key in enumerate(keys)}
    readers = readers_of(reads)
    kept = {number[key] for key in ends if key in number}
    # blocks in memory are no tasks to Dask
    chains = _chains(tasks, keys, readers, kept | {number[key] for key in there if key in number})
    #: For every task that Dask runs, the last task of its chain, or that task twice: for the chain
    #: and for its alias.
    run: list[int] = []
    #: By last task of a chain, the place in `run` of the chain, and of the one that others read.
    first, place = {}, {}
    for last, chain in sorted(chains.items()):
        first[last] = len(run)
        run.append(last)
        if _has_alias([keys[at] for at in chain]):
            run.append(last)
        place[last] = len(run) - 1
    last_of = {at: last for last, chain in chains.items() for at in chain}
    read_by: list[dict[int, None]] = [{} for _ in run]
    for at, inputs in enumerate(reads):
        for read in inputs:
            if last_of[read] != last_of[at]:
                read_by[first[last_of[at]]][place[last_of[read]]] = None
    for last in chains:
        if place[last] != first[last]:
            read_by[place[last]][first[last]] = None
    unknown = TaskMemory(0)
    memory = [_memory_of([known.get(keys[at], unknown) for at in chains[end]]) for end in run]
    # blocks of arrays are sent to workers like other results
    data = {
        at
        for at, last in enumerate(run)
        if type(tasks[keys[last]]) is DataNode and not isinstance(keys[last], tuple)
    }
    aliases = {
        at
        for at, last in enumerate(run)
        if len(read_by[at]) == 1
        and (at != first[last] or (type(tasks[keys[last]]) is Alias and len(chains[last]) == 1))
    }
    homes = [task.place if by_place else None for task in memory]
    joins: set[int] = set()
    if by_place:
        between = {at for at, last in enumerate(run) if _is_of_plan(head_of(keys[last]))}
        moved = [[read for read in reads if read not in data] for reads in read_by]
        _place_others(homes, moved, between)
        joins = _joins(homes, moved)
    order = ranked_order([rank_of(keys[last]) for last in run], [sorted(each) for each in read_by])
    priorities = [0.0] * len(run)
    for priority, at in enumerate(order):
        priorities[at] = float(priority)
    present = {
        place[number[key]]: position
        for key, position in there.items()
        if key in number and number[key] in place and not reads[number[key]]
    }
    inputs_of = [list(inputs) for inputs in read_by]
    fused = [[keys[part] for part in chains[last]] for last in run]
    groups = [
        group_of(key_of(chain) if at == first[last] else chain[-1])
        for at, (last, chain) in enumerate(zip(run, fused, strict=True))
    ]
    # not their aliases
    producers = {
        at
        for at, (last, chain) in enumerate(zip(run, fused, strict=True))
        if at == first[last] and any(getattr(tasks[key], "data_producer", False) for key in chain)
    }
    waiting = producers | of_large_groups(inputs_of, groups, threads) if threads else set()
    waiting -= {at for at in waiting if homes[at] is not None or at in present} | data
    families: list[list[int]] = []
    if is_enabled:
        roots = [at for at in order if at in waiting and data.issuperset(read_by[at])]
        families = families_of(roots, inputs_of, data, threads)
    return PlacedTasks(
        reads=inputs_of,
        sizes=[task.size for task in memory],
        priorities=priorities,
        homes=homes,
        working=[task.working for task in memory],
        kept={place[at] for at in kept},
        data=data,
        aliases=aliases,
        parts={at for at, task in enumerate(memory) if task.is_part},
        shared=[task.shared for task in memory],
        there=present,
        joins=joins,
        families=families,
        queued=waiting,
        keys=fused,
    )


def _is_of_plan(head: Any) -> bool:
    """Whether the scheduler plugin takes a layer for one of a plan; slices have another name."""
    return is_written(head) or (isinstance(head, str) and head.startswith(SLICE_PREFIX))


def _memory_of(chain: Sequence[TaskMemory]) -> TaskMemory:
    """What is known of a chain of tasks that run one after another, each on the last's result."""
    result = chain[-1]
    if len(chain) == 1:
        return result
    before = 0
    most = result.size
    for task in chain:
        most = max(most, before + task.size + task.working)
        before = task.size
    # Dask gives the chain the names of all its tasks, of which the last may give no home
    place = next((task.place for task in reversed(chain) if task.place is not None), None)
    return TaskMemory(result.size, most - result.size, place, shared=result.shared)


def _chains(
    tasks: Mapping[Key, Any],
    keys: Sequence[Key],
    readers: Sequence[Sequence[int]],
    kept: Collection[int],
) -> dict[int, list[int]]:
    """By the last task of each chain that Dask fuses, its tasks; a task alone is a chain, too."""
    last = list(range(len(keys)))
    for at in reversed(range(len(keys))):
        after = readers[at]
        if len(after) != 1 or at in kept:
            continue
        task, reader = tasks[keys[at]], tasks[keys[after[0]]]
        # blocks of an array in the graph; other data is an argument of tasks
        if fuses(task, reader, with_data=isinstance(keys[at], tuple)):
            last[at] = last[after[0]]
    chains: dict[int, list[int]] = {}
    for at, end in enumerate(last):
        chains.setdefault(end, []).append(at)
    return chains


def _has_alias(chain: Sequence[Key]) -> bool:
    """Whether Dask gives a chain another key than that of its last task."""
    return key_of(chain) != chain[-1]


def key_of(chain: Sequence[Key]) -> Key:
    """The key that Dask gives a chain of tasks that it fuses.

    Parameters
    ----------
    chain
        The keys of the tasks, in the order in which they run.
    """
    renamed = default_fused_keys_renamer(chain) if len(chain) > 1 else None
    return chain[-1] if renamed is None else renamed


def _place_others(
    homes: list[int | None], reads: Sequence[Sequence[int]], planned: Collection[int]
) -> None:
    """Place tasks without a position next to others, as the scheduler plugin does.

    Parameters
    ----------
    homes
        The mesh position of every task; None for tasks without one, some of which get one.
    reads
        The tasks that each task reads.
    planned
        Tasks of layers of a plan.
    """
    readers = readers_of(reads)
    # positions of elements, which read nothing, only break ties, too
    near = {number for number in planned if homes[number] is None}
    between = {number for number in near if reads[number]}
    for number, inputs in enumerate(reads):
        if homes[number] is not None or inputs:
            continue
        slices = {
            reader
            for reader in readers[number]
            if homes[reader] is None and (reader in between or len(reads[reader]) == 1)
        }
        touched = [*readers[number]]
        for reader in slices:
            touched += readers[reader]
        if all(homes[each] is not None or each in between | slices for each in touched):
            homes[number] = _most_common(homes, touched)
    for number in sorted(between):
        # of several, the bytes decide
        several = 1 < len(reads[number]) <= MOST_COMBINED
        homes[number] = _most_common(homes, reads[number], near, not several)
    for number, inputs in enumerate(reads):
        alone = all(homes[read] is not None and len(readers[read]) == 1 for read in inputs)
        if homes[number] is None and len(inputs) == 1 and alone:
            homes[number] = homes[inputs[0]]


def _joins(homes: Sequence[int | None], reads: Sequence[Sequence[int]]) -> set[int]:
    """Tasks behind a plan that the scheduler plugin places by the bytes that they read.

    Parameters
    ----------
    homes
        The mesh position of every task; None for tasks without one.
    reads
        The tasks that each task reads, which are before it.
    """
    readers = readers_of(reads)
    joins, behind = set(), set()
    for number, inputs in enumerate(reads):
        if homes[number] is not None:
            continue
        if any(homes[read] is not None or read in behind for read in inputs):
            behind.add(number)
            is_only = all(len(readers[read]) == 1 for read in inputs)
            if len(inputs) > 1 and (is_only or len(inputs) <= MOST_COMBINED):
                joins.add(number)
    return joins


def _most_common(
    homes: Sequence[int | None],
    tasks: Sequence[int],
    near: Collection[int] = (),
    breaks_ties: bool = True,
) -> int | None:
    """The position of most tasks; those in `near` only break ties, and of several the first one."""
    neighbours = ((homes[task], task in near) for task in tasks)
    best: int | None = worker_of_most(neighbours, int, breaks_ties)
    return best


def _ordered(tasks: Mapping[Key, Any]) -> tuple[list[Key], list[list[int]]]:
    """The keys about in Dask's order, and for each the places of those that it reads, ascending.

    Dask breaks ties by hashes of keys; here numbers break them, so that nothing depends on names.
    """
    keys = _sorted(tasks)
    number = {key: at for at, key in enumerate(keys)}
    reads = [
        sorted([number[read] for read in tasks[key].dependencies if read in number]) for key in keys
    ]
    data, references = DataNode(None, None), list(map(TaskRef, range(len(keys))))
    # the order treats data in its own way
    graph: dict[Any, Any] = {
        at: data
        if type(tasks[key]) is DataNode
        else Task(at, _nothing, *[references[read] for read in reads[at]])
        for at, key in enumerate(keys)
    }
    priorities = order(graph, return_stats=False)
    ordered = sorted(range(len(keys)), key=priorities.__getitem__)
    place = [0] * len(keys)
    for at, each in enumerate(ordered):
        place[each] = at
    return (
        [keys[each] for each in ordered],
        [sorted([place[read] for read in reads[each]]) for each in ordered],
    )


def _sorted(keys: Iterable[Key]) -> list[Key]:
    """Keys by operation, array and block, as Dask compares them, but for tokens in their names."""
    keys = list(keys)
    numbers: dict[Any, int] = {}
    for key in keys:
        numbers.setdefault(head_of(key), len(numbers))
    operation = {head: key_split(head) for head in numbers}

    def place(key: Key) -> tuple[str, int, str]:
        head = head_of(key)
        return operation[head], numbers[head], str(key[1:]) if isinstance(key, tuple) else ""

    return sorted(keys, key=place)


def _nothing() -> None:
    """What the tasks of a graph do that is only ordered."""


def _known(tasks: GraphTasks) -> GraphMemory:
    known = {key: task_memory(tasks, number) for number, key in enumerate(tasks.keys)}
    return GraphMemory(known, guessed_share(tasks))


def _needed(graph: HighLevelGraph, wanted: Collection[Key]) -> dict[Key, Any]:
    """The tasks that the wanted keys depend on."""
    layers = GraphView(graph).needed_tasks(wanted).values()
    return {key: task for layer in layers for key, task in layer.items() if task is not None}
