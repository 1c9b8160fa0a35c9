"""Simulated runs: memory of every worker, bytes received and seconds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.schedule import peaks
from dasktile.schedule.peaks import Speeds, simulate
from dasktile.schedule.placed_tasks import PlacedTasks

#: Speeds at which only tasks take time: a second each.
STEPS = Speeds(task=1.0, scheduler=0.0, memory=float("inf"), network=float("inf"), variation=0.0)


def placed(reads: list[list[int]], homes: list[int | None], size: int = 1) -> PlacedTasks:
    count = len(reads)
    return PlacedTasks(reads, [size] * count, list(map(float, range(count))), homes)


def test_a_chain_holds_two_results() -> None:
    reads = [[number - 1] if number else [] for number in range(5)]
    run = simulate(placed(reads, [0] * 5, size=10), 1, speeds=STEPS)
    assert run.peaks == (20,)
    assert (run.moved, run.seconds) == (0, 5.0)


def test_a_result_is_on_both_workers_until_its_last_reader_has_run() -> None:
    # 1 at worker 1 reads 0 of worker 0; 2 reads 1; 3 at worker 0 reads 0, after three others
    reads = [[], [0], [1], [0], [], [], []]
    tasks = placed(reads, [0, 1, 1, 0, 0, 0, 0], size=10)
    tasks = replace(tasks, priorities=[0.0, 1.0, 2.0, 9.0, 3.0, 4.0, 5.0])
    run = simulate(tasks, 2, speeds=STEPS)
    assert run.moved == 10
    # worker 1 has the copy of 0, and 1 and 2
    assert run.peaks[1] == 30


def test_results_of_outputs_stay_and_data_of_the_graph_is_free() -> None:
    tasks = replace(placed([[], [0], [0]], [None, 0, 0], size=10), kept={1, 2}, data={0})
    run = simulate(tasks, 1, speeds=STEPS)
    assert (run.peaks, run.seconds) == ((20,), 2.0)


def test_memory_of_a_running_task_is_released() -> None:
    tasks = replace(placed([[], [0]], [0, 0]), working=[7, 0])
    run = simulate(tasks, 1, speeds=STEPS)
    assert (run.peaks, run.results, run.task) == ((8,), (2,), 8)


def test_results_in_memory_are_read_where_they_are() -> None:
    # 0 is on worker 1, 1 on worker 0; 2 reads both, 3 the second
    tasks = replace(placed([[], [], [0, 1], [1]], [None, None, 1, 0]), there={0: 1, 1: 0})
    tasks = replace(tasks, sizes=[10, 4, 1, 1])
    run = simulate(tasks, 2, speeds=STEPS)
    assert (run.moved, run.seconds) == (4, 1.0)
    assert run.peaks == (1, 5)


def test_a_worker_is_sent_few_root_tasks() -> None:
    # sums of two roots each: with all roots in memory first, the peak would be 20
    reads: list[list[int]] = []
    for number in range(10):
        reads += [[], [], [3 * number, 3 * number + 1]]
    run = simulate(placed(reads, [0] * 30, size=1), 1, speeds=STEPS)
    assert run.peaks[0] <= 5


def test_tasks_of_any_worker_run_where_their_inputs_are() -> None:
    reads: list[list[int]] = [[] for _ in range(8)] + [[number] for number in range(8)]
    run = simulate(placed(reads, [None] * 16), 4, speeds=STEPS)
    assert (run.moved, run.seconds) == (0, 4.0)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_tasks_that_read_what_all_workers_have_run_on_all_of_them(length: int) -> None:
    """Of many workers with the result, a task looks at some: others look at the others.

    Each of the tasks is the first of a chain, so that their numbers have a stride.
    """
    workers = 400
    reads: list[list[int]] = [[], *([[0]] * workers)]
    for _ in range(2 * workers):
        reads.append([0])
        reads += [[len(reads) + at] for at in range(-1, length - 2)]
    homes: list[int | None] = [0, *range(workers)]
    homes += [None] * (len(reads) - len(homes))
    run = simulate(placed(reads, homes), workers, speeds=STEPS)
    assert run.moved == workers - 1
    # one task makes the result, one reads it on each worker, and two chains are even
    assert run.seconds <= 2 * (2 + 2 * length)


@pytest.mark.parametrize("seed", range(30))
def test_limits_of_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    count, workers = rng.randint(1, 60), rng.randint(1, 4)
    reads = [sorted(rng.sample(range(n), min(n, rng.choice([0, 1, 2])))) for n in range(count)]
    sizes = [rng.randint(0, 9) for _ in range(count)]
    homes = [rng.choice([None, *range(workers)]) for _ in range(count)]
    priorities = [float(number) for number in range(count)]
    tasks = PlacedTasks(reads, sizes, priorities, homes)
    run = simulate(tasks, workers, threads=rng.randint(1, 3), speeds=STEPS)
    assert run.seconds >= count / (3 * workers)
    # every worker receives a result at most once
    assert run.moved <= sum(sizes) * (workers - 1)
    largest = max(
        size + sum(sizes[r] for r in read) for size, read in zip(sizes, reads, strict=True)
    )
    assert largest <= max(run.peaks) <= sum(sizes)
    one = simulate(replace(tasks, homes=[0] * count), 1, speeds=STEPS)
    assert (one.moved, one.seconds) == (0, float(count))


def test_an_alias_is_in_the_memory_of_its_target() -> None:
    sizes = [8, 8, 1]
    chain = PlacedTasks([[], [0], [1]], sizes, [0, 1, 2], [0, 0, 0], aliases=[1])
    assert simulate(chain, 1, 1, STEPS).peaks == (9,)
    # the target is released first, and the alias later
    both = PlacedTasks([[], [0], [0], [1, 2]], [8, 8, 1, 1], [0, 1, 2, 3], [0] * 4, aliases=[1])
    assert simulate(both, 1, 1, STEPS).peaks == (10,)
    # another worker receives it
    sent = PlacedTasks([[], [0], [1]], sizes, [0, 1, 2], [0, 0, 1], aliases=[1])
    run = simulate(sent, 2, 1, STEPS)
    assert (run.peaks, run.moved) == ((8, 9), 8)
    kept = PlacedTasks([[], [0]], [8, 8], [0, 1], [0, 0], kept=[0, 1], aliases=[1])
    assert simulate(kept, 1, 1, STEPS).peaks == (8,)


def test_the_time_of_a_part_does_not_depend_on_its_bytes() -> None:
    speeds = replace(STEPS, memory=10.0)
    tasks = placed([[], [0]], [0, 0], size=10)
    # a second and another one for the bytes of each result, and of what is read
    assert simulate(tasks, 1, speeds=speeds).seconds == 5.0
    parts = replace(tasks, parts={1})
    run = simulate(parts, 1, speeds=speeds)
    assert run.seconds == 3.0
    assert simulate(tasks, 1, speeds=speeds).peaks == (20,)
    assert run.peaks == (10,)


def test_parts_are_in_the_memory_of_what_they_are_picked_from() -> None:
    # two parts of a result of 8 bytes; the first one is released before the last reader of all
    reads, sizes = [[], [0], [0], [1], [2, 3]], [8, 3, 5, 1, 1]
    tasks = PlacedTasks(reads, sizes, list(range(5)), [0] * 5, parts=[1, 2])
    run = simulate(tasks, 1, 1, STEPS)
    # the result, then the parts alone, then the second part and the sums
    assert run.peaks == (9,)
    # a part outlives the rest: of the large result only that part is in memory
    reads, sizes = [[], [0], [0], [2], [1, 3]], [8, 1, 7, 0, 6]
    tasks = PlacedTasks(reads, sizes, list(range(5)), [0] * 5, parts=[1, 2])
    assert simulate(tasks, 1, 1, STEPS).peaks == (8,)
    # the worker of a reader receives the part alone
    tasks = PlacedTasks([[], [0], [1]], [8, 3, 1], [0, 1, 2], [0, 0, 1], parts=[1])
    run = simulate(tasks, 2, 1, STEPS)
    assert (run.peaks, run.moved) == ((8, 4), 3)


@st.composite
def graphs(draw: st.DrawFn) -> PlacedTasks:
    """Tasks on three workers, some of which share the memory of what they read."""
    count = draw(st.integers(1, 14))
    reads = [
        sorted(draw(st.sets(st.integers(0, at - 1), max_size=3))) if at else []
        for at in range(count)
    ]
    alone = [at for at in range(count) if len(reads[at]) == 1]
    kinds = [draw(st.sampled_from(["", "alias", "part"])) for _ in alone]
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    #: Of each result, the one whose memory it is in, and of each of these, what no part is in.
    owner, rest = list(range(count)), list(sizes)
    for at, kind in zip(alone, kinds, strict=True):
        source = reads[at][0]
        if kind == "alias":
            # an alias is as large as its target
            sizes[at], owner[at] = sizes[source], owner[source]
        elif kind == "part":
            sizes[at] = min(sizes[at], rest[owner[source]])
            rest[owner[source]] -= sizes[at]
        rest[at] = sizes[at]
    return PlacedTasks(
        reads,
        sizes,
        list(range(count)),
        draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=count, max_size=count)),
        kept=draw(st.sets(st.integers(0, count - 1))) if draw(st.booleans()) else (),
        aliases=[at for at, kind in zip(alone, kinds, strict=True) if kind == "alias"],
        parts=[at for at, kind in zip(alone, kinds, strict=True) if kind == "part"],
    )


@given(graphs(), st.integers(1, 2))
@settings(deadline=None, max_examples=300)
def test_memory_is_released_exactly_once(tasks: PlacedTasks, threads: int) -> None:
    least = []

    class Watched(peaks._Simulation):
        def _release(self, number: int) -> None:
            super()._release(number)
            least.append(min(worker.memory for worker in self.workers))

    simulation = Watched(tasks, 3, threads, STEPS)
    simulation.run()
    assert min(least, default=0) >= 0
    left = sum(worker.memory for worker in simulation.workers)
    kept = [tasks.sizes[at] * len(simulation.there[at]) for at in tasks.kept]
    # kept results may share memory
    assert max(tasks.sizes[at] for at in tasks.kept) <= left if kept else left == 0
    assert left <= sum(kept)


def test_tasks_of_a_family_run_on_one_worker() -> None:
    # sums of four neighbours, which no worker has alone if the roots are dealt out
    reads = [[] for _ in range(16)] + [[4 * at + part for part in range(4)] for at in range(4)]
    tasks = placed(reads, [None] * 20, size=10)
    families = [list(range(4 * at, 4 * at + 4)) for at in range(4)]
    dealt, grouped = (
        simulate(each, 2, speeds=STEPS) for each in (tasks, replace(tasks, families=families))
    )
    assert dealt.moved > 0 == grouped.moved
    for family in families:
        assert len({grouped.ran[task] for task in family}) == 1
    assert {grouped.ran[task] for task in range(16)} == {0, 1}
    assert grouped.seconds <= dealt.seconds


def test_an_idle_worker_takes_half_of_a_long_family() -> None:
    tasks = replace(placed([[]] * 16, [None] * 16), families=[list(range(16))])
    run = simulate(tasks, 2, speeds=STEPS)
    assert run.seconds < 10


def test_a_run_has_the_workers_of_tasks() -> None:
    tasks = replace(placed([[], [0], [0]], [None, 0, 1]), data={0})
    assert simulate(tasks, 2, speeds=STEPS).ran == (-1, 0, 1)
