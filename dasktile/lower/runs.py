"""Runs: the tasks that one bundle runs, chosen by homes, reads and sizes alone.

A run is a part of the tasks of one home and one phase (:mod:`dasktile.lower.task_table`),
contiguous in an order in which every task follows its inputs.  Edges between runs lead to a higher
phase, or to a later run of the same home and phase, so that runs never read each other in a cycle.

A result of a run is returned if it is read elsewhere.  Tasks of the same home read it from the
bundle itself.  For tasks of other homes there are *picks*: each contains the results that have
the same readers, so that no worker receives a result that it does not need, or one twice.  Where
the client takes the blocks of an output out of tuples, it is a reader as those of other homes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from math import inf

from dasktile.lower.task_table import Home, TaskTable

#: Lanes for each thread of a worker (chosen: with one, threads wait for the longest lane).
_LANES = 2

#: Time in which a function takes a byte, over that in which a byte is moved between workers
#: (chosen: 1.3 GB and 0.27 GB a second).
_FUNCTION_BYTES = 0.2

#: The client as a reader of results: it is no task of the graph.
CLIENT = "client"


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may contain.

    Parameters
    ----------
    tasks
        Most tasks of a run; those that cut a part of one result are not counted.
    work
        Bytes of a run's inputs and of its results that are in memory at the same time.
    inputs
        Bytes of a run's inputs, if they are more than one of its tasks reads.
    results
        Bytes that a run may return.
    threads
        Tasks that a worker runs at once.
    per_thread
        Least number of runs of one home and phase for every thread.
    per_thread_if_unknown
        The same where it is unknown how long a task of them takes, if that is more.
    remaining
        Tasks of a home and phase that may remain, picks included, as a share of those before.
    span
        Tasks of the home, of all phases, from the first to the last of a run, as a multiple of the
        tasks that it may have.  A result that is needed soon must not wait for tasks that run late.
    task_bytes
        Bytes that are worth keeping in memory from one run to a later one for a task less.
    """

    tasks: int
    work: float = inf
    inputs: float = inf
    results: float = inf
    threads: int = 1
    per_thread: int = 3
    per_thread_if_unknown: int = 0
    remaining: float = 0.75
    span: float = 2.0
    task_bytes: float = 0.8e6


@dataclass(frozen=True, slots=True)
class Run:
    """The tasks of one bundle, and what it returns.

    Parameters
    ----------
    tasks
        Numbers of the tasks, in the order in which they run.
    local
        Tasks whose results are read by other tasks of the same home.
    picks
        Tasks whose results are read by tasks of other homes or by the client, or have keys of
        their own: in one tuple, those with the same readers.
    """

    tasks: tuple[int, ...]
    local: tuple[int, ...]
    picks: tuple[tuple[int, ...], ...]

    @property
    def returned(self) -> tuple[int, ...]:
        """The tasks whose results are returned, in the order in which they run."""
        needed = {*self.local, *(number for pick in self.picks for number in pick)}
        return tuple(number for number in self.tasks if number in needed)

    @property
    def whole(self) -> bool:
        """Whether readers of other homes read the bundle itself, as they need all of it."""
        return not self.picks or (len(self.picks) == 1 and set(self.local) <= set(self.picks[0]))

    @property
    def count(self) -> int:
        """Number of tasks: the bundle and its picks."""
        return 1 if self.whole else 1 + len(self.picks)


@dataclass(frozen=True, slots=True)
class _Units:
    """Runs, and tasks in no run: their number, and the most of which each reads another."""

    count: int
    depth: int

    @property
    def width(self) -> float:
        """How many can run at once, on average."""
        return self.count / self.depth


def form_runs(table: TaskTable, limits: RunLimits) -> list[Run]:
    """The runs of two or more tasks by which a graph has fewer tasks, in the order to run them.

    Parameters
    ----------
    table
        The tasks of the graph.
    limits
        What one run may contain.
    """
    if limits.tasks < 2:
        return []
    forming = _Forming(table, limits)
    return forming.runs()


