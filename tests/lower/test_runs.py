"""Which tasks one bundle runs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import pytest

from dasktile.lower.runs import CLIENT, Run, RunLimits, form_runs
from dasktile.lower.task_table import TaskTable, task_phases


def table(reads: list[list[int]], homes: Any = 0, size: int = 1, **more: Any) -> TaskTable:
    """Tasks of one home, or of the homes of a list."""
    count = len(reads)
    homes = homes if isinstance(homes, list) else [homes] * count
    options = {"sizes": [size] * count, "counts": [1] * count} | more
    return TaskTable(reads, homes, **options)


def loose(most: int = 100, **more: Any) -> RunLimits:
    """Limits that make bundles of small graphs."""
    return RunLimits(most, **{"per_thread": 1, "remaining": 1.0, "task_bytes": 1.0, **more})


def sums(count: int, parts: int = 4) -> list[list[int]]:
    """Sums of `parts` inputs each, and a sum of the sums."""
    reads: list[list[int]] = []
    last = []
    for _ in range(count):
        start = len(reads)
        reads += [[] for _ in range(parts)]
        last.append(len(reads))
        reads.append(list(range(start, start + parts)))
    return [*reads, last]


def random_table(seed: int) -> TaskTable:
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    reads = [
        sorted(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2, 3]))))
        for number in range(count)
    ]
    homes = [rng.choice([0, 0, 0, 1, 2, None]) for _ in range(count)]
    sizes = [rng.randint(0, 9) for _ in range(count)]
    # sources and all tasks that they depend on
    sources: set[int] = set()
    if rng.random() < 0.5:
        stack = [rng.randrange(count)]
        while stack:
            number = stack.pop()
            homes[number] = None
            sources.add(number)
            stack.extend(reads[number])
    counts = [int(rng.random() < 0.9) for _ in range(count)]
    kept = {number for number in range(count) if rng.random() < 0.1}
    gathered = {number for number in kept if rng.random() < 0.5}
    return TaskTable(reads, homes, sizes, counts, kept, sources, gathered=gathered)


def units(tasks: TaskTable, runs: list[Run]) -> list[int]:
    """The run of every task, as a negative number; a task of no run is itself."""
    unit = list(range(len(tasks.reads)))
    for at, run in enumerate(runs):
        for number in run.tasks:
            unit[number] = -1 - at
    return unit


def tasks_left(tasks: TaskTable, runs: list[Run]) -> int:
    inside = {number for run in runs for number in run.tasks}
    single = (count for number, count in enumerate(tasks.counts) if number not in inside)
    return sum(run.count for run in runs) + sum(single)


@pytest.mark.parametrize("seed", range(200))
def test_runs_of_any_graph_are_no_cycle_and_fewer_tasks(seed: int) -> None:
    tasks = random_table(seed)
    most = random.Random(seed).randint(2, 12)
    limits = loose(most, work=25, results=12, threads=1 + seed % 3)
    runs = form_runs(tasks, limits)
    unit = units(tasks, runs)
    graph: dict[int, set[int]] = {}
    for number, reads in enumerate(tasks.reads):
        graph.setdefault(unit[number], set()).update(
            unit[read] for read in reads if unit[read] != unit[number]
        )
    list(TopologicalSorter(graph).static_order())  # raises if there is a cycle
    assert tasks_left(tasks, runs) <= sum(tasks.counts) - len(runs)
    phases = task_phases(tasks)
    for run in runs:
        assert len({(tasks.homes[number], phases[number]) for number in run.tasks}) == 1
        assert tasks.homes[run.tasks[0]] is not None
        assert sum(tasks.counts[number] for number in run.tasks) <= most
        position = {number: at for at, number in enumerate(run.tasks)}
        assert all(
            position[read] < position[number]
            for number in run.tasks
            for read in tasks.reads[number]
            if read in position
        )
        assert sum(tasks.sizes[number] for number in run.returned) <= 12


@pytest.mark.parametrize("seed", range(100))
def test_each_reader_elsewhere_has_one_pick_with_what_it_reads(seed: int) -> None:
    tasks = random_table(seed)
    runs = form_runs(tasks, loose(8))
    unit = units(tasks, runs)
    for at, run in enumerate(runs):
        picks = [number for pick in run.picks for number in pick]
        assert len(set(picks)) == len(picks)
        for number in run.tasks:
            readers = [n for n, reads in enumerate(tasks.reads) if number in reads]
            outside = [n for n in readers if unit[n] != -1 - at]
            home = tasks.homes[number]
            assert (number in run.local) == any(tasks.homes[n] == home for n in outside)
            elsewhere: set[Any] = {unit[n] for n in outside if tasks.homes[n] != home}
            assert (number in picks) == bool(elsewhere or number in tasks.kept)
            if number in tasks.gathered:
                elsewhere.add(CLIENT)
            same = next((pick for pick in run.picks if number in pick), ())
            for other in same:
                theirs: set[Any] = {
                    unit[n]
                    for n, reads in enumerate(tasks.reads)
                    if other in reads and tasks.homes[n] != home
                }
                if other in tasks.gathered:
                    theirs.add(CLIENT)
                assert theirs == elsewhere or same == (number,)


def test_the_phase_is_the_number_of_changes_of_home() -> None:
    #        0 at a, 1 at b, 2 at a reads both, 3 at a reads 0, 4 at a reads 2 and 3
    reads: list[list[int]] = [[], [], [0, 1], [0], [2, 3]]
    homes = ["a", "b", "a", "a", "a"]
    assert task_phases(table(reads, homes, kept=[3])) == [0, 0, 1, 0, 1]
    # a task without a home may be anywhere; data is there from the start
    tasks = table([[], [0], [1], [2]], ["a", None, "a", "a"])
    assert task_phases(tasks) == [0, 1, 2, 2]
    assert task_phases(table([[], [0]], [None, "a"])) == [0, 0]


def test_a_task_that_frees_no_memory_waits_for_its_readers() -> None:
    # 0 and 1 at a; 2 at b reads 1; 3 at a reads 0; 4 at a reads 3 and 2
    reads: list[list[int]] = [[], [], [1], [0], [3, 2]]
    homes = ["a", "a", "b", "a", "a"]
    assert task_phases(table(reads, homes, sizes=[9, 1, 1, 9, 9])) == [2, 0, 1, 2, 2]
    # a smaller result is better kept than its input
    assert task_phases(table(reads, homes, sizes=[9, 1, 1, 2, 9])) == [0, 0, 1, 0, 2]
    # unless it has another reader at another worker, or a key of its own
    reads.append([3])
    assert task_phases(table(reads, [*homes, "b"], sizes=[9, 1, 1, 9, 9, 1]))[3] == 0
    kept = table(reads[:5], homes, sizes=[9, 1, 1, 9, 9], kept=[3])
    assert task_phases(kept)[3] == 0


def test_a_cut_runs_with_what_it_is_cut_from() -> None:
    # a pair, of which one part is sent to another worker, and the other one waits for an answer
    reads = [[], [0], [0], [1], [2, 3]]
    homes, sizes = [0, 0, 0, 1, 0], [10, 1, 9, 1, 1]
    waits = table(reads, homes, sizes=sizes)
    assert task_phases(waits) == [0, 0, 2, 1, 2]
    cut = table(reads, homes, sizes=sizes, cuts={1, 2})
    assert task_phases(cut) == [0, 0, 0, 1, 2]


def test_a_run_does_not_wait_for_tasks_that_run_late() -> None:
    # ten groups of eight tasks at a, each with a task at b that one at a reads; a sum of all
    reads: list[list[int]] = []
    homes: list[str] = []
    for _ in range(10):
        start = len(reads)
        reads += [[] for _ in range(8)]
        reads.append(list(range(start, start + 8)))
        reads.append([start + 8])
        homes += ["a"] * 8 + ["b", "a"]
    tasks = table([*reads, list(range(9, 100, 10))], [*homes, "a"])
    late = set(range(9, 100, 10))
    most = {
        span: max(
            len(late.intersection(run.tasks)) for run in form_runs(tasks, loose(2, span=span))
        )
        for span in (4, 1000)
    }
    assert most == {4: 1, 1000: 2}


def test_the_phase_of_sources_is_zero() -> None:
    reads: list[list[int]] = [[], [0], [1], [2]]
    homes = ["a", None, None, "a"]
    assert task_phases(table(reads, homes)) == [0, 1, 2, 3]
    assert task_phases(table(reads, [None, None, None, "a"], sources=[0, 1, 2])) == [0, 0, 0, 1]


def test_runs_end_where_the_least_bytes_are_kept() -> None:
    tasks = table(sums(6), kept=[30])
    runs = form_runs(tasks, loose(9))
    # a run is one or more whole sums
    assert [len(run.returned) for run in runs] == [1] * len(runs)
    assert Counter(len(run.tasks) for run in runs) == {5: 5, 6: 1}


def test_a_run_reads_a_block_for_all_sums_that_need_it() -> None:
    # a term of the first sum is made of each block, and one of the second sum of the block again
    # and of a part of the first term; terms are added up one by one
    reads: list[list[int]] = []
    sizes: list[int] = []
    first: list[int] = []
    second: list[int] = []
    for _ in range(12):
        block = len(reads)
        reads += [[], [block], [block + 1, *first], [block + 1], [block]]
        first = [block + 2]
        reads.append([block + 3, block + 4, *second])
        second = [block + 5]
        sizes += [100, 1, 1, 1, 100, 1]
    runs = form_runs(table(reads, sizes=sizes), loose(16))
    assert len(runs) > 3
    assert max(sizes[number] for run in runs for number in run.returned) == 1


def test_a_run_has_as_few_picks_as_it_can() -> None:
    # pairs of a task and its reader; each of three other homes reads eight of them
    reads: list[list[int]] = []
    for _ in range(24):
        reads += [[], [len(reads)]]
    reads += [[16 * home + 2 * pair + 1 for pair in range(8)] for home in range(3)]
    homes = ["a"] * 48 + ["b", "c", "d"]
    runs = form_runs(table(reads, homes), loose(20))
    assert [len(run.tasks) for run in runs] == [16, 16, 16]
    assert all(run.whole for run in runs)


def test_larger_bytes_make_shorter_runs() -> None:
    reads: list[list[int]] = [[] for _ in range(64)]
    reads.append(list(range(64)))
    wide = form_runs(table(reads), loose(16))
    assert len(wide) == 4
    short = form_runs(table(reads), loose(16, results=4))
    assert max(len(run.returned) for run in short) == 4
    assert len(short) > 10
    assert max(len(run.tasks) for run in form_runs(table(reads), loose(16, work=6))) <= 6
    assert not form_runs(table(reads, size=10), loose(16, work=15))


def test_inputs_of_a_run_are_few_bytes_or_those_of_one_task() -> None:
    # each task reads three results of another home
    count = 12
    reads = [[] for _ in range(3 * count)] + [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(count)]
    tasks = table([*reads, list(range(3 * count, 4 * count))], ["a"] * 3 * count + ["b"] * 13)
    far = [run for run in form_runs(tasks, loose(12, inputs=7)) if run.tasks[0] >= 3 * count]
    assert far
    assert max(sum(len(tasks.reads[n]) for n in run.tasks if n < 4 * count) for run in far) <= 7
    # but one task reads as much as it reads
    assert form_runs(table([[], [], [0, 1], [2]], ["a", "a", "b", "b"]), loose(4, inputs=1))


def test_every_thread_has_several_runs() -> None:
    for threads in (1, 2, 4):
        runs = form_runs(table(sums(12)), RunLimits(100, threads=threads, task_bytes=1.0))
        assert len(runs) >= 3 * threads
    # 13 tasks cannot be three runs for each of eight threads
    assert not form_runs(table(sums(3, 3)), RunLimits(100, threads=8))


def test_there_are_more_runs_where_it_is_unknown_how_long_a_task_takes() -> None:
    reads = [*sums(12), *([] for _ in range(48)), list(range(61, 109))]
    homes = ["a"] * 61 + ["b"] * 49
    limits = loose(100, per_thread=2, per_thread_if_unknown=6)
    runs = form_runs(table(reads, homes, unknown={70}), limits)
    assert sum(homes[run.tasks[0]] == "a" for run in runs) <= 4
    assert sum(homes[run.tasks[0]] == "b" for run in runs) >= 6
    assert form_runs(table(reads, homes), limits) == form_runs(
        table(reads, homes, unknown={70}), replace(limits, per_thread_if_unknown=0)
    )


def stencil(width: int, steps: int) -> list[list[int]]:
    """Each of some columns reads its neighbours of the step before."""
    reads: list[list[int]] = []
    for step in range(steps):
        for column in range(width):
            near = [c for c in (column - 1, column, column + 1) if 0 <= c < width]
            reads.append([(step - 1) * width + c for c in near] if step else [])
    return reads


def width_of(tasks: TaskTable, runs: list[Run]) -> float:
    """Runs, and tasks in no run, over the most of which each reads another."""
    unit = units(tasks, runs)
    graph: dict[int, set[int]] = {each: set() for each in unit}
    for number, reads in enumerate(tasks.reads):
        graph[unit[number]] |= {unit[read] for read in reads} - {unit[number]}
    depth: dict[int, int] = {}
    for each in TopologicalSorter(graph).static_order():  # raises if there is a cycle
        depth[each] = 1 + max((depth[other] for other in graph[each]), default=0)
    return len(depth) / max(depth.values())


def test_runs_of_large_arrays_that_wait_for_each_other_keep_no_thread_busy() -> None:
    tasks = table(stencil(8, 8), kept=range(56, 64), size=100)
    assert form_runs(tasks, loose(16))
    assert width_of(tasks, form_runs(tasks, loose(16, threads=4))) >= 4


def test_runs_of_small_arrays_may_wait_for_each_other() -> None:
    """Threads wait, but a worker takes longer for a task than for its function."""
    tasks = table(stencil(8, 8), kept=range(56, 64))
    runs = form_runs(tasks, loose(16, threads=4))
    assert runs
    assert width_of(tasks, runs) < 4
    # functions of unknown duration may take any time
    some = form_runs(replace(tasks, unknown={0}), loose(16, threads=4))
    assert width_of(tasks, some) >= 4


def test_runs_of_unknown_duration_do_not_wait_for_each_other() -> None:
    """A sum so far, to which one term after the other is added."""
    reads: list[list[int]] = [[]]
    for number in range(1, 80, 2):
        reads += [[], [number - 1, number]]
    inside = {number for number, each in enumerate(reads) if not each}
    tasks, limits = table(reads, unknown=inside), loose(6, threads=2)

    def waiting(runs: list[Run]) -> list[Run]:
        return [
            run
            for run in runs
            if inside.intersection(run.tasks)
            and any(read not in run.tasks for n in run.tasks for read in tasks.reads[n])
        ]

    # but for the first ones, whose terms are added at once
    assert len(waiting(form_runs(tasks, limits))) <= 1
    assert len(waiting(form_runs(replace(tasks, unknown=()), limits))) > 8


@pytest.mark.parametrize("threads", [2, 4])
def test_parts_of_a_group_run_on_threads_of_their_own(threads: int) -> None:
    """Each part of a wide stencil is a chain of runs, and what several parts make comes last."""
    tasks = table(stencil(96, 2), kept=range(96, 192), size=100)
    runs = form_runs(tasks, loose(12, threads=threads))
    assert len(runs) >= 8
    assert sum(len(run.tasks) for run in runs) > 0.9 * 192
    assert width_of(tasks, runs) >= threads


def test_a_group_with_little_gain_is_unchanged() -> None:
    # sixteen pairs, all of which must have keys of their own: nothing is gained
    reads = [[] if number % 2 == 0 else [number - 1] for number in range(32)]
    assert not form_runs(table(reads, kept=range(32)), loose(8))
    # of 32 tasks, 16 bundles remain, which cost less than 4 bundles with 16 picks
    odd = range(1, 32, 2)
    assert len(form_runs(table(reads, kept=odd), loose(8, remaining=0.5))) == 16
    assert not form_runs(table(reads, kept=odd), loose(8, remaining=0.49))


def test_tasks_that_dask_fuses_count_once_with_their_reader() -> None:
    chains = [[] if number % 4 == 0 else [number - 1] for number in range(64)]
    counts = [int(number % 4 == 3) for number in range(64)]
    runs = form_runs(table(chains, kept=range(3, 64, 4), counts=counts), loose(4))
    assert not runs  # one bundle and four picks instead of four tasks
    reads = [*chains, list(range(3, 64, 4))]
    runs = form_runs(table(reads, counts=[*counts, 1]), loose(4))
    assert runs
    # no run ends inside of a chain
    assert all(sum(counts[n] for n in run.tasks if n < 64) <= 4 for run in runs)
    assert all(n % 4 == 3 for run in runs for n in run.returned if n < 64)


def test_slices_follow_the_tile_that_they_are_cut_from() -> None:
    """Each of four tiles is cut into four slices; each join reads a slice of every tile."""
    reads: list[list[int]] = []
    sizes = []
    for _ in range(4):
        tile = len(reads)
        reads += [[], [tile], [tile], [tile], [tile]]
        sizes += [8, 2, 2, 2, 2]
    joins = [[5 * tile + 1 + part for tile in range(4)] for part in range(4)]
    tasks = table([*reads, *joins], sizes=[*sizes, 8, 8, 8, 8])
    runs = form_runs(tasks, loose(10))
    # no tile is returned, only slices; joins run as soon as they can after the last tile
    assert all(number % 5 for run in runs for number in run.returned if number < 15)
    assert [number for run in runs for number in run.tasks][:15] == list(range(15))


def test_tasks_that_may_run_elsewhere_read_picks() -> None:
    tasks = table([[], [], [0, 1], [], [], [3, 4], [2, 5]], ["a"] * 7, kept=[6])
    [run] = form_runs(tasks, loose(6))
    assert run.local
    assert not run.picks
    tasks = table([[], [], [0, 1], [], [], [3, 4], [2, 5]], ["a"] * 7, kept=[6], loose=[6])
    [run] = form_runs(tasks, loose(6))
    assert not run.local
    assert run.whole
    assert [set(pick) for pick in run.picks] == [{2, 5}]


def test_tasks_that_cut_a_result_do_not_fill_a_run() -> None:
    # six results, cut into four parts each, for four readers elsewhere
    reads: list[list[int]] = []
    cuts = []
    for _ in range(6):
        root = len(reads)
        reads += [[], *([root] for _ in range(4))]
        cuts += range(root + 1, root + 5)
    readers = [[5 * root + 1 + part for root in range(6)] for part in range(4)]
    homes = [0] * len(reads) + [1, 2, 3, 4]
    tasks = table(reads + readers, homes)
    assert max(len(run.tasks) for run in form_runs(tasks, loose(3))) <= 3
    whole = form_runs(replace(tasks, cuts=cuts), loose(3))
    assert sum(len(run.tasks) for run in whole) == 30
    assert [sum(number % 5 == 0 for number in run.tasks) for run in whole] == [3, 3]


def test_blocks_with_keys_of_their_own_are_joined_in_runs_where_fewer_parts_are_sent() -> None:
    """Two results at each of two homes are cut for twelve joins, six at each home."""
    reads: list[list[int]] = []
    homes: list[str] = []
    cuts: list[int] = []
    roots = []
    for home in "aabb":
        roots.append(len(reads))
        reads += [[], *([roots[-1]] for _ in range(12))]
        cuts += range(roots[-1] + 1, roots[-1] + 13)
        homes += [home] * 13
    joins = range(len(reads), len(reads) + 12)
    reads += [[root + 1 + part for root in roots] for part in range(12)]
    homes += ["a"] * 6 + ["b"] * 6
    sizes = [12 if number in roots else 1 for number in range(joins[0])] + [4] * 12
    tasks = table(reads, homes, cuts=cuts, kept=joins, sizes=sizes)
    runs = form_runs(tasks, RunLimits(32, per_thread=3, remaining=0.75, task_bytes=1.0))
    # each result is cut by the task that makes it
    assert {run.tasks[0] for run in runs} >= set(roots)
    # three runs of two joins a home, which get a part of each result of the other home
    joined = [run for run in runs if run.tasks[0] in joins]
    assert [len(run.tasks) for run in joined] == [2] * 6
    assert all(len(run.picks) == 3 for run in runs if run.tasks[0] in roots)
