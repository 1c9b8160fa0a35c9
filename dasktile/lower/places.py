"""The mesh position at which each task of a graph should run.

The plan places arrays.  Other tasks run where their inputs or their readers are.  Where most of the
tasks of a graph are placed by neither, as those of delayed functions, they are divided: tasks that
are made of the same inputs run on one worker, and neighbours too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

from dasktile._compat.dask import DataNode
from dasktile.lower.settings import LowerSettings
from dasktile.schedule.joining import CUT_DATA

Place = int | None


class PlacedGraph(Protocol):
    """The tasks of a graph by number, as `dasktile.lower.tasks.GraphTasks` has them."""

    tasks: list[Any]
    reads: list[list[int]]
    readers: list[list[int]]
    inputs_first: list[int]
    sizes: list[int]
    guessed: set[int]
    outside: dict[int, list[Any]]

    @property
    def positions(self) -> int: ...

    @property
    def settings(self) -> LowerSettings: ...

    def moved(self, number: int) -> list[int]: ...

    def is_cut(self, number: int) -> bool: ...

    def may_run(self, number: int) -> bool: ...

    def location(self, number: int) -> Place: ...

    def may_move(self, number: int) -> bool: ...


def places_of(graph: PlacedGraph) -> list[Place]:
    """The mesh position of each task; None for tasks that may run anywhere.

    Parameters
    ----------
    graph
        The tasks.
    """
    if not graph.positions:
        return [0] * len(graph.tasks)
    places = [graph.location(number) for number in range(len(graph.tasks))]
    return _Places(graph, places).complete()


class _Places:
    """The places that are known so far.

    Parameters
    ----------
    graph
        The tasks.
    places
        Their places according to the plan.
    """

    def __init__(self, graph: PlacedGraph, places: list[Place]) -> None:
        self.graph, self.places = graph, places
        #: Tasks of which the plan gives no place, each after its inputs.
        self.unplaced = [
            number
            for number in graph.inputs_first
            if places[number] is None and graph.may_run(number)
        ]
        #: By place, the tasks there that combine results of several.
        self.combining: Counter[Place] = Counter()

    def complete(self) -> list[Place]:
        self.place_by_inputs()
        self.place_slices_of_data()
        self.place_by_readers()
        self.place_with_own_inputs()
        rest = [number for number in self.unplaced if self.places[number] is None]
        if len(rest) >= self.graph.settings.divided_share * len(self.places):
            self.divide(rest)
            self.place_by_inputs()
        self.place_rest()
        self.move_to_inputs()
        return self.places

    def place_by_inputs(self) -> None:
        """Run a slice, and any task with nearly all of its inputs on one worker, there."""
        for number in self.unplaced:
            if self.places[number] is None:
                self.places[number] = self.place_of_inputs(number)

    def place_slices_of_data(self) -> None:
        """Cut a large block of the graph's data where most of it is read: others need only slices.

        Where a worker reads the block as a whole, it has it.
        """
        graph, places = self.graph, self.places
        for data, readers in enumerate(graph.readers):
            if type(graph.tasks[data]) is not DataNode or len(readers) < 2:
                continue
            if places[data] is not None:  # it is in the memory of a worker
                continue
            if graph.sizes[data] < CUT_DATA:
                continue
            slices = [number for number in readers if graph.is_cut(number)]
            if len(slices) < len(readers):
                continue
            read: Counter[Place] = Counter()
            for number in slices:
                for place in {places[reader] for reader in graph.readers[number]}:
                    read[place] += graph.sizes[number]
            if len(read) < 2 or None in read:
                continue
            best = min(read, key=lambda place: (-read[place], place or 0))
            for number in slices:
                if places[number] is None and graph.may_run(number):
                    places[number] = best

    def place_by_readers(self) -> None:
        """Run a task without inputs where its only readers are.

        Not all inputs of a sum of many blocks: that would leave the other workers idle.
        """
        graph, places = self.graph, self.places
        near = list(places)
        #: For every task, whether it is placed, or reads one result only.
        known = [
            place is not None or len(graph.reads[number]) == 1
            for number, place in enumerate(places)
        ]
        for number in reversed(self.unplaced):
            readers = graph.readers[number]
            if (
                near[number] is None
                and readers
                and all(known[each] or self.is_main_input(number, each, near) for each in readers)
            ):
                if not self.read_by(number):
                    near[number] = self.place_of_readers(number, near)
                elif len(there := {near[reader] for reader in readers}) == 1:
                    near[number] = there.pop()
        for number in self.unplaced:
            reads = self.read_by(number)
            if places[number] is None and all(places[read] == near[number] for read in reads):
                places[number] = near[number]
            if places[number] is None and len(reads) == 1 and graph.is_cut(number):
                places[number] = places[reads[0]]

    def is_main_input(self, number: int, reader: int, near: Sequence[Place]) -> bool:
        """Whether a task whose place is known reads little beside a result, as edges of others."""
        graph = self.graph
        if near[reader] is None or number in graph.guessed:
            return False
        read = sum(graph.sizes[each] for each in graph.moved(reader))
        return graph.sizes[number] > graph.settings.near_inputs * read

    def place_with_own_inputs(self) -> None:
        """Run a task where all of its inputs are, but for those that are made for it alone.

        These are tasks without inputs, which can be anywhere, and run there, too.
        """
        graph, places = self.graph, self.places
        for number in self.unplaced:
            if places[number] is not None or number in graph.outside:
                continue
            reads = self.read_by(number)
            own = {
                read
                for read in reads
                if places[read] is None
                and graph.readers[read] == [number]
                and graph.may_run(read)
                and read not in graph.outside
                and not self.read_by(read)
            }
            there = {places[read] for read in reads if read not in own}
            if own and len(there) == 1:
                [place] = there
                for each in (number, *own):
                    places[each] = place

    def place_rest(self) -> None:
        """Run a task with inputs on several workers where the fewest bytes are received for it.

        Where bytes are a guess, it runs where its last input is made: the next step of a loop runs
        where the one before has run.  The scheduler plugin places those made of data in memory,
        when it knows their bytes.
        """
        graph, places = self.graph, self.places
        rest = [number for number in self.unplaced if places[number] is None]
        if not rest:
            return
        near = self.beside_readers()
        received: set[tuple[int, Place]] = set()
        added: Counter[Place] = Counter()
        for number in rest:
            reads = self.reads_with_places(number)
            there = {places[read] for read in reads}
            if not there:
                continue

            def cost(place: Place, number: int = number, reads: list[int] = reads) -> int:
                missing = (
                    read
                    for read in reads
                    if places[read] != place and (read, place) not in received
                )
                result = graph.sizes[number] if near[number] not in (None, place) else 0
                return sum(graph.sizes[read] for read in missing) + result

            candidates = {*there, near[number]} - {None}
            if not graph.guessed.isdisjoint(reads):
                if number in self.from_data:
                    continue
                latest = max(self.depth[read] for read in reads)
                candidates = {places[read] for read in reads if self.depth[read] == latest}
                if len(candidates) > 1:
                    continue
            best = min(candidates, key=lambda place: (cost(place), added[place], place or 0))
            places[number] = best
            added[best] += 1
            received.update((read, best) for read in reads)

    def move_to_inputs(self) -> None:
        """Run blocks that may be anywhere where fewer bytes are received for them, if there are."""
        graph, places = self.graph, self.places
        moving = [number for number, place in enumerate(places) if graph.may_move(number)]
        if not moving:
            return
        #: By result and place, the tasks there that read it.
        readers = Counter(
            (read, place) for number, place in enumerate(places) for read in graph.moved(number)
        )
        for number in moving:
            home, reads = places[number], self.reads_with_places(number)
            there = {places[read] for read in reads}
            if not there or not graph.guessed.isdisjoint(reads):
                continue
            readers.subtract((read, home) for read in reads)

            def received(place: Place, reads: list[int] = reads) -> int:
                lacking = (
                    read for read in reads if places[read] != place and not readers[read, place]
                )
                return sum(graph.sizes[read] for read in lacking)

            best = min(
                {home, *there}, key=lambda place: (received(place), place != home, place or 0)
            )
            readers.update((read, best) for read in reads)
            places[number] = best

    @cached_property
    def from_data(self) -> set[int]:
        """The tasks that are made of data in memory."""
        found = set(self.graph.outside)
        for number in self.graph.inputs_first:
            if not found.isdisjoint(self.graph.reads[number]):
                found.add(number)
        return found

    @cached_property
    def depth(self) -> list[int]:
        """For every task, the number of tasks on the longest path to it."""
        depth = [0] * len(self.places)
        for number in self.graph.inputs_first:
            depth[number] = 1 + max((depth[read] for read in self.graph.reads[number]), default=0)
        return depth

    def beside_readers(self) -> list[Place]:
        """For every task, its place, or else that where most of its readers will probably run."""
        near = list(self.places)
        for number in reversed(self.unplaced):
            counts = Counter(near[reader] for reader in self.graph.readers[number])
            del counts[None]
            if near[number] is None and counts:
                near[number] = min(counts, key=lambda place: (-counts[place], place or 0))
        return near

    def divide(self, rest: Sequence[int]) -> None:
        """Divide tasks without a place: neighbours run on one worker, and have equal shares.

        They stay without a place where shares would not be equal, as where most of them read one
        result.
        """
        graph, groups = self.graph, self.groups(rest)
        if len(groups) < graph.settings.divided_groups * graph.positions:
            return
        places = [self.place_beside(group) for group in groups]
        free = [at for at, place in enumerate(places) if place is None]
        ends = list(accumulate(len(groups[at]) for at in free))
        for at, end in zip(free, ends, strict=True):
            middle = end - len(groups[at]) / 2
            places[at] = int(middle * graph.positions / ends[-1])
        loads: Counter[Place] = Counter()
        for group, place in zip(groups, places, strict=True):
            loads[place] += len(group)
        if max(loads.values()) > graph.settings.divided_balance * len(rest) / graph.positions:
            return
        for group, place in zip(groups, places, strict=True):
            for number in group:
                self.places[number] = place

    def place_beside(self, group: Sequence[int]) -> Place:
        """The place of most tasks that read the results of a group; None if none has one."""
        beside = Counter(
            place
            for number in group
            for reader in self.graph.readers[number]
            if (place := self.places[reader]) is not None
        )
        return min(beside, key=lambda place: (-beside[place], place), default=None)

    def groups(self, rest: Sequence[int]) -> list[list[int]]:
        """Tasks with the same inputs, in the order of these."""
        group: dict[int, list[int]] = {}
        for number in rest:
            reads = self.read_by(number)
            if not reads:
                group[number] = [number]
                continue
            several = {id(group[read]): group[read] for read in reads if read in group}
            if len(several) == 1 and all(read in group for read in reads):
                [only] = several.values()
                only.append(number)
                group[number] = only
        return list({id(each): each for each in group.values()}.values())

    def read_by(self, number: int) -> list[int]:
        """What a task reads, without data of the graph that is nowhere in particular."""
        graph, places = self.graph, self.places
        return [
            read
            for read in graph.moved(number)
            if places[read] is not None or type(graph.tasks[read]) is not DataNode
        ]

    def reads_with_places(self, number: int) -> list[int]:
        """What a task reads whose places are known; nothing if those of much else are not."""
        graph = self.graph
        reads = graph.moved(number)
        known = [read for read in reads if self.places[read] is not None]
        if len(known) == len(reads):
            return reads
        size = sum(graph.sizes[read] for read in known)
        enough = graph.settings.near_inputs * sum(graph.sizes[read] for read in reads)
        return known if size > enough else []

    def place_of_inputs(self, number: int) -> Place:
        """The mesh position of the inputs of a task, or of nearly all of their bytes.

        A task that combines many results of several workers runs on one of them that has most, and
        the next such task on another; or where its result is read, if that is larger than what is
        saved by running it beside most inputs.
        """
        graph, places = self.graph, self.places
        reads = self.read_by(number)
        there = {places[read] for read in reads}
        if len(there) == 1:
            return there.pop()
        if not there or not graph.guessed.isdisjoint(reads):
            return None
        held = dict.fromkeys(there, 0)
        for read in reads:
            held[places[read]] += graph.sizes[read]
        if None not in held and len(reads) > graph.settings.many_inputs * len(held):
            reader = self.place_of_only_readers(number, held)
            if reader is not None:
                return reader
            least = graph.settings.equal_inputs * max(held.values())
            most = min(
                (place for place in held if held[place] >= least),
                key=lambda place: (self.combining[place], place or 0),
            )
            self.combining[most] += 1
            return most
        most = max(held, key=lambda place: (held[place], place is None, place or 0))
        enough = graph.settings.near_inputs * sum(held.values())
        return most if held[most] > enough else None

    def place_of_only_readers(self, number: int, held: Mapping[Place, int]) -> Place:
        """Where all readers of a result are, if fewer bytes are received for it there.

        `held` are the bytes of its inputs by place.
        """
        graph = self.graph
        there = {self.places[reader] for reader in graph.readers[number]}
        if len(there) != 1 or None in there or number in graph.guessed:
            return None
        [place] = there
        more = max(held.values()) - held.get(place, 0)
        return place if graph.sizes[number] > more else None

    def place_of_readers(self, number: int, places: Sequence[Place]) -> Place:
        """The mesh position that reads most bytes of a result, the first of several."""
        graph = self.graph
        read: dict[int, int] = {}
        for reader in graph.readers[number]:
            is_cut = graph.is_cut(reader)
            part, after = (reader, graph.readers[reader]) if is_cut else (number, [reader])
            there = (places[each] for each in after)
            for place in dict.fromkeys(place for place in there if place is not None):
                # several slices of it may overlap
                read[place] = min(read.get(place, 0) + graph.sizes[part], graph.sizes[number])
        return max(read, key=lambda place: (read[place], -place), default=None)