class _Forming:
    """The formation of the runs of one graph."""

    def __init__(self, table: TaskTable, limits: RunLimits) -> None:
        self.table, self.limits = table, limits
        self.loose = set(table.loose)
        #: For every task, how many it counts for where the tasks of a run are limited.
        self.weights = list(table.counts)
        for number in table.cuts:
            self.weights[number] = 0
        self.readers = table.readers
        self.kept = set(table.kept)
        self.gathered = set(table.gathered)
        self.unknown = set(table.unknown)
        #: For every task, the home and the phase; None for a task that no run may contain.
        self.group: list[tuple[Home, int] | None] = [
            None if home is None else (home, phase)
            for home, phase in zip(table.homes, table.phases, strict=True)
        ]

        #: For every task of a group, the tasks of its home that are before it in the order, as far
        #: as they count.
        self.place: dict[int, int] = {}
        #: For every task of a group, its readers in the group; and what results that are returned
        #: in one pick have in common, None for a result that no other home needs.
        self.readers_here: dict[int, int] = {}
        self.pick_of: dict[int, Hashable] = {}

    def runs(self) -> list[Run]:
        groups: dict[tuple[Home, int], list[int]] = {}
        passed: dict[Home, int] = {}
        order = self.table.order
        for number in order:
            group = self.group[number]
            if group is not None:
                groups.setdefault(group, []).append(number)
                self._note_readers(number, group)
                self.place[number] = passed.get(group[0], 0)
                passed[group[0]] = self.place[number] + self.weights[number]
        # by group: runs of it, as lists of tasks
        parts: dict[tuple[Home, int], list[Sequence[int]]] = {
            group: self._runs_of(numbers) for group, numbers in groups.items()
        }
        while True:
            formed = self._exchanged(parts)
            before = sum(map(len, parts.values()))
            parts = self._with_gain(groups, formed)
            if sum(map(len, parts.values())) == before:
                position = {number: at for at, number in enumerate(order)}
                every = (run for runs in formed.values() for run in runs)
                return sorted(every, key=lambda run: position[run.tasks[-1]])

    def _note_readers(self, number: int, group: tuple[Home, int]) -> None:
        """Note which groups read the result of a task of a group."""
        homes, readers = self.table.homes, self.readers[number]
        groups = [self.group[reader] for reader in readers]
        self.readers_here[number] = groups.count(group)
        elsewhere: set[Hashable] = {
            other
            for reader, other in zip(readers, groups, strict=True)
            if homes[reader] != group[0]
        }
        if number in self.gathered:
            self.pick_of[number] = frozenset({*elsewhere, CLIENT})
        elif number in self.kept:
            # it has a key of its own
            self.pick_of[number] = number
        else:
            self.pick_of[number] = frozenset(elsewhere) if elsewhere else None

    def _runs_of(self, group: Sequence[int]) -> list[Sequence[int]]:
        """Runs of one home and phase; none where threads would wait for each other too long.

        Tasks outside of runs stay single.
        """
        most, threads = self._most(group), self.limits.threads
        runs = self._cut(group, most)
        if threads == 1 or not runs:
            return runs
        # as many as can run at once without runs, up to the threads
        alone, bundled = self._units(group, ()), self._units(group, runs)
        width = min(threads, alone.width)
        if not self.unknown.isdisjoint(group):
            # a run that takes long should keep no other one waiting
            count = max(1, sum(self.weights[number] for number in group) // most)
            apart = self._cut_lanes(group, count, most)
            if apart and (lanes := self._units(group, apart)).width > bundled.width:
                runs, bundled = apart, lanes
        if bundled.width >= width:
            return runs
        apart = self._cut_lanes(group, _LANES * threads, most)
        if apart and self._units(group, apart).width >= width:
            return apart
        return runs if self._is_faster(group, bundled, alone) else []

    def _cut_lanes(self, group: Sequence[int], count: int, most: int) -> list[Sequence[int]]:
        """As :meth:`_cut`, each lane by itself."""
        lanes = self._lanes(group, count)
        if not lanes:
            return []
        runs = [run for lane in lanes[:-1] for run in self._cut(lane, most)]
        # the last lane has tasks from all of the order, which wait for all others anyway
        before = {number: self.place[number] for number in lanes[-1]}
        self.place |= dict.fromkeys(lanes[-1], self.place[group[-1]])
        runs += self._cut(lanes[-1], most)
        self.place |= before
        return runs

    def _lanes(self, group: Sequence[int], count: int) -> list[list[int]]:
        """The tasks of one home and phase, divided so that threads need not wait for each other.

        Runs of one lane may read each other, and no runs of other lanes: lanes are parts of the
        order, and in the last one are the tasks that read results of several others, directly or
        not.  There are none where such results take much memory, as they are all in memory then.
        """
        total, passed = max(1, sum(self.weights[number] for number in group)), 0
        lane_of: dict[int, int] = {}
        lanes: list[list[int]] = [[] for _ in range(count + 1)]
        waiting: set[int] = set()
        for number in group:
            reads = [read for read in self.table.reads[number] if read in lane_of]
            found = {lane_of[read] for read in reads}
            if not found:
                lane = min(passed * count // total, count - 1)
            else:
                lane = found.pop() if len(found) == 1 else count
            if lane == count:
                waiting.update(read for read in reads if lane_of[read] != count)
            lane_of[number] = lane
            lanes[lane].append(number)
            passed += self.weights[number]
        kept = sum(self.table.sizes[number] for number in waiting)
        return lanes if kept <= self.limits.work else []

    def _most(self, group: Sequence[int]) -> int:
        """Tasks of one run of a home and phase, as far as they count."""
        limits = self.limits
        total = sum(self.weights[number] for number in group)
        if not total:
            # cuts of results that no run may contain
            for number in group:
                self.weights[number] = self.table.counts[number]
            total = sum(self.weights[number] for number in group)
        # one task and the cuts of its result keep a thread as busy as that task
        per_thread = limits.per_thread
        if not self.unknown.isdisjoint(group):
            per_thread = max(per_thread, limits.per_thread_if_unknown)
        return max(1, min(limits.tasks, total // (per_thread * limits.threads)))

    def _cut(self, group: Sequence[int], most: int) -> list[Sequence[int]]:
        """Cut tasks of one home and phase into runs of at most so many tasks."""
        runs: list[Sequence[int]] = []
        start = 0
        while start < len(group):
            stop = self._stop(group, start, most)
            if stop - start > 1:
                runs.append(group[start:stop])
            start = stop
        return runs

    def _stop(self, group: Sequence[int], start: int, most: int) -> int:
        """Where the run that begins at `start` ends.

        There, a bundle, its picks and the bytes that are kept for later runs cost least per task.
        A run has at least a quarter of the tasks that it may have, unless it would exceed a limit
        in bytes.
        """
        table, limits = self.table, self.limits
        sizes, homes, group_of = table.sizes, table.homes, self.group
        home, first = homes[group[start]], self.place[group[start]]
        #: For results of the run that are in memory, the readers that have not run yet.
        unread: dict[int, int] = {}
        unread_here: dict[int, int] = {}
        inputs: set[int] = set()
        #: Bytes of the inputs, of the results in memory, and of those with readers in the group.
        received = live = crossing = 0
        #: The largest number of bytes of inputs of one task, and of results in memory.
        largest = peak = 0
        count = weight = 0
        #: The groups of tasks of other homes that read a result; and results with other keys.
        picks: set[Hashable] = set()
        #: The groups of tasks of other homes that are read, each of which has a pick for the run.
        parts: set[Hashable] = set()
        best: tuple[bool, float, int] | None = None
        end = start + 1
        for position in range(start, len(group)):
            number = group[position]
            size = sizes[number]
            count += table.counts[number]
            weight += self.weights[number]
            needed = 0
            for read in table.reads[number]:
                if read in unread:
                    continue
                needed += sizes[read]
                if read not in inputs:
                    inputs.add(read)
                    received += sizes[read]
                    if homes[read] != home:
                        parts.add(group_of[read])
            if needed > largest:
                largest = needed
            held = live + size + (table.working[number] if table.working else 0)
            if held > peak:
                peak = held
            if position > start and (
                weight > most
                or self.place[number] - first > limits.span * most
                or received + peak > limits.work
                or received > max(largest, limits.inputs)
            ):
                break
            for read in table.reads[number]:
                if read in unread:
                    unread[read] -= 1
                    if unread_here[read] == 1:
                        crossing -= sizes[read]
                    unread_here[read] -= 1
                    if not unread[read]:
                        live -= sizes[read]
            unread[number] = len(self.readers[number]) + (number in self.kept)
            unread_here[number] = self.readers_here[number]
            if unread[number]:
                live += size
            if unread_here[number]:
                crossing += size
            pick = self.pick_of[number]
            if pick is not None:
                picks.add(pick)
            if table.counts[number] == 0 and unread_here[number]:
                continue  # Dask runs it in one task with its reader
            if live > limits.results:
                continue
            short = 4 * weight < most and position + 1 < len(group)
            written = 1 if len(picks) == 1 and not crossing else 1 + len(picks)
            written += len(parts)
            rank = (short, (written * limits.task_bytes + crossing) / max(count, 1), -count)
            if best is None or rank <= best:
                best, end = rank, position + 1
        return end

    def _is_faster(self, group: Sequence[int], bundled: _Units, alone: _Units) -> bool:
        """Whether the runs of a group take less time than its tasks, with threads that wait.

        Functions are taken to run at the speed of memory, and tasks of small arrays take a worker
        longer than their functions, on one thread.
        """
        if not self.unknown.isdisjoint(group):
            return False
        sizes, reads, limits = self.table.sizes, self.table.reads, self.limits
        touched = sum(sizes[number] + sum(sizes[n] for n in reads[number]) for number in group)

        def cost(units: _Units) -> float:
            functions = _FUNCTION_BYTES * touched / min(limits.threads, units.width)
            return max(functions, limits.task_bytes * units.count)

        return cost(bundled) <= cost(alone)

    def _units(self, group: Sequence[int], runs: Sequence[Sequence[int]]) -> _Units:
        """The runs of a group, and its tasks in no run."""
        unit = {number: number for number in group}
        for at, run in enumerate(runs):
            unit |= dict.fromkeys(run, -1 - at)
        before: dict[int, set[int]] = {each: set() for each in unit.values()}
        for number, each in unit.items():
            before[each].update(unit[read] for read in self.table.reads[number] if read in unit)
            before[each].discard(each)
        #: Longest chain of units that ends with each.
        depth: dict[int, int] = {}
        for each in TopologicalSorter(before).static_order():
            depth[each] = 1 + max((depth[other] for other in before[each]), default=0)
        return _Units(len(depth), max(depth.values()))

    def _exchanged(
        self, parts: Mapping[tuple[Home, int], Sequence[Sequence[int]]]
    ) -> dict[tuple[Home, int], list[Run]]:
        """The runs, with what each returns."""
        #: The run of each task: a negative number, or the task itself if it is in no run.
        unit = list(range(len(self.readers)))
        at = 0
        for runs in parts.values():
            for run in runs:
                at -= 1
                for number in run:
                    unit[number] = at
        formed: dict[tuple[Home, int], list[Run]] = {}
        for group, runs in parts.items():
            formed[group] = []
            for run in runs:
                local = []
                picks: dict[Hashable, list[int]] = {}
                for number in run:
                    here = False
                    elsewhere: set[Hashable] = {CLIENT} if number in self.gathered else set()
                    for reader in self.readers[number]:
                        if unit[reader] == unit[number]:
                            continue
                        single = unit[reader] == reader
                        if self.table.homes[reader] == group[0] and not (
                            single and reader in self.loose
                        ):
                            here = True
                        else:
                            elsewhere.add(unit[reader])
                    if here:
                        local.append(number)
                    if number in self.kept and number not in self.gathered:
                        picks["kept", number] = [number]
                    elif elsewhere:
                        picks.setdefault(frozenset(elsewhere), []).append(number)
                formed[group].append(
                    Run(tuple(run), tuple(local), tuple(map(tuple, picks.values())))
                )
        return formed

    def _with_gain(
        self,
        groups: Mapping[tuple[Home, int], Sequence[int]],
        formed: Mapping[tuple[Home, int], Sequence[Run]],
    ) -> dict[tuple[Home, int], list[Sequence[int]]]:
        """The runs that reduce the number of tasks, of the groups that they reduce enough."""
        counts, saved = self.table.counts, self._saved_picks(formed)
        parts: dict[tuple[Home, int], list[Sequence[int]]] = {}
        for group, runs in formed.items():
            gains = [
                (sum(counts[n] for n in run.tasks) - run.count + saved[run.tasks[0]], run)
                for run in runs
            ]
            before = sum(counts[number] for number in groups[group])
            after = before - sum(gain for gain, _ in gains if gain > 0)
            if after <= self.limits.remaining * before:
                parts[group] = [run.tasks for gain, run in gains if gain > 0]
        return parts

    def _saved_picks(self, formed: Mapping[tuple[Home, int], Sequence[Run]]) -> Counter[int]:
        """By the first task of a run, the picks that other runs need less because of it."""
        every = [run for runs in formed.values() for run in runs]
        run_of = {number: run.tasks[0] for run in every for number in run.tasks}
        saved: Counter[int] = Counter()
        for run in every:
            for pick in run.picks:
                for reader, parts in self._parts_read(pick, run_of).items():
                    saved[reader] += parts - 1
        return saved

    def _parts_read(self, pick: Sequence[int], run_of: Mapping[int, int]) -> dict[int, int]:
        """By run that reads a pick, the picks that its tasks would need if they were in no run."""
        if len(pick) == 1:
            return {}
        parts: dict[int, set[frozenset[int]]] = {}
        for number in pick:
            readers: dict[int, set[int]] = {}
            for reader in self.readers[number]:
                if run_of.get(reader, run_of[number]) != run_of[number]:
                    readers.setdefault(run_of[reader], set()).add(reader)
            for other, inside in readers.items():
                parts.setdefault(other, set()).add(frozenset(inside))
        return {other: len(sets) for other, sets in parts.items()}
