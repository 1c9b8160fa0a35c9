"""The layout of a graph with bundles: its keys, and where every result is.

A bundle that returns one result has it as its value, others have nested tuples.  The keys of
bundles and picks contain their home and their rank, and so do those of other tasks that get a new
key.  Blocks of outputs keep their block numbers, under the name of the output or a new name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dasktile.capture.references import head_of
from dasktile.ir import by_position
from dasktile.lower.bundle_tasks import Path, keys_in
from dasktile.lower.gathered import Part
from dasktile.lower.names import new_layer_name, predicted_bytes, token_of, without_names
from dasktile.lower.runs import Run
from dasktile.lower.task_table import TaskTable
from dasktile.lower.tasks import GraphTasks
from dasktile.schedule.placement import MARK, Placement, decode
from dasktile.schedule.ranks import BUNDLE

Key = Any

#: Longest tuple in a bundle's value.  ``dask.sizeof`` measures a random sample of longer ones.
_MAX_TUPLE = 10


class BundleLayout:
    """The keys of bundles, picks and other tasks of a new graph, and where every result is.

    Parameters
    ----------
    tasks
        The tasks of the graph.
    table
        The tasks, in the order in which they run.
    runs
        The tasks of each bundle.
    named
        The outputs that must keep their names.
    in_steps
        Whether all tasks have ranks, those in no bundle, too.

    Attributes
    ----------
    names
        New names of outputs, by their names before.
    taken
        By the new key of a block of an output that the client takes out of a tuple, where it is.
    """

    def __init__(
        self,
        tasks: GraphTasks,
        table: TaskTable,
        runs: Sequence[Run],
        named: Collection[str],
        in_steps: bool,
    ) -> None:
        self.tasks, self.table, self.runs = tasks, table, runs
        self._placements: dict[str, Placement | None] = {}
        self.run_of = {number: at for at, run in enumerate(runs) for number in run.tasks}
        #: For every run, the tasks whose results it returns.
        self.returned = [run.returned for run in runs]
        #: Blocks of outputs that other tasks read.  Readers have keys of their own to read, as the
        #: layer of an output that is read could be in a cycle with layers of bundles.
        self.shared = {
            number for number in tasks.kept - tasks.frozen if tasks.readers[number]
        }  # fmt: skip
        #: Tasks in no run that have other keys, or read other keys, than before.
        self.changed = {
            number
            for number in range(len(tasks.keys))
            if number not in self.run_of
            and (number in self.shared or (tasks.is_loose(number) and number not in tasks.kept))
        }
        if in_steps:
            same = {*self.run_of, *tasks.frozen, *tasks.kept}
            others = (number for number in range(len(tasks.keys)) if number not in same)
            self.changed.update(number for number in others if not tasks.is_free(number))
        for number in tasks.inputs_first:
            if number in self.run_of or number in tasks.frozen:
                continue
            if any(read in self.run_of or read in self.changed for read in tasks.reads[number]):
                self.changed.add(number)
        #: Blocks of outputs that no name places, and whose inputs are not all at their place: the
        #: scheduler plugin finds their home by the key of the only task that they run.  Tasks
        #: with one input run where this is.
        self.wrapped = {
            number
            for number in tasks.kept - tasks.frozen - self.shared
            if number not in self.run_of
            and tasks.is_loose(number)
            and tasks.may_leave(number)
            and len(tasks.reads[number]) + len(tasks.outside.get(number, ())) > 1
        }
        self.changed |= self.wrapped
        #: The rank of every run, and of every task in no run, in the order in which they run.
        self.run_rank, self.rank = self._ranks()
        ranks = self.run_rank, sorted(self.rank.items())
        self.token = token_of(tasks.identity + without_names(runs, ranks))
        mesh = tasks.limits.mesh
        #: Bytes that workers receive beside those that names of layers predict.
        self.unplanned = tasks.unplanned
        predicted = self._lost() + self.unplanned
        planned_for = tasks.limits.planned_for
        at = Placement(mesh, by_position(mesh), predicted, None, planned_for) if mesh else None
        self.name = new_layer_name(BUNDLE, self.token, placement=at)
        #: Name of the tasks without a home.
        self.unplaced = new_layer_name(BUNDLE, self.token)
        self.names = self._names(named)
        #: For every task that has a key, that key in the new graph.
        self.key_of: dict[int, Key] = {
            number: self._key_of(number) for number in range(len(tasks.keys))
        }
        #: For every run: its key, what it returns, and where each result is in its value.
        self.key: list[Key] = []
        self.value: list[Any] = []
        self.local: list[dict[int, Part]] = []
        #: For results that other tasks read by picks: where they are.
        self.remote: dict[int, Part] = {}
        self.taken: dict[Key, Part] = {}
        #: For every run, the keys of its picks, and the place of each in its value.
        self.picks: list[list[tuple[Key, Path]]] = []
        #: By run, the block of an output that is an alias of it, as no name gives its home.
        self.alias: dict[int, Key] = {}
        for number, run in enumerate(runs):
            self._lay_out(number, run)

    def _ranks(self) -> tuple[list[int], dict[int, int]]:
        """Ranks of the runs, and of the tasks in no run."""
        tasks, run_of = self.tasks, self.run_of
        singles = [number for number in tasks.inputs_first if number not in run_of]
        members = [run.tasks for run in self.runs] + [(number,) for number in singles]
        node_of = {number: node for node, inside in enumerate(members) for number in inside}
        reads = [
            sorted({node_of[read] for number in inside for read in tasks.reads[number]} - {node})
            for node, inside in enumerate(members)
        ]
        returned = self.returned + members[len(self.runs) :]
        sizes = [sum(tasks.sizes[number] for number in results) for results in returned]
        homes = [tasks.homes[inside[0]] for inside in members]
        kept = {node_of[number] for number in tasks.kept}
        rank = [0] * len(members)
        for at, node in enumerate(self.table.arrange(reads, sizes, homes, kept)):
            rank[node] = at
        return rank[: len(self.runs)], {number: rank[node_of[number]] for number in singles}

    def _lost(self) -> int:
        """Predicted bytes of layers of which no task keeps its name."""
        tasks = self.tasks
        keeps = {
            head_of(key)
            for number, key in enumerate(tasks.keys)
            if number in tasks.kept or (number not in self.changed and number not in self.run_of)
        }
        return predicted_bytes({head_of(key) for key in tasks.keys} - keeps)

    def _names(self, named: Collection[str]) -> dict[str, str]:
        """New names for the outputs that may have any name, where one of their tasks changes."""
        tasks = self.tasks
        names: dict[str, str] = {}
        for number in sorted(tasks.kept):
            name = tasks.layer[number]
            if name in named or name in names:
                continue
            if number in self.changed or number in self.run_of:
                operation = name.partition(MARK)[0]
                at = decode(name) or self._placement_of(name)
                names[name] = new_layer_name(operation, name, self.token, placement=at)
        return names

    def _placement_of(self, name: str) -> Placement | None:
        """The placement of all blocks of an output whose name gives none; None if there is none."""
        if name not in self._placements:
            tasks, at = self.tasks, self.tasks.limits.placements.get(name)
            blocks = (number for number in tasks.kept if tasks.layer[number] == name)
            if at is not None and any(
                tasks.names.of(tasks.keys[number], new=at) != tasks.places[number]
                for number in blocks
            ):
                at = None  # some run where fewer bytes are received for them
            self._placements[name] = at
        return self._placements[name]

    def _key_of(self, number: int) -> Key:
        """The key of a task in no run, or of a block of an output."""
        tasks = self.tasks
        if number in tasks.kept and number not in self.shared:
            return self.output_key(number)
        if number not in self.changed and number not in self.shared:
            return tasks.keys[number]
        home = tasks.places[number]
        name, home = (self.unplaced, 0) if home is None else (self.name, home)
        if number in self.run_of:
            return (name, home, self.run_rank[self.run_of[number]], 0, number)
        return (name, home, self.rank[number])

    def wrapped_key(self, number: int) -> Key:
        """The key, by which it has a home, of the task that a block of an output runs."""
        return (self.name, self.tasks.homes[number], self.rank[number])

    def named_home(self, number: int) -> int | None:
        """The mesh position that the name of a block of an output gives; None if it gives none."""
        name = self.tasks.heads[number]
        new = self._placement_of(name) if name in self.names else None
        return self.tasks.names.of(self.tasks.keys[number], new=new)

    def _gives_home(self, run: Run, output: int) -> bool:
        """Whether the scheduler plugin finds the home of a run whose key is that of an output."""
        tasks = self.tasks
        home = tasks.homes[output]
        if home is None or self.named_home(output) == home:
            return True
        steps = (tasks.tasks[number] for number in run.tasks)
        inside = [key for step in steps for key in (*keys_in(step), step.key)]
        named = (key for key in reversed(inside) if decode(head_of(key)) is not None)
        return tasks.names.of(next(named, None)) == home

    def output_key(self, number: int) -> Key:
        """The key of a block of an output."""
        name, *block = self.tasks.keys[number]
        return (self.names.get(name, name), *block)

    def _lay_out(self, number: int, run: Run) -> None:
        """Decide on the key of a run and the form of its value."""
        tasks = self.tasks
        home, rank = tasks.homes[run.tasks[0]], self.run_rank[number]
        returned = self.returned[number]
        if len(returned) == 1:
            [only] = returned
            key = self.key_of[only]
            if only not in tasks.kept:
                key = (self.name, home, rank)
            elif only not in self.shared and not self._gives_home(run, only):
                self.alias[number], key = key, (self.name, home, rank)
            self.key.append(key)
            self.value.append(tasks.keys[only])
            self.local.append({only: Part(self.key[-1])})
            self.picks.append([])
            self.remote[only] = Part(key)
            return
        key = (self.name, home, rank)
        self.key.append(key)
        inside = {part for pick in run.picks for part in pick}
        parts: list[Any] = [list(pick) if len(pick) > 1 else pick[0] for pick in run.picks]
        parts += [part for part in run.local if part not in inside]
        value = _nested([_nested(part) if isinstance(part, list) else part for part in parts])
        if len(parts) == 1:
            # all readers read all results
            value = _nested(parts[0])
        paths = dict(_paths(value))
        self.local.append({part: Part(key, path) for part, path in paths.items()})
        self.value.append(_keys(value, tasks.keys))
        self.picks.append([])
        if run.whole:
            self.remote.update(self.local[-1])
            self._take(paths)
            return
        for at, results in enumerate(run.picks):
            first, path = results[0], paths[results[0]]
            own = (self.name, home, rank, at)
            if len(results) == 1:
                own = self.key_of[first] if first in tasks.kept else own
                self.remote[first] = Part(own)
            else:
                inside_of = dict(_paths(_nested(list(results))))
                path = path[: len(path) - len(inside_of[first])]
                self.remote.update((part, Part(own, inside_of[part])) for part in results)
                self._take(results)
            self.picks[-1].append((own, path))

    def _take(self, results: Iterable[int]) -> None:
        """The client takes those of some results that are blocks of outputs out of their tuple."""
        for number in results:
            if number in self.tasks.gathered:
                self.taken[self.output_key(number)] = self.remote[number]

    def part_read(self, read: int, reader: int) -> Part:
        """Where a task reads a result."""
        tasks = self.tasks
        at = self.run_of.get(read)
        if at is None:
            return Part(self.key_of[read])
        sure = reader in self.run_of or not tasks.is_loose(reader)
        if tasks.homes[reader] == tasks.homes[read] and sure:
            return self.local[at][read]
        return self.remote[read]


def _nested(parts: list[Any]) -> list[Any]:
    """The same parts in nested lists, none of which is longer than `_MAX_TUPLE`."""
    while len(parts) > _MAX_TUPLE:
        size = max(_MAX_TUPLE, math.ceil(len(parts) / _MAX_TUPLE))
        parts = [parts[start : start + size] for start in range(0, len(parts), size)]
        parts = [_nested(part) if len(part) > 1 else part[0] for part in parts]
    return parts


def _paths(parts: Any, path: Path = ()) -> Iterator[tuple[int, Path]]:
    """Every number in nested lists, and its place."""
    if isinstance(parts, list):
        for index, part in enumerate(parts):
            yield from _paths(part, (*path, index))
    else:
        yield parts, path


def _keys(parts: Any, keys: Sequence[Key]) -> Any:
    """Nested lists with keys in place of numbers."""
    if isinstance(parts, list):
        return [_keys(part, keys) for part in parts]
    return keys[parts]
