"""Writing the arrays of a plan, one after the other, as layers of a dask graph.

Every block of a node needs a window along each axis of every array it reads.  Where these windows
are the blocks of the array, the node reads them directly.  Elsewhere a layer reshards the array
(:mod:`dasktile.lower.retile`).  Then the writer of the node's kernel writes its tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, Task
from dasktile.capture.base import Verbatim
from dasktile.capture.culling import Needed, follows_effects, needed_blocks
from dasktile.capture.references import head_of
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.sources import Create
from dasktile.capture.rules.stencils import Sliding
from dasktile.capture.rules.views import Gather
from dasktile.ir import (
    Chunks,
    Edge,
    Follow,
    Kind,
    Node,
    Tiling,
    Where,
    hand_over,
)
from dasktile.lower.anchored import anchor_tasks
from dasktile.lower.emit import LoweringContext, emit, home_position, work_at
from dasktile.lower.fuse import fuse
from dasktile.lower.fused_graph import Fused
from dasktile.lower.kernels import assignments, blocks, einsums, folds, verbatim, views
from dasktile.lower.kernels import contraction as contract
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import new_layer_name, of_sizes
from dasktile.lower.reshard import Windows, block_windows, edge_windows, joins, normal
from dasktile.lower.retile import copy_blocks, fetch_tiles, is_joined, source_of
from dasktile.lower.window_views import WindowView
from dasktile.lower.written import Copies, Source, WrittenArrays, wanted_keys
from dasktile.schedule.placement import Placement

#: Modules that register the writers of kernels.
_WRITERS = (assignments, blocks, contract, einsums, folds, verbatim, views)


@dataclass
class ArrayWriter(WrittenArrays):
    """The part of the graph that is written so far, and how the rest is written."""

    #: For every node, bytes that workers will receive so that it can run.
    predicted: Sequence[int] = ()
    #: Names of layers whose tasks Dask does not fuse with their readers.
    anchored: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.effects = follows_effects(self.captured)

    def carry(self, index: int) -> None:
        """Take over the layer of a node unchanged."""
        node = self.node(index)
        if self.tiling(index).chunks != node.chunks:
            raise ValueError(f"{node.name!r} must keep its chunks {node.chunks}")
        self.hold(index, node.name)

    @cached_property
    def homes(self) -> dict[str, Placement]:
        """By the name of an array of the input graph, where the plan holds its blocks."""
        homes = {}
        for node, tiling in zip(self.captured.program.nodes, self.tiled.tilings, strict=True):
            at = self.placement(tiling.held_at, tiling.held_at)
            if at is not None:
                homes[node.name] = at
        return homes

    def write(self, index: int) -> None:
        """Write one node for its tiling."""
        node, tiling = self.node(index), self.tiling(index)
        kernel = self.captured.kernels[index]
        read = tuple(source_of(self, edge.producer).name for edge in node.edges)
        # a layer that holds extended tiles has other values, and so another name, than one that
        # holds the windows
        reads_views = any(layer in self.views for layer in read)
        viewed = (isinstance(kernel, Sliding) or reads_views) and self.is_seen_by_readers(index)
        name = new_layer_name(
            node.op or node.kind.value,
            node.name if not node.copy else (node.name, node.copy),
            *(("extended",) if viewed else ()),
            of_sizes(tiling.cuts, tiling.chunks),
            self.tiled.mesh,
            read,
            placement=self.placement(
                tiling.held_at, tiling.held_at, self.predicted[index] if self.predicted else 0
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
            return fetch_tiles(self, node.edges[edge].producer, normal(wanted), decided)

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
            self.tiled.planned_for,
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
        if self.captured.divided:
            for head, written in emitted.heads.items():
                self.heads.setdefault(head, set()).add(written)
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
            return fetch_tiles(self, edge.producer, block_windows(edge.chunks), where), False
        wanted = edge_windows(edge, tiling, self.node(edge.producer).shape)
        if self.reads_copies(edge, node, kernel) and self.tiled.mesh and tiling.work_at is not None:
            layer = self.own_copies(edge, tiling, wanted)
            if layer is not None:
                return layer, True
        name = fetch_tiles(self, edge.producer, wanted, where)
        if self.effects[edge.producer] and not _has_one_reader(edge, tiling):
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
        source = source_of(self, index)
        made = source
        if self.tiled.replicas(index) is not None and source.copies is None:
            # copies are joined from the tiles themselves, not from a joined one
            made = Source(self.made[index], self.tiling(index).chunks)
        if source.copies is None and (
            _has_one_reader(edge, tiling)
            or not is_joined(self, index)
            or not joins(wanted, made.chunks)
        ):
            return None
        copies = self.copies(edge, tiling)
        alone = all(len(places) == 1 for places in copies.values())
        if source.copies is not None:
            have = source.copies
            if wanted == block_windows(source.chunks) and all(
                set(places) <= set(have[block]) for block, places in copies.items()
            ):
                return source.name
            needed = set().union(*copies.values())
            if not alone and all(needed <= set(places) for places in have.values()):
                return copy_blocks(self, index, wanted, source, copies)
        if alone or not is_joined(self, index):
            return None
        return copy_blocks(self, index, wanted, made, copies)

    def copies(self, edge: Edge, tiling: Tiling) -> Copies:
        """For every block along an edge, the places in the mesh that need it."""
        needed: dict[tuple[int, ...], set[int]] = {}
        position = home_position(self.tiled.mesh, work_at(tiling), self.leader(tiling))
        for full in product(*(range(len(sizes)) for sizes in tiling.cuts)):
            block = tuple(0 if axis.label is None else full[axis.label] for axis in edge.axes)
            needed.setdefault(block, set()).add(position(full))
        return {block: tuple(sorted(places)) for block, places in needed.items()}

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
        if work is None or held is None:
            return None
        counts = tuple(map(len, chunks))
        if all(axis.label is None for axis in edge.axes):
            # block for block is the likely reading where no axis has a label
            return held if counts == tuple(map(len, tiling.chunks)) else None
        places = [
            None if axis.label is None or len(tiling.cuts[axis.label]) != count else axis.label
            for axis, count in zip(edge.axes, counts, strict=True)
        ]
        if isinstance(work, Follow) and not set(work.dims) <= {*places, None}:
            return None
        return work.seen(places)

    def output(self, index: int, chunks: Chunks | None, name: str | None) -> tuple[str, Chunks]:
        """The layer that holds an output, with the name and the chunks that it must have."""
        chunks = chunks or self.tiling(index).chunks
        wanted = block_windows(chunks)
        if name is None:
            return self.handed(index, chunks, wanted), chunks
        if name in self.layers:
            return name, chunks
        # The home of a task is in the name of its layer: fusion keeps both names.
        own = self.handed(index, chunks, wanted)
        every = product(*(range(len(sizes)) for sizes in chunks))
        tasks = {(name, *block): Alias((name, *block), (own, *block)) for block in every}
        self.add(name, MaterializedLayer(tasks), {own})
        self.named[name] = own
        self.describe(name, index, chunks)
        return name, chunks

    def handed(self, index: int, chunks: Chunks, wanted: Windows) -> str:
        """The layer that holds a node's array in final chunks, each made on a decided worker."""
        is_created = isinstance(self.captured.kernels[index], Create)
        if is_created or chunks == source_of(self, index).chunks:
            return fetch_tiles(self, index, wanted)
        found = hand_over(self.tiled, index, chunks)
        if found is None:
            return fetch_tiles(self, index, wanted)
        predicted = found.elements * self.node(index).itemsize
        return fetch_tiles(self, index, wanted, found.where, predicted)

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
        # of others, fusion finds out that all their tasks are needed
        only_needed = self.tiled.ranges is not None
        return fuse(graph.layers, graph.dependencies, written | roots, outputs, limits, only_needed)

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


def _is_slice(kernel: Any, node: Node) -> bool:
    """Whether neighbouring tiles are neighbours in the input, too, as those of ``x[2:9]`` are.

    Only then is the halo of extended tiles what follows them: not in a concatenation.
    """
    return isinstance(kernel, Gather) and all(
        axis.step == 1 for edge in node.edges for axis in edge.axes
    )


def _has_one_reader(edge: Edge, tiling: Tiling) -> bool:
    """Whether every block along an edge is needed for one block of the reader only."""
    read = {axis.label for axis in edge.axes}
    return all(len(cuts) == 1 for label, cuts in enumerate(tiling.cuts) if label not in read)


def _is_of_roots(layer: Layer) -> bool:
    """Whether a layer of the input graph has tasks without inputs only."""
    return isinstance(layer, (MaterializedLayer, Blockwise)) and all(
        type(task) is Task and not task.dependencies for task in layer.values()
    )
