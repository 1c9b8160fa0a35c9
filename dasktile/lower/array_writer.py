"""Writing the arrays of a plan, one after the other, as layers of a dask graph.

Every block of a node needs a window along each axis of every array it reads.  Where these windows
are the blocks of the array, the node reads them directly.  Elsewhere a layer reshards the array; it
is written once for all readers that need the same windows.  Then the writer of the node's kernel
writes its tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, Task, getitem
from dasktile.capture.base import OF_VIEWS, Verbatim
from dasktile.capture.corrections import has_wrong_chunk_type
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
    Sharding,
    Tiling,
    Where,
    by_position,
    hand_over,
    windows,
)
from dasktile.lower.anchored import anchor_tasks
from dasktile.lower.block_groups import block_groups
from dasktile.lower.emit import (
    LoweringContext,
    emit,
    home_position,
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
from dasktile.lower.window_views import WindowView, viewing
from dasktile.lower.written import WrittenArrays, wanted_keys
from dasktile.schedule.placement import Placement

#: For every block, the places in the mesh that need it.
Copies = dict[tuple[int, ...], tuple[int, ...]]

#: Modules that register the writers of kernels.
_WRITERS = (assignments, blocks, contract, einsums, folds, verbatim, views)


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
class ArrayWriter(WrittenArrays):
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
            where is not None
            and place_of is None
            and not joins(wanted, chunks)
            and wanted != normal(block_windows(chunks))
        ):
            # every block is cut from one block, on the worker that has it or a copy of it
            where = where if _covers(self.tiled.replicas(index), where) else None
        at = self.placement(where, where, predicted)
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
        name = new_layer_name(JOIN, token, placement=self.placement(where, Sharding(held)))
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
            at = self.placement(tiling.held_at, tiling.held_at)
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


def _is_of_roots(layer: Layer) -> bool:
    """Whether a layer of the input graph has tasks without inputs only."""
    return isinstance(layer, (MaterializedLayer, Blockwise)) and all(
        type(task) is Task and not task.dependencies for task in layer.values()
    )
