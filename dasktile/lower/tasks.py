"""The tasks of a graph by number, with the homes and sizes by which bundles are formed.

Which tasks must stay as they are is in :mod:`dasktile.lower.frozen`, where they run in
:mod:`dasktile.lower.places`, and how large they are in :mod:`dasktile.lower.sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import getitem
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    Alias,
    DataNode,
    Task,
    TaskRef,
)
from dasktile._compat.merged_parts import layer_of_part
from dasktile.capture.base import GraphView
from dasktile.capture.references import head_of, in_order_of_reads
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.bundle_tasks import keys_in
from dasktile.lower.frozen import PLAIN, frozen_tasks
from dasktile.lower.merged_layers import MergedGraph
from dasktile.lower.named_homes import NamedHomes
from dasktile.lower.names import predicted_bytes, whole_layer_name, without_names
from dasktile.lower.places import places_of
from dasktile.lower.run_order import Edges
from dasktile.lower.settings import LowerSettings
from dasktile.lower.sizes import estimated_sizes, is_basic
from dasktile.lower.task_table import TaskTable
from dasktile.lower.transfers import received, uncounted_share
from dasktile.lower.working import LightTasks, working_bytes
from dasktile.schedule.placement import SLICE_PREFIX, token

Key = Any


def fuses(task: Any, reader: Any, with_data: bool = False) -> bool:
    """Whether Dask fuses a task with its only reader; data only with `with_data`."""
    return (
        isinstance(task, (Task, Alias, DataNode) if with_data else (Task, Alias))
        and isinstance(reader, (Task, Alias))
        and len(reader.dependencies) == 1
        and not task.block_fusion
        and not reader.block_fusion
    )


class GraphTasks:
    """The tasks of a graph that some keys depend on, by number.

    Parameters
    ----------
    graph
        The graph.
    wanted
        By the name of the layer of an output, the keys of it that are wanted.
    order
        Names of layers, in an order that does not depend on the names.
    limits
        What may be bundled.

    Attributes
    ----------
    keys, tasks, layer
        Key of every task, the task, and the name of its layer.
    reads, readers
        For every task, the numbers of the tasks that it reads and of those that read it.
    inputs_first
        All tasks, each after its inputs.
    noted
        By the name of a layer, its blocks according to its annotations.
    sizes, guessed
        Bytes of every result, and the tasks for which they are a guess.
    unsized
        Those of them for which nothing is known.  Their size is an equal share of a bundle.
    working
        Bytes that every task holds while it runs, besides its inputs and its result.
    """

    def __init__(
        self,
        graph: MergedGraph,
        wanted: Mapping[str, Collection[Key]],
        order: Sequence[str],
        limits: BundleLimits,
    ) -> None:
        self.graph, self.noted, self._parts = graph.graph, graph.noted, graph.parts
        self.wanted, self.limits = wanted, limits
        self.keys: list[Key] = []
        self.tasks: list[Any] = []
        self.layer: list[str] = []
        self._ends = {key for keys in wanted.values() for key in keys}
        #: The tokens of the first items of keys.
        self._tokens: dict[str, str] = {}
        #: The number of every key.
        self.number: dict[Key, int] = {}
        #: Keys of futures.
        self.futures: set[Key] = set()
        self._number_tasks(order)
        #: The first item of every key.
        self.heads = [str(head_of(key)) for key in self.keys]
        number = self.number
        self.reads: list[list[int]] = []
        #: By task, the keys that it reads and that no task of the graph has.
        self.outside: dict[int, list[Key]] = {}
        for at, task in enumerate(self.tasks):
            needs = task.dependencies
            reads = sorted([number[read] for read in needs if read in number])
            self.reads.append(reads)
            if len(needs) > len(reads):
                self.outside[at] = sorted([read for read in needs if read not in number], key=repr)
        self.edges = Edges(self.reads)
        self.readers = self.edges.readers
        self.inputs_first = self._inputs_first()
        self.names = NamedHomes(limits)
        self.sizes, self.guessed, self.held = estimated_sizes(self)
        self.unsized = {at for at in self.guessed if not self.sizes[at]}
        for at in self.unsized:
            # a result that may be large should not be kept from one bundle to another
            self.sizes[at] = limits.work // max(1, limits.tasks)
        light = LightTasks()
        self.working = [self._working(at, light.has(task)) for at, task in enumerate(self.tasks)]

    @property
    def positions(self) -> int:
        """Number of mesh positions; 0 where all tasks run in one process."""
        return math.prod(self.limits.mesh) if self.limits.mesh else 0

    @property
    def settings(self) -> LowerSettings:
        """Numbers of the policy."""
        return self.limits.settings

    @cached_property
    def homes(self) -> list[int | None]:
        """The mesh position of each task that a bundle may run, None for others."""
        places = zip(self.places, self.runnable, strict=True)
        return [place if may_run else None for place, may_run in places]

    @cached_property
    def identity(self) -> str:
        """What tells these tasks from those of other graphs: their keys, and their homes."""
        # names are long, and most tasks share theirs with others
        names = {name: at for at, name in enumerate(dict.fromkeys(self.heads))}
        blocks = [
            (names[head], key[1:] if type(key) is tuple else None)
            for head, key in zip(self.heads, self.keys, strict=True)
        ]
        wanted = sorted(names[name] for name in self.wanted if name in names)
        return repr((list(names), without_names(wanted, blocks, self.homes)))

    @cached_property
    def kept(self) -> set[int]:
        """Tasks that are wanted blocks of outputs."""
        return {self.number[key] for key in self._ends if key in self.number}

    @cached_property
    def gathered(self) -> set[int]:
        """Wanted blocks that the client takes out of tuples."""
        return {number for number in self.kept if self.layer[number] in self.limits.gathered}

    @cached_property
    def unknown(self) -> set[int]:
        """Tasks that call functions of which it is unknown how long they take."""
        unknown = self.limits.unknown
        layers = {
            name
            for name in self.graph.layers
            if any(whole_layer_name(part) in unknown for part in (name, *self._parts.get(name, ())))
        }
        return {number for number, layer in enumerate(self.layer) if layer in layers}

    @cached_property
    def table(self) -> TaskTable:
        """The tasks, for `form_runs`."""
        numbers = range(len(self.keys))
        return TaskTable(
            reads=self.reads,
            homes=self.homes,
            sizes=self.sizes,
            counts=[int(not self._is_fused_by_dask(number)) for number in numbers],
            kept=self.kept,
            sources=self.frozen,
            loose=self.loose,
            working=self.working,
            cuts=self.cuts,
            gathered=self.gathered,
            unknown=self.unknown,
            edges=self.edges,
        )

    @cached_property
    def save_in_steps(self) -> bool:
        """Whether the tasks need much less memory if all sums get one term at a time."""
        return self.table.saves_in_steps(self.settings.steps_save)

    def is_output(self, number: int) -> bool:
        """Whether a task is a wanted block of an output."""
        return number in self.kept

    def is_free(self, number: int) -> bool:
        """Whether a result is on every worker."""
        return self.heads[number] in self.limits.free

    @cached_property
    def loose(self) -> set[int]:
        """Tasks whose names do not give their homes."""
        if not self.limits.mesh:
            return set()
        homes = zip(self.homes, self.named_homes, strict=True)
        return {
            number
            for number, (home, named) in enumerate(homes)
            # the scheduler plugin places slices where their inputs are
            if home is not None
            and named != home
            and not self.heads[number].startswith(SLICE_PREFIX)
        }

    def is_loose(self, number: int) -> bool:
        """Whether the name of a task does not give its home."""
        return number in self.loose

    @cached_property
    def has_split_roots(self) -> bool:
        """Whether a task without inputs, whose name gives no home, has readers on several workers.

        The scheduler plugin would run it where most of them are.
        """
        roots = (
            number
            for number in range(len(self.reads))
            if not self.moved(number) and self.is_loose(number) and not self.is_output(number)
        )
        return any(
            self.places[reader] != self.places[root]
            for root in roots
            for reader in self._using(root)
        )

    @cached_property
    def needs_names(self) -> bool:
        """Whether a task whose name gives no home may run elsewhere than at its place."""
        return self.has_split_roots or any(
            self.is_loose(number) and self._may_need_name(number) and self.may_leave(number)
            for number in range(len(self.keys))
        )

    def _may_need_name(self, number: int) -> bool:
        """Whether the place of a task is sure enough for names.

        Where the graph reads data in memory, whose workers the plan may not know, not for blocks of
        outputs, but for those that read it themselves.
        """
        return number in self.outside or not (self.outside and self.is_output(number))

    def may_move(self, number: int) -> bool:
        """Whether a block of an output may be anywhere: no name, nor data, gives it a home."""
        return (
            self.is_output(number)
            and self.may_run(number)
            and not self.readers[number]
            and len(self.reads[number]) > 1
            and number not in self.outside
            and self.named_homes[number] is None
        )

    def may_leave(self, number: int) -> bool:
        """Whether a task may run elsewhere than at its place, if no name gives that.

        Not if all data in memory that it reads, and its other inputs, are elsewhere: the scheduler
        plugin then knows better.
        """
        place = self.places[number]
        reads = {self.places[read] for read in self.moved(number)}
        data = set(map(self._planned_place, self.outside.get(number, ()))) - {None}
        if data and place not in reads | data:
            return False
        return not (reads | data) <= {place}

    def _using(self, number: int) -> Iterator[int]:
        """The tasks that read a result, or slices of it."""
        for reader in self.readers[number]:
            yield from self.readers[reader] if self.is_cut(reader) else (reader,)

    def moved(self, number: int) -> list[int]:
        """What a task reads that is not on every worker."""
        return self._moved[number]

    @cached_property
    def _moved(self) -> list[list[int]]:
        """For every task, what it reads that is not on every worker."""
        free = {number for number in range(len(self.keys)) if self.is_free(number)}
        if not free:
            return self.reads
        return [[read for read in reads if read not in free] for reads in self.reads]

    @cached_property
    def cuts(self) -> set[int]:
        """Tasks that only cut a part of one result."""
        return {
            number
            for number, (task, reads) in enumerate(zip(self.tasks, self.reads, strict=True))
            if len(reads) == 1
            and (
                self.heads[number].startswith(SLICE_PREFIX)
                or (getattr(task, "func", None) is getitem and is_basic(task.args[1]))
            )
        }

    @cached_property
    def views(self) -> dict[int, int]:
        """By transposed array, the one that it is a view of."""
        views: dict[int, int] = {}
        for number in self.inputs_first:
            task = self.tasks[number]
            if getattr(task, "func", None) is not np.transpose or not task.args:
                continue
            [array, *_] = task.args
            read = self.number.get(array.key) if isinstance(array, TaskRef) else None
            if read is not None:
                views[number] = views.get(read, read)
        return views

    def is_cut(self, number: int) -> bool:
        """Whether a task only cuts a part of one result."""
        return number in self.cuts

    def _working(self, number: int, is_light: bool) -> int:
        """Bytes that a task holds while it runs, besides its inputs and its result."""
        known = self.limits.working.get(self.keys[number])
        if known is not None:
            return known
        if is_light:
            return 0
        inputs = {self.keys[read]: self.sizes[read] for read in self.reads[number]}
        return working_bytes(self.tasks[number], inputs, self.sizes[number], self.data)

    def data(self, key: Key) -> Any:
        """The value of a key that is data of the graph; None for other keys."""
        number = self.number.get(key)
        return None if number is None else getattr(self.tasks[number], "value", None)

    def block_numbers(self, number: int) -> Mapping[str, int]:
        """The numbers of a block, by the names of the axes in merged layers; empty for others."""
        layer, key = self.graph.layers[self.layer[number]], self.keys[number]
        if not isinstance(layer, Blockwise) or type(key) is not tuple:
            return {}
        return dict(zip(layer.output_indices, key[1:], strict=False))

    # Tasks

    def _number_tasks(self, order: Sequence[str]) -> None:
        """Number the tasks that the wanted keys depend on."""
        places = {name: place for place, name in enumerate(order)}
        view = GraphView(self.graph)
        needed = view.needed_tasks(self._ends)
        last, rank = len(places), dict[Key, int]()
        several = {
            name
            for name in needed
            if not isinstance(self.graph.layers[name], Blockwise) and len(view.heads(name)) > 1
        }
        if several:
            ends = [key for keys in self.wanted.values() for key in keys]
            every = {key: task for tasks in needed.values() for key, task in tasks.items()}
            rank = {key: at for at, key in enumerate(in_order_of_reads(every, ends))}
        for name in sorted(needed, key=lambda name: places.get(whole_layer_name(name), last)):
            tasks = needed[name]
            for key in sorted(tasks, key=rank.__getitem__) if name in several else tasks:
                task = tasks[key]
                if task is None:
                    self.futures.add(key)
                    task = DataNode(key, None)
                if key not in self.number:
                    self.number[key] = len(self.keys)
                    self.keys.append(key)
                    self.tasks.append(with_key(task, key))
                    # layers of arrays that were optimised together have the tasks of all of them
                    head = head_of(key)
                    is_own = head in self.wanted and head in self.graph.layers
                    self.layer.append(head if is_own else name)

    def _inputs_first(self) -> list[int]:
        """All tasks, each after its inputs."""
        waiting = [len(reads) for reads in self.reads]
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:
            for reader in self.readers[number]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
        return ready

    @cached_property
    def frozen(self) -> set[int]:
        """Tasks that keep their keys, their inputs and their layers."""
        return frozen_tasks(self)

    def _is_fused_by_dask(self, number: int) -> bool:
        """Whether Dask would fuse a task with its only reader."""
        readers = self.readers[number]
        if len(readers) != 1 or self.is_output(number):
            return False
        return fuses(self.tasks[number], self.tasks[readers[0]])

    @cached_property
    def unplanned(self) -> int:
        """Bytes that workers receive beside those that the names of layers predict."""
        inside = {layer_of_part(head_of(key)) for task in self.tasks for key in keys_in(task)}
        planned = predicted_bytes({head_of(key) for key in self.keys} | inside)
        received = self.received
        if self.limits.inner:
            # no layer of Dask's own graph predicts what is received of data
            received += self.received_data or 0
        return received - planned if received > self.settings.unplanned * planned else 0

    @cached_property
    def received(self) -> int:
        """Bytes that workers receive from each other, if every task runs at its place."""
        return received(self.places, self.readers, self.sizes, self.guessed)

    @cached_property
    def received_data(self) -> int | None:
        """Bytes of data in memory that workers receive; None if some of it is unknown."""
        total = 0
        readers = {
            (key, self.places[number]) for number, data in self.outside.items() for key in data
        }
        for key, place in readers:
            array, there = self.limits.shapes.get(key), self._planned_place(key)
            if array is None or there is None or place is None:
                return None
            shape, dtype = array
            if there != place:
                total += math.prod(shape) * dtype.itemsize
        return total

    def uncounted_share(self, is_of_data: bool) -> float:
        """Of the results that workers receive from each other, the share not in `received`.

        Parameters
        ----------
        is_of_data
            Whether results whose sizes are guesses are counted otherwise, as data in memory.
        """
        guessed = () if is_of_data else self.guessed
        return uncounted_share(self.places, self.readers, self.sizes, guessed)

    # Homes

    @cached_property
    def named_homes(self) -> list[int | None]:
        """The mesh position that the name of each task gives, None if it gives none."""
        return list(map(self.names.of_task, self.tasks, self.keys))

    def location(self, number: int) -> int | None:
        """The mesh position that the plan gives a task, None if it gives none."""
        key, head = self.keys[number], self.heads[number]
        if self._planned_places(head):
            return self._planned_place(key)
        tiles = self.limits.named.get(head)
        return self.named_homes[number] if tiles is None else self.names.of(key, tiles)

    def _planned_place(self, key: Key) -> int | None:
        """The mesh position of a key in `BundleLimits.positions`, None if it is not there."""
        blocks = self._planned_places(str(head_of(key)))
        return blocks.get(key[1:] if type(key) is tuple else ())

    def _planned_places(self, head: str) -> Mapping[tuple[int, ...], int]:
        """The mesh positions of keys with a first item."""
        if head not in self._tokens:
            self._tokens[head] = token(head)
        return self.limits.positions.get(self._tokens[head], {})

    def may_run(self, number: int) -> bool:
        """Whether a bundle may run a task."""
        return self.runnable[number]

    @cached_property
    def runnable(self) -> list[bool]:
        """For every task, whether a bundle may run it."""
        frozen, annotated = self.frozen, self.annotated
        return [
            type(task) in PLAIN and number not in frozen and layer not in annotated
            for number, (task, layer) in enumerate(zip(self.tasks, self.layer, strict=True))
        ]

    @cached_property
    def annotated(self) -> set[str]:
        """Names of layers with annotations."""
        return {name for name, layer in self.graph.layers.items() if layer.annotations}

    @cached_property
    def places(self) -> list[int | None]:
        """The mesh position of each task, None if it is unknown."""
        return places_of(self)


def with_key(task: Any, key: Key) -> Any:
    """A task with the key that it has in its layer.

    ``dask.graph_manipulation.clone`` leaves the old keys in tasks.
    """
    if task.key == key:
        return task
    return Alias(key, task.target) if type(task) is Alias else task.substitute({}, key=key)
