"""Placement of persisted arrays, from which a plan starts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasktile.capture.base import Captured
from dasktile.capture.from_memory import data_of_arrays
from dasktile.cluster.target import Machine
from dasktile.ir import Node, Program, workers_of_positions
from dasktile.schedule.homes import has_homes
from dasktile.schedule.placement import decode, primary
from dasktile.tiling.mesh import MAX_WORKERS

#: Bytes of data on a worker over those of a block that is made of it, from which the block is made
#: there (chosen: less may as well be sent).
LEAST_SHARE = 0.5

#: Bytes of data from which a task of unknown work runs where they are (chosen: less are sent in a
#: fraction of the time that a task takes).
LEAST_BYTES = 2**16

#: Tasks or blocks on a worker over the mean up to which they are where their data is (chosen: as
#: where tasks follow a persisted array).
MOST_UNEVEN = 1.5


def located(captured: Captured, machine: Machine) -> Captured:
    """A program in which nodes of persisted arrays have the mesh positions of their blocks.

    Arrays whose blocks unknown tasks make of persisted data, as of the partitions of a dataframe,
    have the positions of the workers with most of it, if it is large and evenly distributed: there
    Dask makes the blocks.  So have the tasks that read the data.  The program is unchanged where
    tasks do not run on the workers of the plan, since positions of the mesh are then not tied to
    workers.
    """
    if not machine.placed:
        return captured
    places = min(machine.workers, MAX_WORKERS)
    position = {
        address: number * places // len(machine.order)
        for number, address in enumerate(machine.order)
    }
    return _near_data(_with_homes(captured, machine, position, places), machine, position, places)


def _with_homes(
    captured: Captured, machine: Machine, position: Mapping[str, int], places: int
) -> Captured:
    """A program with the positions of the blocks of persisted arrays."""
    nodes = captured.program.nodes
    resident = [index for index, node in enumerate(nodes) if node.resident and node.size]
    if machine.who_has is None or not resident:
        return captured
    blocks: dict[Any, Any] = {}
    for index in resident:
        blocks.update(captured.graph.layers[nodes[index].name])
    holders = machine.who_has(blocks)
    new = list(nodes)
    for index in resident:
        homes = tuple(_homes(nodes[index], holders, position, places))
        if any(homes):  # otherwise its blocks come with the graph
            new[index] = replace(nodes[index], homes=homes)
    return replace(captured, program=Program(tuple(new), captured.program.outputs))


def _near_data(
    captured: Captured, machine: Machine, position: Mapping[str, int], places: int
) -> Captured:
    """A program with the positions of blocks and tasks that read other data on workers."""
    read = {} if machine.data is None else data_of_arrays(captured)
    if machine.data is None or not read:
        return captured
    held = _Held(machine.workers)
    tasks = [task for each in read.values() for task in each.tasks.items()]
    held.count(itertools.chain.from_iterable(data for _, data in tasks))
    for key, (nbytes, addresses) in machine.data(list(held.readers)).items():
        held.add(key, nbytes, {position[where] for where in addresses if where in position})
    found = held.places([data for _, data in tasks], LEAST_BYTES, len(held.readers))
    near = {key: place for (key, _), place in zip(tasks, found, strict=True) if place is not None}
    if not _is_even(near.values(), places):
        return captured
    nodes, fetched = list(captured.program.nodes), 0
    for index, each in read.items():
        node, count = nodes[index], len(each.blocks)
        if count < 2:
            continue
        size = node.nbytes / count
        homes = held.places(each.blocks, LEAST_SHARE * size, count)
        known = [home for home in homes if home is not None]
        if len(known) < count or not _is_even(known, places):
            continue
        nodes[index] = replace(node, homes=tuple((home,) for home in known))
        received = zip(known, each.blocks, strict=True)
        for home, key in {(home, key) for home, data in received for key in data}:
            if home not in held.workers.get(key, {home}):
                fetched += min(held.bytes[key], round(size))
    program = Program(tuple(nodes), captured.program.outputs)
    return replace(captured, program=program, near=near, fetched=fetched)


class _Held:
    """The data on workers.

    Attributes
    ----------
    readers
        By the key of data, the number of tasks that read it.
    bytes, workers
        By the key of data in memory, its bytes, and the mesh positions that have it.
    """

    def __init__(self, workers: int) -> None:
        self.readers: Counter[Any] = Counter()
        self.bytes: dict[Any, int] = {}
        self.workers: dict[Any, set[int]] = {}
        self._mesh = workers

    def count(self, read: Iterable[Any]) -> None:
        """Count the readers of data, given the keys that each task reads."""
        self.readers.update(read)

    def add(self, key: Any, nbytes: int, workers: set[int]) -> None:
        """Note where data is."""
        self.bytes[key], self.workers[key] = nbytes, workers

    def places(self, reads: Sequence[Sequence[Any]], least: float, count: int) -> list[int | None]:
        """Where most of the bytes of several lists of data are, the least used place of equal ones.

        None where these are less than `least`.  Data that more than an even share of `count` tasks
        read, as a scattered model, does not count.
        """
        most, loads = -(-count // self._mesh), Counter[int]()
        found: list[int | None] = []
        for data in reads:
            sizes: Counter[int] = Counter()
            for key in data:
                for place in self.workers.get(key, ()) if self.readers[key] <= most else ():
                    sizes[place] += self.bytes[key]
            best = min(sizes, key=lambda each: (-sizes[each], loads[each], each), default=None)
            if best is not None and sizes[best] < max(1, least):
                best = None
            if best is not None:
                loads[best] += 1
            found.append(best)
        return found


def _is_even(places: Iterable[int], count: int) -> bool:
    """Whether none of `count` places has far more than the mean."""
    loads = Counter(places)
    return max(loads.values(), default=0) * count <= MOST_UNEVEN * loads.total()


def blocks_there(captured: Captured) -> dict[Any, int]:
    """The mesh position of every persisted block that a worker has.

    Parameters
    ----------
    captured
        A program with these positions.
    """
    return {
        (node.name, *index): places[0]
        for node in captured.program.nodes
        if node.resident and node.homes
        for index, places in zip(_blocks(node), node.homes, strict=True)
        if places
    }


def _blocks(node: Node) -> Iterable[tuple[int, ...]]:
    """The indices of all blocks of an array."""
    return itertools.product(*(range(len(sizes)) for sizes in node.chunks))


def _planned(name: str, workers: int) -> Callable[[Sequence[int]], int] | None:
    """The position that an earlier plan gives a block, in a mesh of so many positions, if any."""
    placement = decode(name)
    if placement is None or placement.follow is not None:
        return None
    if not has_homes(placement.positions, workers):
        return None
    there = workers_of_positions(placement.positions, workers)
    return lambda index: there[placement.position(index)]


def _homes(
    node: Node,
    holders: Mapping[Any, Sequence[str]],
    positions: Mapping[str, int],
    workers: int,
) -> Iterable[tuple[int, ...]]:
    """For every block, its position in the mesh; empty for a block that no worker has yet."""
    planned = _planned(node.name, workers)
    for index in _blocks(node):
        addresses = holders.get((node.name, *index), ())
        places = tuple(
            sorted({positions[address] for address in addresses if address in positions})
        )
        if len(places) > 1:
            # the other replicas may be dropped before they are read
            places = (primary(index, places),)
        if not places and planned is not None:
            places = (planned(index),)  # not computed yet
        yield places
