"""Placement of persisted arrays, from which a plan starts."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dasktile.capture.base import Captured
from dasktile.capture.from_memory import DataOfArray, data_of_arrays
from dasktile.cluster.target import Machine
from dasktile.ir import ArrayType, Node, Program
from dasktile.schedule.homes import positions_of
from dasktile.schedule.placement import decode, primary
from dasktile.tiling.mesh import MAX_WORKERS, mesh_shape

#: Of data in memory, by its key: the bytes, and the mesh positions that have it.
Held = Mapping[Any, tuple[int, set[int]]]

#: Bytes of data on a worker over those of a block that is made of it, from which the block is made
#: there (chosen: less may as well be sent).
LEAST_SHARE = 0.5

#: Bytes of data from which a task runs where the data is (chosen: less is sent in a fraction of the
#: time that a task takes).
LEAST_BYTES = 2**16

#: Blocks whose data has a place, of all blocks of an array, from which all have one (chosen: few
#: are inserted between those of the data).
LEAST_KNOWN = 0.5

#: Tasks or blocks on a worker over the mean up to which they are where their data is, if functions
#: of the user make them, which may take long (chosen: as where tasks follow a persisted array).
MOST_UNEVEN = 1.5

#: Pieces of data up to which workers are asked for their shapes (chosen: a megabyte of keys).
MOST_ASKED = 2**14


def located(captured: Captured, machine: Machine) -> Captured:
    """A program in which nodes of persisted arrays have the mesh positions of their blocks.

    Arrays whose blocks unknown tasks make of persisted data, as of the partitions of a dataframe,
    have the positions of the workers with most of it, if it is large: there Dask makes the blocks.
    So have the tasks that read the data.  If functions of the user make them, this holds only where
    the data is evenly distributed.  The program is unchanged where tasks do not run on the workers
    of the plan, since positions of the mesh are then not tied to workers.
    """
    places = min(machine.workers, MAX_WORKERS)
    if not machine.placed:
        resident = [node for node in captured.program.nodes if node.resident and node.size]
        return replace(captured, computing=_computing(resident, machine, places))
    position = _positions(machine)
    return _near_data(_with_homes(captured, machine, position, places), machine, position, places)


def _positions(machine: Machine) -> dict[str, int]:
    """The mesh position of every worker, by its address."""
    places = min(machine.workers, MAX_WORKERS)
    return {
        address: number * places // len(machine.order)
        for number, address in enumerate(machine.order)
    }


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
    computing = _computing([nodes[index] for index in resident], machine, places)
    holders = machine.who_has(blocks)
    new = list(nodes)
    for index in resident:
        node = nodes[index]
        homes = tuple(_homes(node.name, _blocks(node), holders, position, places))
        if any(homes):  # otherwise its blocks come with the graph
            new[index] = replace(nodes[index], homes=homes)
    program = Program(tuple(new), captured.program.outputs)
    return replace(captured, program=program, computing=computing)


def _computing(arrays: Sequence[Node], machine: Machine, places: int) -> int:
    """Bytes of persisted blocks that will be on unknown workers; those of a plan are known."""
    if machine.unfinished is None:
        return 0
    unplanned = [node for node in arrays if _planned(node.name, places) is None]
    blocks = {node.name: [(node.name, *index) for index in _blocks(node)] for node in unplanned}
    left = set(machine.unfinished([key for keys in blocks.values() for key in keys]))
    return sum(
        round(node.nbytes * len(left.intersection(keys)) / len(keys))
        for node in unplanned
        if (keys := blocks[node.name])
    )


def positions_of_data(
    layers: Mapping[str, Mapping[Any, Any]], machine: Machine
) -> tuple[Any, ...] | None:
    """The mesh positions of all persisted blocks; None if some will be on unknown workers.

    Parameters
    ----------
    layers
        The blocks of arrays in memory, by the name of the array and by key.
    machine
        The workers.
    """
    if not machine.placed or machine.who_has is None or not layers:
        return ()
    places = min(machine.workers, MAX_WORKERS)
    if machine.unfinished is not None:
        unplanned = [
            key for name, keys in layers.items() if _planned(name, places) is None for key in keys
        ]
        if unplanned and machine.unfinished(unplanned):
            return None
    blocks = {key: block for layer in layers.values() for key, block in layer.items()}
    holders, position = machine.who_has(blocks), _positions(machine)
    return tuple(
        tuple(_homes(name, [key[1:] for key in layer], holders, position, places))
        for name, layer in layers.items()
    )


def _near_data(
    captured: Captured, machine: Machine, position: Mapping[str, int], places: int
) -> Captured:
    """A program with the positions of blocks and tasks that read other data on workers."""
    if machine.data is None or not (read := data_of_arrays(captured)):
        return captured
    tasks = [task for each in read.values() for task in each.tasks.items()]
    readers = Counter(key for _, data in tasks for key in data)
    # all tasks may read a scattered model
    most = -(-len(tasks) // machine.workers)
    if machine.unfinished is not None:
        machine.unfinished(list(readers))
    in_memory = machine.data(list(readers))
    held = {
        key: (nbytes, {position[where] for where in addresses if where in position})
        for key, (nbytes, addresses) in in_memory.items()
        if readers[key] <= most
    }
    found = _places([dict.fromkeys(data, 1.0) for _, data in tasks], held, LEAST_BYTES)
    near = {key: place for (key, _), place in zip(tasks, found, strict=True) if place is not None}
    if not (_is_even(near.values(), places) or all(each.is_quick for each in read.values())):
        return captured
    of_data = {key: min(there) for key, (_, there) in held.items() if len(there) == 1}
    nodes, fetched = list(captured.program.nodes), 0
    for index, each in read.items():
        node, count = nodes[index], len(each.blocks)
        if count < 2:
            continue
        size = node.nbytes / count
        known = _places_of_all(each.blocks, held, LEAST_SHARE * size)
        if not known or not (each.is_quick or _is_even(known, places)):
            continue
        nodes[index] = replace(node, homes=tuple((home,) for home in known))
        near.update(_near_readers(each, known, held))
        near.update(zip(each.makers, known, strict=True))
        shares: dict[tuple[int, Any], float] = {}
        for home, data in zip(known, each.blocks, strict=True):
            for key, share in data.items():
                shares[home, key] = max(share, shares.get((home, key), 0.0))
        for (home, key), share in shares.items():
            nbytes, there = held.get(key, (0, {home}))
            if home not in there:
                fetched += round(share * nbytes)
    program = Program(tuple(nodes), captured.program.outputs)
    return replace(
        captured,
        program=program,
        near=near | of_data,
        shapes=_shapes(in_memory, machine),
        fetched=fetched,
    )


def _shapes(
    in_memory: Mapping[Any, tuple[int, Sequence[str]]], machine: Machine
) -> Mapping[Any, ArrayType]:
    """The shapes and types of the arrays among data in memory."""
    if machine.shapes is None or not 0 < len(in_memory) <= MOST_ASKED:
        return {}
    keys: dict[str, list[Any]] = defaultdict(list)
    for key, (_, (address, *_)) in in_memory.items():
        keys[address].append(key)
    return machine.shapes(keys)


def _places_of_all(blocks: Sequence[Mapping[Any, float]], held: Held, least: float) -> list[int]:
    """Where most of the data of each of several blocks is; empty if that is unknown of most.

    As `_places`.  A few blocks without data are where the block before them is.  Data that a block
    reads as a whole is where the block is, too, for those after it, if no place is used more for
    that.
    """
    reads = list(map(_over_largest, blocks))
    whole = [[key for key, share in data.items() if share == 1] for data in blocks]
    busiest = len(reads)
    best: list[int] = []
    for sent in ((), whole):
        found = _places(reads, held, least, sent)
        known = [place for place in found if place is not None]
        if len(known) < LEAST_KNOWN * len(reads):
            return []
        filled, place = [], known[0]
        for each in found:
            place = place if each is None else each
            filled.append(place)
        most = max(Counter(filled).values())
        if most <= busiest:
            busiest, best = most, filled
    return best


def _near_readers(read: DataOfArray, homes: Sequence[int], held: Held) -> dict[Any, int]:
    """The places of tasks of one block each whose data the worker of the block has, or receives.

    Otherwise, it would receive their results and the data.
    """
    sent = {
        (home, key)
        for maker, home in zip(read.makers, homes, strict=True)
        for key in read.tasks.get(maker, ())
    }
    return {
        task: home
        for task, number in read.only_for.items()
        for home in [homes[number]]
        if all((home, key) in sent or home in held.get(key, (0, ()))[1] for key in read.tasks[task])
    }


def _over_largest(shares: Mapping[Any, float]) -> dict[Any, float]:
    """Shares over the largest of them: a block of few elements is made where its data is, too."""
    largest = max(shares.values(), default=0.0) or 1.0
    return {key: share / largest for key, share in shares.items()}


def _places(
    reads: Sequence[Mapping[Any, float]],
    held: Held,
    least: float,
    sent: Sequence[Sequence[Any]] = (),
) -> list[int | None]:
    """Where most of the bytes of several lists of data are, the least used place of equal ones.

    Parameters
    ----------
    reads
        By the key of data, the share of it that is read.
    held
        Of data in memory, the bytes and the mesh positions.
    least
        Bytes below which there is no place.
    sent
        For each of the lists, the data of which its place keeps a copy, for the lists after it;
        empty if no copies count.
    """
    loads: Counter[int] = Counter()
    found: list[int | None] = []
    copies: dict[Any, set[int]] = defaultdict(set)
    for data, stays in zip(reads, sent or itertools.repeat(()), strict=False):
        sizes: Counter[int] = Counter()
        for key, share in data.items():
            nbytes, there = held.get(key, (0, set()))
            sizes.update(dict.fromkeys(there | copies[key], round(share * nbytes)))
        best = min(sizes, key=lambda each: (-sizes[each], loads[each], each), default=None)
        if best is not None and sizes[best] >= max(1, least):
            loads[best] += 1
            found.append(best)
            for key in stays:
                copies[key].add(best)
        else:
            found.append(None)
    return found


def _is_even(places: Iterable[int], count: int) -> bool:
    """Whether none of `count` places has far more than the mean, rounded up: they are whole."""
    loads = Counter(places)
    return max(loads.values(), default=0) <= math.ceil(MOST_UNEVEN * loads.total() / count)


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


def shapes_there(captured: Captured) -> dict[Any, ArrayType]:
    """The shape and type of every persisted block, by its key.

    Parameters
    ----------
    captured
        A program.
    """
    return {
        (node.name, *index): (shape, np.dtype(node.dtype))
        for node in captured.program.nodes
        if node.resident
        for index, shape in zip(_blocks(node), itertools.product(*node.chunks), strict=True)
    }


def mesh_there(captured: Captured, workers: int) -> tuple[int, ...]:
    """The mesh of the plans that most persisted blocks are from; empty if it is the usual one.

    Where several hosts have several workers, the axes of a plan's mesh may have another order, and
    later plans that read its results should divide them in the same way.

    Parameters
    ----------
    captured
        A program with the positions of these blocks.
    workers
        Number of workers.
    """
    sizes: Counter[tuple[int, ...]] = Counter()
    usual = mesh_shape(min(workers, MAX_WORKERS))
    for node in captured.program.nodes:
        placement = decode(node.name) if node.resident and node.homes else None
        if placement is not None and sorted(placement.mesh) == sorted(usual):
            sizes[placement.mesh] += node.nbytes
    found = max(sizes, key=lambda mesh: (sizes[mesh], mesh), default=usual)
    return () if found == usual else found


def _blocks(node: Node) -> Iterable[tuple[int, ...]]:
    """The indices of all blocks of an array."""
    return itertools.product(*(range(len(sizes)) for sizes in node.chunks))


def _planned(name: str, workers: int) -> Callable[[Sequence[int]], int] | None:
    """The position that an earlier plan gives a block, in a mesh of so many positions, if any."""
    placement = decode(name)
    there = positions_of(placement, workers)
    if placement is None or there is None:
        return None
    return lambda index: there[placement.position(index)]


def _homes(
    name: str,
    blocks: Iterable[tuple[int, ...]],
    holders: Mapping[Any, Sequence[str]],
    positions: Mapping[str, int],
    workers: int,
) -> Iterable[tuple[int, ...]]:
    """For every block of an array, its position in the mesh; empty if no worker has it yet."""
    planned = _planned(name, workers)
    for index in blocks:
        addresses = holders.get((name, *index), ())
        places = tuple(
            sorted({positions[address] for address in addresses if address in positions})
        )
        own = None if planned is None else planned(index)
        if own is not None and (not places or own in places):
            places = (own,)  # also if it is not computed yet
        elif len(places) > 1:
            # the other replicas may be dropped before they are read
            places = (primary(index, places),)
        yield places
