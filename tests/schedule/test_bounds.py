"""Evictions are near the lower bound, also with prefetches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Sequence

import pytest

from dasktile.schedule.bounds import Step, transfer_bound
from tests.schedule.test_residency import INF, Worker

Sizes = dict[Hashable, int]


def made(steps: Sequence[Step], size: Callable[[tuple[Hashable, ...]], int]) -> Sizes:
    return {key: size(key) for step in steps for key in step.makes}


def k_means(tiles: int = 30, rounds: int = 5) -> tuple[list[Step], Sizes]:
    steps = [Step((), (("x", tile),)) for tile in range(tiles)]
    for number in range(rounds):
        centres = (("c", number - 1),) if number else ()
        parts = tuple(("p", number, tile) for tile in range(tiles))
        for tile in range(tiles):
            steps.append(Step((("x", tile), *centres), (parts[tile],)))
        steps.append(Step(parts, (("c", number),)))
    return steps, made(steps, lambda key: 100 if key[0] == "x" else 1)


def matmul(blocks: int = 6) -> tuple[list[Step], Sizes]:
    grid = list(itertools.product(range(blocks), repeat=2))
    steps = [Step((), ((name, *at),)) for name in "ab" for at in grid]
    for (i, j), k in itertools.product(grid, range(blocks)):
        before = (("p", i, j, k - 1),) if k else ()
        steps.append(Step((("a", i, k), ("b", k, j), *before), (("p", i, j, k),)))
    return steps, made(steps, lambda key: 10)


def anomalies(tiles: int = 40) -> tuple[list[Step], Sizes]:
    steps = []
    for tile in range(tiles):
        steps.append(Step((), (("x", tile),)))
        steps.append(Step((("x", tile),), (("s", tile),)))
    steps.append(Step(tuple(("s", tile) for tile in range(tiles)), (("m",),)))
    steps.extend(Step((("x", tile), ("m",)), (("y", tile),)) for tile in range(tiles))
    return steps, made(steps, lambda key: 10 if key[0] == "x" else 1)


def random_reads() -> tuple[list[Step], Sizes]:
    rng = random.Random(0)
    steps = [Step((), (("x", tile),)) for tile in range(50)]
    for number in range(300):
        some = [("x", tile) for tile in rng.sample(range(50), 2)]
        steps.append(Step(tuple(some), (("o", number),)))
    sizes = made(steps, lambda key: 2)
    return steps, {
        key: size if key[0] == "o" else rng.randint(5, 30) for key, size in sizes.items()
    }


TRACES = {"k-means": k_means, "matmul": matmul, "anomalies": anomalies, "random": random_reads}


def run(
    steps: Sequence[Step], sizes: Sizes, capacity: int, ahead: int, known: bool = True
) -> Worker:
    """Run tasks one after the other, with prefetches for the next `ahead` tasks."""
    worker = Worker(capacity, None)
    uses: dict[Hashable, list[int]] = {}
    for time, step in enumerate(steps):
        for key in step.reads:
            uses.setdefault(key, []).append(time)

    def following(key: Hashable, time: int) -> float | None:
        return next((use for use in uses.get(key, ()) if use > time), INF) if known else None

    for time, step in enumerate(steps):
        soon = steps[time + 1 : time + 1 + ahead]
        worker.do(worker.residency.set_upcoming([key for one in soon for key in one.reads]))
        worker.request(time, *step.reads, now=time)
        worker.settle()
        assert time in worker.ready
        for key in step.makes:
            worker.add(key, sizes[key], following(key, time))
        worker.do(worker.residency.expect({key: following(key, time) for key in step.reads}))
        worker.release(time)
        for key in step.reads:
            if uses[key][-1] == time:
                worker.do(worker.residency.remove(key))
        worker.settle()
    return worker


@pytest.mark.parametrize("part", (0.4, 0.6, 0.9))
@pytest.mark.parametrize("name", TRACES)
def test_reads_are_near_the_lower_bound(name: str, part: float) -> None:
    steps, sizes = TRACES[name]()
    inputs = sum(size for key, size in sizes.items() if key[0] in "abx")
    capacity = int(part * inputs)
    bound = transfer_bound(steps, sizes, capacity, write_cost=0).read
    tile = max(sizes.values())
    on_demand = run(steps, sizes, capacity, 0)
    # for a small bound, a few tiles are a large part
    assert bound - 1 <= on_demand.read <= max(1.10 * bound, bound + 5 * tile)
    assert run(steps, sizes, capacity, 1).read <= max(1.15 * bound, bound + 5 * tile)
    both = transfer_bound(steps, sizes, capacity)
    assert both.read + both.written <= on_demand.read + on_demand.written + 1
    least_recent = run(steps, sizes, capacity, 0, known=False)
    assert on_demand.read < least_recent.read


def test_bounds_of_examples_solved_by_hand() -> None:
    a, b, c = "abc"
    steps = [Step((), (a,)), Step((), (b,)), Step((), (c,)), Step((a,)), Step((b,)), Step((c,))]
    sizes: Sizes = dict.fromkeys((a, b, c), 10)
    assert (transfer_bound(steps, sizes, 30).read, transfer_bound(steps, sizes, 30).written) == (
        0,
        0,
    )
    two_tiles = transfer_bound(steps, sizes, 20)
    assert (two_tiles.read, two_tiles.written) == (10, 10)
    assert transfer_bound(steps, sizes, 20, below=[a, b, c]).written == 0
    assert transfer_bound(steps, sizes, 10).read == 30
    assert transfer_bound([Step((a,)), Step((a,))], sizes, 5).read == 10
    assert transfer_bound([], sizes, 5).read == 0
