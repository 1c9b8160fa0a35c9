"""Writing a tiled program as a dask graph: the only place where dask graphs are made.

Nodes are written in order.  Every block of a node needs a window along each axis of every
array it reads.  Where these windows are the blocks of the array, the node reads them
directly.  Elsewhere a layer reshards the array; it is written once for all readers that need
the same windows.  Then the writer of the node's kernel writes its tasks.  Parts of the input
graph for which nothing changed are carried over unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, Task, getitem
from dasktile.capture.base import OF_VIEWS, Captured, GraphView, Verbatim
from dasktile.capture.corrections import has_wrong_chunk_type
from dasktile.capture.culling import Needed, follows_effects, needed_blocks
from dasktile.capture.references import head_of
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.sources import Create, InMemory
from dasktile.capture.rules.stencils import Sliding
from dasktile.capture.rules.views import Gather
from dasktile.ir import (
    Chunks,
    Edge,
    Follow,
    Kind,
    Node,
    Sharding,
    TiledProgram,
    Tiling,
    Where,
    by_position,
    hand_over,
    windows,
)
from dasktile.lower.anchored import anchor_tasks
from dasktile.lower.block_groups import block_groups
from dasktile.lower.bundle import USUAL, Bundled, BundleForm, bundle
from dasktile.lower.emit import (
    LoweringContext,
    emit,
    home_position,
    placement,
    work_at,
)
from dasktile.lower.fuse import Fused, fuse
from dasktile.lower.kernels import assignments, blocks, einsums, folds, verbatim, views
from dasktile.lower.kernels import contraction as contract
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import (
    JOIN,
    KEPT,
    RETILE,
    new_layer_name,
)
from dasktile.lower.placed import guessed_names, placed_tasks
from dasktile.lower.reshard import (
    PlaceOf,
    Windows,
    block_windows,
    getitem_any,
    joins,
    lengths,
    normal,
    reshard,
)
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.lower.tasks import BundleLimits
from dasktile.lower.window_views import WindowView, viewing
from dasktile.lower.written import WrittenArrays
from dasktile.schedule.peaks import PlacedTasks
from dasktile.schedule.placement import Placement

__all__ = ["Lowered", "lower", "wanted_keys"]

#: For every block, the places in the mesh that need it.
Copies = dict[tuple[int, ...], tuple[int, ...]]

#: Modules that register the writers of kernels.
_WRITERS = (assignments, blocks, contract, einsums, folds, verbatim, views)


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
        ends = {
            self._name(name): [(self._name(name), *key[1:]) for key in keys]
            for name, keys in self.written.keys.items()
        }
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
    writer = _Writer(captured, tiled, settings, predicted=received)
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
        order = list(dict.fromkeys([*captured.graph.layers, *writer.layers]))
        bundled = bundle(graph, keys, named, order, limits, bundle_form)
    return Lowered(Written(written, keys, limits, computed, writer.made), bundled)


def wanted_keys(name: str, chunks: Chunks, wanted: Mapping[str, Needed]) -> list[Any]:
    """The keys of the blocks of an output that are wanted.

    Parameters
    ----------
    name, chunks
        The output's name and chunks.
    wanted
        By the name of an output, which of its blocks are wanted; of others all are.
    """
    blocks = product(*(range(len(sizes)) for sizes in chunks))
    return [(name, *block) for block in blocks if name not in wanted or wanted[name][block]]


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


@dataclass(frozen=True, slots=True)
class _Source:
    """A layer that holds an array, in these chunks; with copies its keys contain the place."""

    name: str
    chunks: Chunks
    copies: Copies | None = None


def _is_slice(kernel: Any, node: Node) -> bool:
    """Whether neighbouring tiles are neighbours in the input, too, as those of ``x[2:9]`` are.

    Only then is the halo of extended tiles what follows them: not in a concatenation.
    """
    return isinstance(kernel, Gather) and all(
        axis.step == 1 for edge in node.edges for axis in edge.axes
    )


def _covers(copied: Sharding | None, where: Where | None) -> bool:
    """True if the workers that need blocks of an array have copies of it."""
    if copied is None or not isinstance(where, Sharding):
        return False
    return all(
        share.by == need.by[: len(share.by)]
        for share, need in zip(copied.dims, where.dims, strict=False)
    )


def _nearest(mesh: tuple[int, ...], where: Where | None, copies: Copies) -> PlaceOf:
    """A function that chooses a copy of a block to read: the reader's own, else the first."""
    own = home_position(mesh, where) if isinstance(where, Sharding) else None

    def nearest(block: tuple[int, ...], source: tuple[int, ...], reader: int | None) -> int:
        places = copies[source]
        if reader is None:
            reader = places[0] if own is None else own(block)
        return reader if reader in places else places[0]

    return nearest


