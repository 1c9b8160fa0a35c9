"""Plans for the workers of several hosts: most bytes stay within a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import wait
from distributed.comm import get_address_host
from distributed.utils_test import gen_cluster

import dasktile
from dasktile import api, choice, planning, templates
from dasktile._compat.dask import DataNode
from dasktile.cluster.calibration import _by_host, _far_apart, _neighbours
from dasktile.cluster.target import Machine
from dasktile.schedule.placement import decode

MB = 10**6

Expression = Callable[[], da.Array]


def machine(hosts: int, workers: int) -> Machine:
    """Workers on which tasks run where they are planned."""
    order = tuple(f"tcp://10.0.0.{host}:{1 + at}" for host in range(hosts) for at in range(workers))
    return Machine(len(order), order=order, who_has=lambda blocks: {}, room=2**31)


def random(rows: int, columns: int, chunk: int, seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random((rows, columns), chunks=chunk)


def tall(chunk: int = 1000) -> da.Array:
    return random(4 * chunk, 2 * chunk, chunk) @ random(2 * chunk, 16 * chunk, chunk)


def square() -> da.Array:
    return random(8000, 8000, 1000) @ random(8000, 8000, 1000, seed=1)


def transposed() -> da.Array:
    x = random(8000, 8000, 1000)
    return (x + x.T).sum(axis=0)


#: Bytes between hosts over those with the axes in their usual order, where that is not the best.
SHARES = {
    (tall, 2, 4): 0.5,
    (tall, 4, 2): 0.52,
    (square, 2, 8): 0.52,
    (square, 4, 4): 0.67,
}


def explained(array: da.Array, machine: Machine) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "machine", lambda *_: machine)
        return dasktile.explain(array)


@pytest.mark.parametrize("build", [tall, square, transposed])
@pytest.mark.parametrize("hosts, workers", [(2, 4), (4, 2), (3, 4), (2, 8), (4, 4), (2, 6)])
def test_the_order_of_the_axes_saves_bytes_between_hosts(
    build: Expression, hosts: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = machine(hosts, workers)
    plan = explained(build(), target)
    templates.forget()
    monkeypatch.setattr(choice, "along_hosts", lambda request, plan: plan)
    usual = explained(build(), target)
    assert plan.bytes_after == usual.bytes_after
    assert plan.received_after == usual.received_after
    if usual.changed:
        share = plan.received_between_hosts / usual.received_between_hosts
        assert share <= SHARES.get((build, hosts, workers), 1.0)


def test_one_host_or_one_worker_on_each_is_left_alone() -> None:
    assert explained(tall(), machine(1, 8)).received_between_hosts is None
    single = explained(tall(), machine(8, 1))
    assert single.received_between_hosts == single.received_after


def test_plans_that_use_some_of_the_workers_count_their_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "along_hosts", lambda request, plan: plan)
    array = random(3000, 3000, 250) @ random(3000, 3000, 250, seed=1)
    plan = explained(array, machine(2, 7))
    assert plan.used_workers == 12
    # positions 0 to 5 are those of the first host, as with six workers on each
    assert plan.received_between_hosts == explained(array, machine(2, 6)).received_between_hosts


def test_later_plans_divide_the_axes_of_the_mesh_as_the_first_one_did() -> None:
    target = machine(2, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "machine", lambda *_: target)
        first = dasktile.optimize(square())
        placement = decode(first.name)
        assert placement is not None and placement.mesh == (2, 4, 2)
        blocks = product(*map(range, first.numblocks))
        held = {(first.name, *index): placement.position(index) for index in blocks}
        where = {key: [target.order[position]] for key, position in held.items()}
        later = replace(target, who_has=lambda blocks: {key: where[key] for key in blocks})
        patch.setattr(api, "machine", lambda *_: later)
        # as persisted: the graph has the blocks alone
        layer = MaterializedLayer({key: DataNode(key, None) for key in held})
        graph = HighLevelGraph({first.name: layer}, {first.name: set()})
        x = da.Array(graph, first.name, first.chunks, dtype=float)
        factor = random(8000, 8000, 1000, seed=2)
        again = dasktile.explain(x @ factor)
        patch.setattr(planning, "mesh_there", lambda captured, workers: ())
        other = dasktile.explain(x @ (factor * 1.0))
    assert again.received_after <= other.received_after


def test_few_bytes_between_hosts_are_what_is_received() -> None:
    config = {
        "dasktile.raise-errors": True,
        "distributed.worker.memory.spill": False,
        "distributed.scheduler.work-stealing": False,
    }

    @gen_cluster(
        client=True,
        nthreads=[(f"127.0.0.{1 + at // 4}", 1) for at in range(8)],
        config=config,
        worker_kwargs={"memory_limit": 0},
    )
    async def run(c: Any, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        array = tall(250)
        target = replace(machine(2, 4), room=None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "machine", lambda *_: target)
            plan, planned = dasktile.explain(array), dasktile.optimize(array)
        result = c.persist(planned)
        await wait(result)
        crossed = sum(
            one["total"]
            for worker in workers
            for one in worker.transfer_incoming_log
            if get_address_host(one["who"]) != get_address_host(worker.address)
        )
        assert 0 < crossed <= 1.05 * plan.received_between_hosts + 0.1 * MB
        assert crossed <= 0.4 * plan.received_after
        np.testing.assert_allclose(
            await c.compute(result), array.compute(scheduler="sync"), rtol=1e-9
        )

    run()


def test_pairs_of_workers_are_of_two_hosts_or_of_one() -> None:
    addresses = [f"tcp://10.0.0.{host}:{port}" for host in range(3) for port in range(1 + host)]
    hosts = _by_host(addresses)
    assert list(map(len, hosts)) == [1, 2, 3]
    for pair in _far_apart(hosts, 8):
        assert len(_by_host(pair)) == 2
    assert len(_far_apart(hosts, 8)) == 2
    assert _neighbours(hosts, 8) == [tuple(hosts[1]), tuple(hosts[2][:2])]
    one = [["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]]
    assert _far_apart(one, 8) == [("tcp://10.0.0.1:1", "tcp://10.0.0.1:2")]
    assert _far_apart([["tcp://10.0.0.1:1"]], 8) == []
