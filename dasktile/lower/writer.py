"""Writing a tiled program as a dask graph: the only place where dask graphs are made.

Nodes are written in order (:mod:`dasktile.lower.array_writer`).  Parts of the input graph for which
nothing changed are carried over unchanged.  Then tasks are fused and bundled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile.capture.base import Captured, GraphView, Verbatim
from dasktile.capture.culling import Needed
from dasktile.capture.rules.sources import Create, InMemory
from dasktile.ir import (
    Chunks,
    Node,
    TiledProgram,
)
from dasktile.lower.array_writer import ArrayWriter
from dasktile.lower.bundle import USUAL, Bundled, BundleForm, bundle
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.placed import guessed_names, placed_tasks
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.lower.written import wanted_keys
from dasktile.schedule.placed_tasks import PlacedTasks

__all__ = ["Lowered", "lower"]


@dataclass(frozen=True, slots=True)
class Written:
    """A graph as it was written, before its tasks are bundled.

    Parameters
    ----------
    outputs
        Names and chunks of the outputs.
    keys
        The wanted keys of every output.
    limits
        What may be bundled.
    computed
        For the watched nodes, which of their tiles the wanted blocks of the outputs depend on.
    made
        By the index of a node, the name of the layer that makes its array.
    """

    outputs: Sequence[tuple[str, Chunks]]
    keys: Mapping[str, list[Any]]
    limits: BundleLimits
    computed: Mapping[int, Needed]
    made: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A dask graph, and where the outputs are in it.

    Parameters
    ----------
    written
        The graph before its tasks were bundled.
    bundled
        The graph: no more than all outputs together need.
    """

    written: Written
    bundled: Bundled

    @property
    def graph(self) -> HighLevelGraph:
        """The graph."""
        return self.bundled.graph

    @property
    def names(self) -> tuple[str, ...]:
        """For every output of the program, the name of its array."""
        return tuple(self._name(name) for name, _ in self.written.outputs)

    @property
    def chunks(self) -> tuple[Chunks, ...]:
        """For every output of the program, the chunks of its array."""
        return tuple(chunks for _, chunks in self.written.outputs)

    @property
    def made(self) -> dict[int, str]:
        """By the index of a node, the name of the layer that makes its array."""
        return {index: self._name(name) for index, name in self.written.made.items()}

    def tasks(self, by_place: bool) -> tuple[PlacedTasks, float]:
        """What `placed_tasks` returns.

        Parameters
        ----------
        by_place
            Whether tasks run where they are placed.
        """
        taken = self.bundled.taken
        ends: dict[str, list[Any]] = {}
        for name, keys in self.written.keys.items():
            new = [(self._name(name), *key[1:]) for key in keys]
            wanted = (taken[key].key if key in taken else key for key in new)
            ends[self._name(name)] = list(dict.fromkeys(wanted))
        limits, memory = self.written.limits, self.bundled.memory
        return placed_tasks(self.graph, ends, limits, memory, by_place)

    def guessed(self) -> tuple[str, ...]:
        """The operations with results whose sizes are guesses; none of a graph without bundles."""
        source = self.bundled.source
        return () if source is None else guessed_names(source.tasks)

    def resized(self, share: float, pays: Callable[[int], bool] = lambda tasks: True) -> Lowered:
        """The graph with bundles of a share of the bytes; the same object if these are the same.

        Parameters
        ----------
        share
            Bytes of a bundle over those that the limits allow.
        pays
            Whether a graph of a number of tasks is worth writing; the same object if it is not.
        """
        bundled = self.bundled.resized(share, pays)
        return self if bundled is self.bundled else Lowered(self.written, bundled)

    def in_steps(self) -> Lowered:
        """The graph in an order that needs less memory; the same object if it saves little.

        All sums of products get one term before any of them gets the next.
        """
        bundled = self.bundled.in_steps()
        return self if bundled is self.bundled else Lowered(self.written, bundled)

    def _name(self, output: str) -> str:
        return self.bundled.names.get(output, output)