@dataclass
class _Writer(WrittenArrays):
    """The part of the graph that is written so far, and how the rest is written."""

    #: For every node, bytes that workers will receive so that it can run.
    predicted: Sequence[int] = ()
    dependencies: dict[str, set[str]] = field(default_factory=dict)
    #: Layers with the kept chunks of arrays that have several readers.
    kept: dict[int, _Source] = field(default_factory=dict)
    #: Names of layers whose tasks Dask does not fuse with their readers.
    anchored: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.effects = follows_effects(self.captured)

    def add(self, name: str, layer: Mapping[Any, Any], reads: set[str]) -> None:
        if name not in self.views:
            seen = {read: self.views[read] for read in sorted(reads) if read in self.views}
            layer = viewing(layer, seen)
        self.layers[name] = layer if isinstance(layer, Layer) else MaterializedLayer(layer)
        self.dependencies[name] = reads

    def carry(self, index: int) -> None:
        """Take over the layer of a node unchanged."""
        node = self.node(index)
        if self.tiling(index).chunks != node.chunks:
            raise ValueError(f"{node.name!r} must keep its chunks {node.chunks}")
        self.hold(index, node.name)

    def hold(self, index: int, name: str) -> None:
        self.made[index] = name
        self.cut[index, normal(block_windows(self.tiling(index).chunks))] = name

    def source(self, index: int) -> _Source:
        """The layer that other tiles of a node's array are cut from."""
        if index not in self.kept:
            self.kept[index] = self.keep(index)
        return self.kept[index]

    def keep(self, index: int) -> _Source:
        """Write a node's array in its kept chunks, if these differ from its tiling."""
        chunks, tiling = self.tiled.kept.get(index), self.tiling(index)
        where = self.tiled.kept_at.get(index)
        made = self.made[index]
        replicas = self.tiled.replicas(index)
        if chunks is None or (
            chunks == tiling.chunks and (replicas or where in (None, tiling.held_at))
        ):
            return _Source(made, tiling.chunks)
        own = normal(block_windows(chunks))
        if replicas is not None and joins(own, tiling.chunks) and self.joined(index):
            copies = self.copies_kept(replicas, chunks)
            name = self.copy(index, own, _Source(made, tiling.chunks), copies)
            return _Source(name, chunks, copies)
        step = KEPT if self.node(index).edges else RETILE
        name = self.convert(index, own, _Source(made, tiling.chunks), where, step=step)
        self.cut[index, own] = name
        return _Source(name, chunks)

    def joined(self, index: int) -> bool:
        """False for an array that every reader recomputes from its creation function."""
        return not isinstance(self.captured.kernels[index], Create)

    def copies_kept(self, where: Sharding, chunks: Chunks) -> Copies:
        """For every block of an array that is kept in copies, the places in the mesh."""
        mesh, axes = self.tiled.mesh, where.replicated
        steps = [
            sum(at * math.prod(mesh[axis + 1 :]) for axis, at in zip(axes, place, strict=True))
            for place in product(*(range(mesh[axis]) for axis in axes))
        ]
        position = home_position(mesh, where)
        return {
            block: tuple(position(block) + step for step in steps)
            for block in product(*(range(len(sizes)) for sizes in chunks))
        }

    def fetch(
        self, index: int, wanted: Windows, where: Where | None = None, predicted: int = 0
    ) -> str:
        """The layer that holds a node's array cut by windows, written if there is none.

        `predicted` are bytes that workers receive for it beside those of the nodes.
        """
        wanted = normal(wanted)
        source = self.source(index)
        if (index, wanted) in self.cut:
            return self.cut[index, wanted]
        if (index, wanted, where) not in self.cut_at:
            self.cut_at[index, wanted, where] = self.convert(
                index, wanted, source, where, predicted=predicted
            )
        return self.cut_at[index, wanted, where]

    def convert(
        self,
        index: int,
        wanted: Windows,
        source: _Source,
        where: Where | None = None,
        copies: Copies | None = None,
        step: str = RETILE,
        predicted: int = 0,
    ) -> str:
        """Write a layer that reshards an array for the workers that need it, `where`."""
        chunks = source.chunks
        place_of = None
        if source.copies is not None:
            place_of = _nearest(self.tiled.mesh, where, source.copies)
        each = None if copies is None else tuple(sorted(copies.items()))
        suffix = new_layer_name("", source.name, chunks, wanted, where, each)
        token = suffix.rpartition("-")[2]
        if (
            place_of is None
            and not joins(wanted, chunks)
            and wanted != normal(block_windows(chunks))
        ):
            # every block is cut from one block, on the worker that has it or a copy of it
            where = where if _covers(self.tiled.replicas(index), where) else None
        at = placement(self.tiled.mesh, where, where, predicted)
        if self.tiled.replicas(index) is not None and self.node(index).edges:
            step = KEPT
        name = new_layer_name(step, token, placement=at)
        kernel = self.captured.kernels[index]
        if isinstance(kernel, Create):
            # all elements are equal: recomputed, nothing is held, cut or sent
            self.add(name, blocks.created(kernel, name, lengths(wanted)), set())
        else:
            if source.copies is None:
                source = self.grouped(index, wanted, source)
                chunks = source.chunks
            halo = None
            view = self.views.get(source.name)
            if view is not None and view.can_cut(wanted):
                self.views[name], halo = view, view.halo
            cut = getitem_any if self.node(index).kind is Kind.OPAQUE else getitem
            alone = self.is_computed_by_reader(index)
            tasks = reshard(
                name, token, source.name, chunks, wanted, cut, copies, place_of, alone, halo
            )
            self.add(name, MaterializedLayer(tasks), {source.name})
        self.describe(name, index, lengths(wanted))
        return name

    def grouped(self, index: int, wanted: Windows, source: _Source) -> _Source:
        """The layer from which tiles are cut, after neighbouring blocks were joined if need be."""
        chunks, mesh = source.chunks, self.tiled.mesh
        is_made = source.name == self.made[index]
        where = self.tiling(index).held_at if is_made else self.tiled.kept_at.get(index)
        if not mesh:
            shares = Sharding.on_one(len(chunks)).dims
        elif isinstance(where, Sharding):
            shares = where.dims
        else:
            return source  # each block is where one of another array is
        runs = [share.runs if share.by else () for share in shares]
        found = block_groups(chunks, wanted, runs, self.settings.most_pieces)
        if found is None:
            return source
        axis, groups = found
        sizes = tuple(sum(chunks[axis][block] for block in group) for group in groups)
        joined = (*chunks[:axis], sizes, *chunks[axis + 1 :])
        held = (*shares[:axis], shares[axis].grouped(groups), *shares[axis + 1 :])
        token = new_layer_name("", source.name, joined).rpartition("-")[2]
        name = new_layer_name(JOIN, token, placement=placement(mesh, where, Sharding(held)))
        blocks_of, halo = normal(block_windows(joined)), None
        view = self.views.get(source.name)
        if view is not None:
            if not view.can_cut(blocks_of):
                return source
            self.views[name], halo = view, view.halo
        tasks = reshard(name, token, source.name, chunks, blocks_of, halo=halo)
        self.add(name, MaterializedLayer(tasks), {source.name})
        self.describe(name, index, joined)
        return _Source(name, joined)

    def is_computed_by_reader(self, index: int) -> bool:
        """Whether a block may be computed where its only reader is, as it needs no other."""
        program, node = self.captured.program, self.node(index)
        if node.edges or node.resident or index in program.outputs:
            return False
        reads = [
            edge
            for reader in program.consumers(index)
            for edge in program.nodes[reader].edges
            if edge.producer == index
        ]
        return len(reads) == 1

    @cached_property
    def homes(self) -> dict[str, Placement]:
        """By the name of an array of the input graph, where the plan holds its blocks."""
        homes = {}
        for node, tiling in zip(self.captured.program.nodes, self.tiled.tilings, strict=True):
            at = placement(self.tiled.mesh, tiling.held_at, tiling.held_at)
            if at is not None:
                homes[node.name] = at
        return homes

    def describe(self, name: str, index: int, chunks: Chunks) -> None:
        """Add the collection annotations that Dask gives to layers of arrays."""
        try:
            dtype = np.dtype(self.node(index).dtype)
        except TypeError:  # not every dtype has a name from which NumPy makes it
            return
        notes = dict(self.layers[name].collection_annotations or {})
        if name in self.views:
            chunks = self.views[name].held(chunks)
            notes[OF_VIEWS] = True
        self.layers[name].collection_annotations = {
            **notes,
            **self.chunk_type(index),
            "shape": tuple(map(sum, chunks)),
            "dtype": dtype,
            "chunksize": tuple(max(sizes, default=0) for sizes in chunks),
            "chunks": chunks,
            "type": "dask.array.core.Array",
        }

    def chunk_type(self, index: int) -> dict[str, str]:
        """The annotated type of chunks in the input graph, so that masked ones stay known."""
        layer = self.captured.graph.layers.get(self.node(index).name)
        notes = (layer.collection_annotations or {}) if layer is not None else {}
        if layer is None or "chunk_type" not in notes or has_wrong_chunk_type(layer):
            return {}
        return {"chunk_type": notes["chunk_type"]}

    def write(self, index: int) -> None:
        """Write one node for its tiling."""
        node, tiling = self.node(index), self.tiling(index)
        kernel = self.captured.kernels[index]
        read = tuple(self.source(edge.producer).name for edge in node.edges)
        # a layer that holds extended tiles has other values, and so another name, than one that
        # holds the windows
        reads_views = any(layer in self.views for layer in read)
        viewed = (isinstance(kernel, Sliding) or reads_views) and self.is_seen_by_readers(index)
        name = new_layer_name(
            node.op or node.kind.value,
            node.name if not node.copy else (node.name, node.copy),
            *(("extended",) if viewed else ()),
            tiling.cuts,
            tiling.chunks,
            self.tiled.mesh,
            read,
            placement=placement(
                self.tiled.mesh,
                tiling.held_at,
                tiling.held_at,
                self.predicted[index] if self.predicted else 0,
            ),
        )
        copied: frozenset[int] = frozenset()
        if getattr(kernel, "fetches", False):
            inputs = ("",) * len(node.edges)
        else:
            layers = [self.input(edge, node, tiling, kernel) for edge in node.edges]
            inputs = tuple(layer for layer, _ in layers)
            copied = frozenset(number for number, (_, copies) in enumerate(layers) if copies)

        def fetch(edge: int, wanted: Windows, where: Where | None) -> str:
            decided = where if tiling.work_at is not None else None
            return self.fetch(node.edges[edge].producer, wanted, decided)

        context = LoweringContext(
            node,
            tiling,
            name,
            inputs,
            fetch,
            self.captured.graph,
            self.tiled.mesh,
            self.leader(tiling),
            copied,
            self.homes,
            self.settings,
        )
        if viewed and isinstance(kernel, Sliding) and not reads_views:
            self.views[name] = WindowView(kernel.window_shape, kernel.axis, len(node.labels))
            emitted = views.extended_tiles(context)
        else:
            emitted = emit(kernel, context)
        if name not in emitted.layers:
            raise ValueError(f"the writer of {node.op} {node.name!r} has not written {name!r}")
        if viewed and _is_slice(kernel, node):
            seen = self.view_of_aliases(emitted.layers[name])
            if seen is not None:
                self.views[name] = seen
        for layer, tasks in emitted.layers.items():
            self.add(layer, tasks, emitted.dependencies[layer])
        self.describe(name, index, tiling.chunks)
        self.hold(index, name)

    def view_of_aliases(self, layer: Mapping[Any, Any]) -> WindowView | None:
        """The view of the tiles that a layer has aliases of; None for other layers."""
        if not self.views or isinstance(layer, Blockwise):
            return None
        tasks = list(layer.values())
        if not tasks or any(type(task) is not Alias for task in tasks):
            return None
        seen = {self.views.get(head_of(task.target)) for task in tasks}
        return seen.pop() if len(seen) == 1 else None

    def is_seen_by_readers(self, index: int) -> bool:
        """Whether all readers of a view of windows can make it themselves."""
        program, graph = self.captured.program, self.captured.graph
        if index in program.outputs:
            return False
        return all(
            type(graph.layers[layer]) in (Blockwise, MaterializedLayer)
            for reader in program.consumers(index)
            if isinstance(kernel := self.captured.kernels[reader], Verbatim)
            for layer in kernel.layers
        )

    def input(self, edge: Edge, node: Node, tiling: Tiling, kernel: Any) -> tuple[str, bool]:
        """The layer that holds what every block of a node needs along an edge.

        Also whether the layer has a copy for each worker.
        """
        where = self.needed_at(edge, tiling)
        self.anchor(edge, tiling, where)
        if edge.chunks is not None:
            where = self.blocks_needed_at(edge, tiling, edge.chunks)
            return self.fetch(edge.producer, block_windows(edge.chunks), where), False
        shape = self.node(edge.producer).shape
        wanted = normal(
            tuple(
                windows(axis, None if axis.label is None else tiling.cuts[axis.label], size)
                for axis, size in zip(edge.axes, shape, strict=True)
            )
        )
        if self.reads_copies(edge, node, kernel) and self.tiled.mesh and tiling.work_at is not None:
            layer = self.own_copies(edge, tiling, wanted)
            if layer is not None:
                return layer, True
        name = self.fetch(edge.producer, wanted, where)
        read = {axis.label for axis in edge.axes}
        if self.effects[edge.producer] and any(
            len(cuts) > 1 for label, cuts in enumerate(tiling.cuts) if label not in read
        ):
            self.run_once(name)
        return name, False

    def run_once(self, name: str) -> None:
        """Keep Dask from fusing a block's task into several readers.

        A user's function in the task would run again for each of them.
        """
        layer, reads = self.layers.get(name), self.dependencies.get(name)
        if layer is None or reads is None:
            before = self.captured.graph
            layer = before.layers[name]
            reads = {other for other in before.dependencies[name] if other in before.layers}
        if isinstance(layer, Blockwise):
            self.layers[name] = in_place_of(layer, dict(layer))
            self.dependencies[name] = reads

    def reads_copies(self, edge: Edge, node: Node, kernel: Any) -> bool:
        """Whether each worker joins the blocks that it needs, instead of one worker for all."""
        if isinstance(kernel, Map):
            # a task on each worker costs more than to send a small array once more
            return self.node(edge.producer).nbytes >= self.settings.copied_bytes
        return node.kind is Kind.CONTRACT

    def own_copies(self, edge: Edge, tiling: Tiling, wanted: Windows) -> str | None:
        """A layer with a copy of the joined blocks for each worker that needs them, if any."""
        index = edge.producer
        source, copies = self.source(index), self.copies(edge, tiling)
        alone = all(len(places) == 1 for places in copies.values())
        if source.copies is not None:
            have = source.copies
            if wanted == normal(block_windows(source.chunks)) and all(
                set(places) <= set(have[block]) for block, places in copies.items()
            ):
                return source.name
            needed = set().union(*copies.values())
            if not alone and all(needed <= set(places) for places in have.values()):
                return self.copy(index, wanted, source, copies)
        made = source
        if self.tiled.replicas(index) is not None and source.copies is None:
            # copies are joined from the tiles themselves, not from a joined one
            made = _Source(self.made[index], self.tiling(index).chunks)
        if alone or not self.joined(index):
            return None
        if made.copies is None and not joins(wanted, made.chunks):
            return None
        return self.copy(index, wanted, made, copies)

    def copies(self, edge: Edge, tiling: Tiling) -> Copies:
        """For every block along an edge, the places in the mesh that need it."""
        needed: dict[tuple[int, ...], set[int]] = {}
        position = home_position(self.tiled.mesh, work_at(tiling), self.leader(tiling))
        for full in product(*(range(len(sizes)) for sizes in tiling.cuts)):
            block = tuple(0 if axis.label is None else full[axis.label] for axis in edge.axes)
            needed.setdefault(block, set()).add(position(full))
        return {block: tuple(sorted(places)) for block, places in needed.items()}

    def copy(self, index: int, wanted: Windows, source: _Source, copies: Copies) -> str:
        """A layer of blocks that each worker cuts and joins itself: only pieces are sent."""
        copies_first = by_position(self.tiled.mesh).dims
        where = Sharding((*copies_first, *Sharding.on_one(len(wanted)).dims))
        key = (index, wanted, (where, tuple(sorted(copies.items()))))
        if key not in self.cut_at:
            self.cut_at[key] = self.convert(index, wanted, source, where, copies=copies)
        return self.cut_at[key]

    def leader(self, tiling: Tiling) -> Node | None:
        """The persisted array that a node follows."""
        return self.node(tiling.work_at.node) if isinstance(tiling.work_at, Follow) else None

    def needed_at(self, edge: Edge, tiling: Tiling) -> Where | None:
        """Where the blocks of an array are needed, for axes with labels."""
        work = tiling.work_at
        return None if work is None else work.seen([axis.label for axis in edge.axes])

    def anchor(self, edge: Edge, tiling: Tiling, where: Where | None) -> None:
        """Prevent Dask from fusing an array's tasks with those of a reader on another worker."""
        index = edge.producer
        held, name = self.tiling(index).held_at, self.made[index]
        layer = self.layers.get(name)
        if where is None or held is None or layer is None or name in self.anchored:
            return
        read = {axis.label for axis in edge.axes}
        work = work_at(tiling)
        if isinstance(work, Follow):
            cut = [dim for dim in work.dims if dim is not None]
        else:
            cut = [label for label, share in enumerate(work.dims) if len(share.runs) > 1]
        if held == where and read.issuperset(cut):
            return
        if self.most_sent(index) >= self.settings.anchor_bytes:
            self.anchored.add(name)
            self.layers[name] = in_place_of(layer, anchor_tasks(layer))

    def most_sent(self, index: int) -> float:
        """Bytes of a tile of an array, or of what one of its tasks reads of one array if more.

        A task that Dask fuses with a reader on another worker receives what it reads there.
        """
        node, tiling = self.node(index), self.tiling(index)
        sent = [node.nbytes / math.prod(map(len, tiling.chunks))]
        for edge in node.edges:
            labels = [axis.label for axis in edge.axes if axis.label is not None]
            parts = math.prod(len(tiling.cuts[label]) for label in labels)
            sent.append(self.node(edge.producer).nbytes / parts)
        return max(sent)

    def blocks_needed_at(self, edge: Edge, tiling: Tiling, chunks: Chunks) -> Where | None:
        """Where the blocks of an edge with its own chunks are needed."""
        work, held = tiling.work_at, tiling.held_at
        if work is None or held is None or isinstance(work, Follow):
            return None
        counts = tuple(map(len, chunks))
        if all(axis.label is None for axis in edge.axes):
            # block for block is the likely reading where no axis has a label
            return held if counts == tuple(map(len, tiling.chunks)) else None
        return work.seen(
            [
                None if axis.label is None or len(tiling.cuts[axis.label]) != count else axis.label
                for axis, count in zip(edge.axes, counts, strict=True)
            ]
        )

    def output(self, index: int, chunks: Chunks | None, name: str | None) -> tuple[str, Chunks]:
        """The layer that holds an output, with the name and the chunks that it must have."""
        chunks = chunks or self.tiling(index).chunks
        wanted = normal(block_windows(chunks))
        if name is None:
            return self.handed(index, chunks, wanted), chunks
        if name in self.layers:
            return name, chunks
        # The home of a task is in the name of its layer: fusion keeps both names.
        own = self.handed(index, chunks, wanted)
        every = product(*(range(len(sizes)) for sizes in chunks))
        tasks = {(name, *block): Alias((name, *block), (own, *block)) for block in every}
        self.add(name, MaterializedLayer(tasks), {own})
        self.describe(name, index, chunks)
        return name, chunks

    def handed(self, index: int, chunks: Chunks, wanted: Windows) -> str:
        """The layer that holds a node's array in final chunks, each made on a decided worker."""
        is_created = isinstance(self.captured.kernels[index], Create)
        if is_created or chunks == self.source(index).chunks:
            return self.fetch(index, wanted)
        found = hand_over(self.tiled, index, chunks)
        if found is None:
            return self.fetch(index, wanted)
        predicted = found.elements * self.node(index).itemsize
        return self.fetch(index, wanted, found.where, predicted)

    def graph(self, outputs: Sequence[str]) -> HighLevelGraph:
        """The layers that the outputs need, of those written and of the input graph."""
        before = self.captured.graph
        layers: dict[str, Layer] = {}
        dependencies: dict[str, set[str]] = {}
        stack = list(outputs)
        while stack:
            name = stack.pop()
            if name in layers:
                continue
            if name in self.layers:
                layers[name] = self.layers[name]
                dependencies[name] = set(self.dependencies[name])
            else:
                layers[name] = before.layers[name]
                dependencies[name] = {
                    other for other in before.dependencies[name] if other in before.layers
                }
            stack.extend(dependencies[name])
        # the order in which tasks are fused depends on no names; readers are first, as in Dask's
        # graphs
        order = reversed(dict.fromkeys((*reversed(list(before.layers)), *self.layers)))
        ordered = {name: layers[name] for name in order if name in layers}
        return HighLevelGraph(ordered, dependencies)

    def fused(
        self,
        graph: HighLevelGraph,
        outputs: Sequence[str],
        fuse_bytes: int,
        input_bytes: int,
        threads: int,
    ) -> Fused:
        """The graph with fused tasks, each with as many bytes of results and of inputs."""
        written = self.layers.keys() & graph.layers.keys()
        roots = {
            name
            for name, layer in graph.layers.items()
            if name not in written and not graph.dependencies[name] and _is_of_roots(layer)
        }
        limits = replace(self.fuse_limits(fuse_bytes, input_bytes, threads), chained=roots)
        return fuse(graph.layers, graph.dependencies, written | roots, outputs, limits)

    def computed(
        self,
        graph: HighLevelGraph,
        outputs: Mapping[str, Chunks],
        wanted: Mapping[str, Needed],
        watched: Sequence[int],
    ) -> dict[int, Needed]:
        """For the watched nodes, which of their tiles the wanted blocks of the outputs need."""
        keys = [
            key for name, chunks in outputs.items() for key in wanted_keys(name, chunks, wanted)
        ]
        tiles = {
            self.made[index]: tuple(map(len, self.tiling(index).chunks))
            for index in watched
            if index in self.made
        }
        made = needed_blocks(graph, keys, tiles)
        return {index: made[self.made[index]] for index in watched if index in self.made}


def _is_of_roots(layer: Layer) -> bool:
    """Whether a layer of the input graph has tasks without inputs only."""
    return isinstance(layer, (MaterializedLayer, Blockwise)) and all(
        type(task) is Task and not task.dependencies for task in layer.values()
    )
