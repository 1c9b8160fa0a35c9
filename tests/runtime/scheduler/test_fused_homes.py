"""Tasks that Dask has fused run where the simulation of a plan has them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from dask._task_spec import Task, TaskRef
from distributed import Client
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.ir import Sharding, Share
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.named_homes import NamedHomes
from dasktile.schedule.placement import MARK, Placement, encode

PLACED = encode(Placement((2,), Sharding((Share((0,), (1, 1)),))))

#: Names of layers, and the block of each: two with homes, an output without, one of the user.
PARTS = [
    (f"a{MARK}{PLACED}-{'f' * 32}", 0),
    (f"a{MARK}{PLACED}-{'f' * 32}", 1),
    (f"b{MARK}{PLACED}-{'e' * 32}", 1),
    (f"out{MARK}{'d' * 32}", 0),
    ("user-cc", 0),
]


def fused(chain: tuple[tuple[str, int], ...], number: int) -> Task:
    """A chain of tasks as one, with the key of the last and a number of its own."""
    keys = [(*part, number) for part in chain]
    tasks = [Task(keys[0], np.ones, 3)]
    for read, key in itertools.pairwise(keys):
        tasks.append(Task(key, np.negative, TaskRef(read)))
    return Task.fuse(*tasks, key=keys[-1])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_the_last_part_with_a_home_decides(c: Client, s: Any, a: Any, b: Any) -> None:
    await dasktile.enable(c)
    chains = [chain for length in (2, 3, 4) for chain in itertools.permutations(PARTS, length)]
    tasks = {task.key: task for task in map(fused, chains, itertools.count())}
    names = NamedHomes(BundleLimits((2,), {}, (), 8, 10**6))
    expected = {key: names.of_task(task, key) for key, task in tasks.items()}
    futures = c.get(tasks, list(tasks), sync=False)
    await c.gather(futures)
    homes = {key: s.tasks[key].worker_restrictions for key in tasks}
    by_place: dict[int, set[str]] = {}
    for key, place in expected.items():
        if place is None:
            assert not homes[key]
        else:
            [address] = homes[key] or [None]
            by_place.setdefault(place, set()).add(address)
    assert sorted(by_place) == [0, 1]
    assert all(len(addresses) == 1 for addresses in by_place.values())
    assert len(set.union(*by_place.values())) == 2
