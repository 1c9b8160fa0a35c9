"""Placement of persisted arrays, from which a plan starts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasktile.capture.base import Captured
from dasktile.capture.from_memory import read_from_memory
from dasktile.cluster.target import Machine
from dasktile.ir import Node, Program, workers_of_positions
from dasktile.schedule.homes import has_homes
from dasktile.schedule.placement import decode, primary
from dasktile.tiling.mesh import MAX_WORKERS


def located(captured: Captured, machine: Machine) -> Captured:
    """A program in which nodes of persisted arrays have the mesh positions of their blocks.

    So have arrays whose blocks are made of other persisted data, as partitions of a dataframe: the
    positions of the workers that have most of it, on which Dask makes the blocks.  The program is
    unchanged where tasks do not run on the workers of the plan, since positions of the mesh are
    then not tied to workers.
    """
    nodes = captured.program.nodes
    if not machine.placed or machine.who_has is None:
        return captured
    resident = [index for index, node in enumerate(nodes) if node.resident and node.size]
    made = read_from_memory(captured, machine.workers)
    blocks: dict[Any, Any] = {}
    for index in resident:
        blocks.update(captured.graph.layers[nodes[index].name])
    for keys in made.values():
        blocks.update(dict.fromkeys(itertools.chain.from_iterable(keys)))
    if not blocks:
        return captured
    holders = machine.who_has(blocks)
    places = min(machine.workers, MAX_WORKERS)
    position = {
        address: number * places // len(machine.order)
        for number, address in enumerate(machine.order)
    }
    new = list(nodes)
    for index in resident:
        homes = tuple(_homes(nodes[index], holders, position, places))
        if any(homes):  # otherwise its blocks come with the graph
            new[index] = replace(nodes[index], homes=homes)
    for index, keys in made.items():
        most = [_most_common(read, holders, position) for read in keys]
        if all(most):
            new[index] = replace(nodes[index], homes=tuple(most))
    return replace(captured, program=Program(tuple(new), captured.program.outputs))


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
        if node.homes
        for index, places in zip(_blocks(node), node.homes, strict=True)
        if places
    }


def _most_common(
    keys: Iterable[Any], holders: Mapping[Any, Sequence[str]], positions: Mapping[str, int]
) -> tuple[int, ...]:
    """The mesh position that has most of some data, the first one of equal ones; none if none."""
    counts = Counter(
        positions[address]
        for key in keys
        for address in holders.get(key, ())
        if address in positions
    )
    return (min(counts, key=lambda place: (-counts[place], place)),) if counts else ()


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