def lower(
    captured: Captured,
    tiled: TiledProgram,
    output_chunks: Sequence[Chunks | None] | None = None,
    output_names: Sequence[str | None] | None = None,
    predicted: Sequence[int] = (),
    fuse_bytes: int = 0,
    threads: int = 1,
    wanted: Mapping[str, Needed] | None = None,
    watched: Sequence[int] = (),
    bundle_tasks: int = 0,
    bundle_bytes: int = 0,
    bundle_form: BundleForm = USUAL,
    gathered: Sequence[bool] = (),
    settings: LowerSettings = DEFAULTS,
) -> Lowered:
    """Write a program with the tiles of a plan.

    Parameters
    ----------
    captured
        What the program was captured from.
    tiled
        The program and a tiling for each of its nodes.
    output_chunks
        For every output, the chunks that it must have; None for those of its tiling.
    output_names
        For every output, the name it must have; None for any.
    predicted
        For every node, bytes that workers will receive so that it can run.
    fuse_bytes
        Bytes of all results that one fused task may make; 0 disables fusion.
    threads
        Tasks that a worker runs at once.
    wanted
        By the name of an output, the blocks that are wanted; all blocks of other outputs are.
    watched
        Indices of nodes for which `Lowered.computed` lists the tiles that the graph makes.
    bundle_tasks
        Tasks that one bundle runs at most; less than 2 disables bundles.
    bundle_bytes
        Bytes of the inputs and results that one bundle may have in memory at the same time.
    bundle_form
        How tasks are bundled and ordered.
    gathered
        For every output, whether the client takes its blocks out of tuples; none by default.
    settings
        Numbers of the policy by which tasks are written.

    Returns
    -------
    The new graph, and the name and the chunks of every output in it.

    Raises
    ------
    ValueError
        If the arguments do not fit together.
    """
    program = captured.program
    count = len(program.outputs)
    handed = tuple(output_chunks) if output_chunks is not None else (None,) * count
    names = tuple(output_names) if output_names is not None else (None,) * count
    for argument, given, expected in (
        ("tiled.tilings", len(tiled.tilings), len(program.nodes)),
        ("output_chunks", len(handed), count),
        ("output_names", len(names), count),
    ):
        if given != expected:
            raise ValueError(f"{argument} has {given} entries, the program needs {expected}")
    carried, kept = _settle(captured, handed, names)
    needed = _needed(captured, carried)
    received = _received(captured, carried, needed, predicted)
    writer = ArrayWriter(captured, tiled, settings, predicted=received)
    for index in needed:
        if carried[index]:
            writer.carry(index)
        else:
            writer.write(index)
    written = [
        (name, chunks or program.nodes[index].chunks)
        if stays and name is not None
        else writer.output(index, chunks, name)
        for index, chunks, name, stays in zip(program.outputs, handed, names, kept, strict=True)
    ]
    outputs = [name for name, _ in written]
    graph = writer.graph(outputs)
    computed: Mapping[int, Needed] = {}
    if watched:
        computed = writer.computed(graph, dict(written), wanted or {}, watched)
    working: Mapping[Any, int] = {}
    if fuse_bytes:
        # bundles have fewer tasks without having the inputs of many tasks at the same time
        share = 0.0 if bundle_tasks > 1 else settings.input_share
        fused = writer.fused(graph, outputs, fuse_bytes, int(share * fuse_bytes), threads)
        graph, working = fused.graph, fused.working
    keys = {name: wanted_keys(name, chunks, wanted or {}) for name, chunks in written}
    bundled = Bundled(graph)
    limits = writer.bundle_limits(bundle_tasks, bundle_bytes, threads, working)
    if bundle_tasks > 1:
        named = {name for name in names if name is not None}
        flags = zip(written, gathered, strict=False)
        limits = replace(limits, gathered={name for (name, _), is_one in flags if is_one})
        order = list(dict.fromkeys([*captured.graph.layers, *writer.layers]))
        bundled = bundle(graph, keys, named, order, limits, bundle_form)
    return Lowered(Written(written, keys, limits, computed, writer.made), bundled)


def _settle(
    captured: Captured, wanted: Sequence[Chunks | None], names: Sequence[str | None]
) -> tuple[list[bool], list[bool]]:
    """Nodes carried over unchanged, and outputs that are then in the input graph already.

    An output with a given name may have to be written.  The layer of the input graph that
    has this name is then not carried over, and nor is any layer that depends on it.
    """
    program, view = captured.program, GraphView(captured.graph)
    there = []
    for index, chunks, name in zip(program.outputs, wanted, names, strict=True):
        node = program.nodes[index]
        if name is None or name not in captured.graph.layers:
            there.append(False)
        elif name == node.name:
            there.append(chunks is None or chunks == node.chunks)
        else:
            # a rechunk that is no part of the program
            array = view.array(name)
            there.append(array is not None and array.chunks == chunks)
    kept = there
    while True:
        taken = {name for name, stays in zip(names, kept, strict=True) if name and not stays}
        carried = _unchanged(captured, taken)
        # data and constants have the same keys with other tiles for other readers beside them
        still = [
            stays and (carried[index] or isinstance(captured.kernels[index], (Create, InMemory)))
            for stays, index in zip(kept, program.outputs, strict=True)
        ]
        if still == kept:
            return carried, kept
        kept = still


def _unchanged(captured: Captured, taken: Iterable[str]) -> list[bool]:
    """For every node, whether it and all it reads can be carried over."""
    dependents = captured.graph.dependents
    tainted = set(taken)
    stack = sorted(tainted)
    while stack:
        for reader in dependents.get(stack.pop(), ()):
            if reader not in tainted:
                tainted.add(reader)
                stack.append(reader)
    carried: list[bool] = []
    for node, kernel in zip(captured.program.nodes, captured.kernels, strict=True):
        carried.append(
            isinstance(kernel, Verbatim)
            and all(carried[edge.producer] for edge in node.edges)
            and tainted.isdisjoint(kernel.layers)
            and not _reads_rechunked(captured, node, kernel)
        )
    return carried


def _reads_rechunked(captured: Captured, node: Node, kernel: Verbatim) -> bool:
    """Whether a rechunk is between a node and an array that it reads.

    Dask's own rechunk, whose tasks have no homes, would be carried over with the node.
    """
    nodes = captured.program.nodes
    return any(
        read != nodes[edge.producer].name
        for read, edge in zip(kernel.reads, node.edges, strict=True)
    )


def _needed(captured: Captured, carried: Sequence[bool]) -> list[int]:
    """Nodes to write or carry over, in order; nodes carried over need no other nodes."""
    program = captured.program
    needed = set(program.outputs)
    for index in range(len(program.nodes) - 1, -1, -1):
        if index in needed and not carried[index]:
            needed.update(edge.producer for edge in program.nodes[index].edges)
    return sorted(needed)


def _received(
    captured: Captured, carried: Sequence[bool], needed: Sequence[int], predicted: Sequence[int]
) -> list[int]:
    """For every node, the predicted bytes received that its layer's name contains.

    The name of a node that is carried over has none.  Its bytes are added to those of its reader.
    """
    program = captured.program
    readers: dict[int, list[int]] = {}
    for index in needed:
        for producer in dict.fromkeys(edge.producer for edge in program.nodes[index].edges):
            readers.setdefault(producer, []).append(index)
    received = list(predicted) or [0] * len(program.nodes)
    for index in needed:
        reading = [reader for reader in readers.get(index, ()) if not carried[reader]]
        if index in program.outputs or not reading:
            continue
        if carried[index] or isinstance(captured.kernels[index], Verbatim):
            # the first of those that receive most
            received[max(reading, key=received.__getitem__)] += received[index]
            received[index] = 0
    return received
