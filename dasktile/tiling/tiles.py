"""Costs of the second level: the chunks, memory and tasks of a node cut into given parts.

Nodes that are cut differently need tasks that cut and join tiles between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from dasktile.ir import AxisMap, Chunks, Edge, Follow, Kind, Node, Role, bounds
from dasktile.tiling.candidates import Space
from dasktile.tiling.conversion import Conversion, Conversions, Table
from dasktile.tiling.grid import sizes
from dasktile.tiling.local_choices import Choice, Parts
from dasktile.tiling.objective import Objective, effort
from dasktile.tiling.options import reduced_labels
from dasktile.tiling.reads import Read
from dasktile.tiling.settings import Settings


@dataclass(frozen=True, slots=True)
class Offer:
    """The part counts that a choice may have, with the cost and the chunks of each.

    Parameters
    ----------
    parts
        Part counts.
    unary
        Cost of each by itself, in bytes.
    chunks, cuts
        Chunks of the array, and chunk sizes of the labels, for each.
    """

    parts: tuple[Parts, ...]
    unary: np.ndarray
    chunks: tuple[Chunks, ...]
    cuts: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class LocalCosts:
    """Chunks, working sets and costs of a choice for given numbers of parts.

    Parameters
    ----------
    space, settings
        The program with the candidates of the first level, and constants.
    memory_limit
        Bytes that one task's tiles and result may take, or None.
    threads
        Tasks that a worker runs at once.
    retile
        False where the input's own chunks are priced and not changed.
    placed
        True where tasks run on the workers of the plan.
    conversions
        Conversions that were counted for the same program.
    """

    space: Space
    settings: Settings
    memory_limit: int | None
    threads: int
    retile: bool
    placed: bool = False
    conversions: Conversions = field(default_factory=Conversions, repr=False, compare=False)
    #: Chunks that were asked for, by the family and the parts: each is asked for several times.
    _chunks: dict[tuple[int, Parts, Parts], Chunks] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    #: The same for working sets.
    _working_sets: dict[tuple[int, Parts, Parts], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def objective(self) -> Objective:
        """What tasks, lost time and memory cost."""
        return Objective(self.settings, self.threads)

    @property
    def shared_read(self) -> float:
        """Share of an array that counts as moved again for each further tile that reads it."""
        model = self.settings.model
        return model.shared_read_placed if self.placed else model.shared_read

    @property
    def limit(self) -> int:
        """Bytes that a task should not exceed."""
        largest = self.settings.max_task
        return largest if self.memory_limit is None else min(self.memory_limit, largest)

    def common(self, node: Node) -> set[int]:
        """Labels of all large inputs: cutting them makes no two tiles read the same part."""
        every = set(range(len(node.labels)))
        for edge in node.edges:
            large = self.space.program.nodes[edge.producer].nbytes >= self.settings.min_tile
            if large:
                every &= {axis.label for axis in edge.axes if axis.label is not None}
        return every or set(range(len(node.labels)))

    def target(self, node: Node) -> int:
        """Number of tiles that each worker should have: 1 if they would be too small otherwise.

        One is received while another is computed; many keep all threads busy.  Small tiles of a
        function of the user may do so as well.
        """
        most = max(
            [node.nbytes] + [self.space.program.nodes[edge.producer].nbytes for edge in node.edges]
        )
        each = most / self.space.mesh.workers
        tiles = max(self.settings.tiles_per_worker, self.threads)
        least = min(self.threads, node.size) if node.user_function else 1
        return max(least, min(tiles, int(each // self.settings.min_tile)))

    def idle(self, choice: Choice, parts: Parts) -> float:
        """Cost of the time that a node takes longer than if all threads of a worker were busy."""
        threads = self.threads
        busy = min(self.parallel(choice, parts), threads)
        node = self.space.program.nodes[choice.node]
        work = math.prod(choice.label_sizes) * effort(node, self.settings.model)
        each = work / self.space.mesh.workers
        return self.objective.lost(each) * (threads / busy - 1)

    def parallel(self, choice: Choice, parts: Parts) -> float:
        """Number of tiles of one worker that do not wait for each other.

        A contraction accumulates its tiles along a summed label, one after the other.
        """
        node = self.space.program.nodes[choice.node]
        summed = [node.kind is Kind.CONTRACT and label.role is Role.REDUCE for label in node.labels]
        return math.prod(
            part / held
            for part, held, waits in zip(parts, choice.mesh_parts, summed, strict=True)
            if not waits
        )

    def cuts(self, choice: Choice, label: int, parts: int) -> tuple[int, ...]:
        """Chunk sizes of a label cut into a number of parts."""
        fixed, own = choice.fixed[label], choice.own[label]
        if fixed is not None:
            return fixed
        if own is not None and parts == len(own):
            return own
        return sizes(choice.label_sizes[label], parts, choice.grids[label])

    def offer(self, choice: Choice, counts: Sequence[Parts]) -> Offer:
        """The costs and the cuts of some part counts."""
        return Offer(
            tuple(counts),
            np.array([self.unary(choice, parts) for parts in counts]),
            tuple(self.chunks(choice, parts) for parts in counts),
            tuple(
                tuple(self.cuts(choice, label, count) for label, count in enumerate(parts))
                for parts in counts
            ),
        )

    def unary(self, choice: Choice, parts: Parts) -> float:
        """Cost of a choice by itself, in bytes: tasks, shared reads, lack of overlap, memory."""
        if choice.keep:
            return 0.0
        node = self.space.program.nodes[choice.node]
        workers = self.space.mesh.workers
        cost = self.tasks(choice, parts) * self.objective.task
        if self.retile:
            cost += self.shared_read * self.shared(choice, parts)
            target = self.target(node)
            each = math.prod(parts) / math.prod(choice.mesh_parts)
            missing = max(target - each, min(target, self.threads) - self.parallel(choice, parts))
            if missing > 0:
                every = self.settings.model.missing_tile * workers * missing
                cost += every * self.objective.task
            cost += self.idle(choice, parts)
        if self.retile and not node.pinned:
            need = self.working_set(choice, parts)
            cost += float(self.objective.excess(need, self.limit))
        return cost

    def conversion(
        self, choice: Choice, read: Read, made: Offer, used: Offer
    ) -> tuple[Conversion, Table]:
        """What turns a producer's tiles into those that its reader needs, and its cost in bytes.

        The cost is negative where the producer's tasks are fused into those of the reader.

        Parameters
        ----------
        choice, read
            The reader, and its read.
        made, used
            The offers of the producer and of the reader.
        """
        edge = read.edge
        producer = self.space.program.nodes[edge.producer]
        between = self.conversions.tables(edge, producer.shape, made.chunks, used.cuts)
        tasks, joined = between
        if read.fused:
            saved = np.array([[block_count(chunks)] for chunks in made.chunks])
            tasks = np.where(joined == 0, -saved, tasks)
        objective = self.objective
        table = tasks * objective.task
        if self.retile:
            table += np.where(joined > 1, objective.joined_byte * producer.held_bytes, 0)
        # results in the chunks that they must have hold what these chunks hold
        if self.retile and choice.keep and not choice.final:
            need = np.array([self.joined(choice, parts) for parts in used.parts])
            table += np.where(joined > 1, objective.excess(need, self.limit), 0)
        joined_by_each = self.placed and self.space.program.nodes[choice.node].kind is Kind.CONTRACT
        if self._copies(choice, edge) > 1 and not joined_by_each:
            # one worker joins a tile and sends all of it to the others
            table += np.where(joined > 1, producer.held_bytes * (1 - 1 / np.maximum(joined, 1)), 0)
        return between, table

    def _copies(self, choice: Choice, edge: Edge) -> int:
        """Number of workers that need the same part of an array."""
        work = choice.option.work
        if isinstance(work, Follow):
            return 1
        used = {axis.label for axis in edge.axes}
        several = [
            axis for label, share in enumerate(work.dims) if label not in used for axis in share.by
        ]
        return self.space.mesh.parts((*several, *work.replicated))

    def joined(self, choice: Choice, parts: Parts) -> int:
        """Bytes of a task that joins a tile from pieces: the pieces and the tile."""
        node = self.space.program.nodes[choice.node]
        sizes = self.chunks(choice, parts)
        return 2 * node.itemsize * math.prod(max(cuts, default=0) for cuts in sizes)

    def shared(self, choice: Choice, parts: Parts) -> float:
        """Bytes that further tiles of one worker read again."""
        node = self.space.program.nodes[choice.node]
        total = 0.0
        for edge in node.edges:
            used = {axis.label for axis in edge.axes}
            extra_reads = math.prod(
                max(1.0, part / held)
                for label, (part, held) in enumerate(zip(parts, choice.mesh_parts, strict=True))
                if label not in used
            )
            total += self.space.program.nodes[edge.producer].nbytes * (extra_reads - 1)
        return total

    def tasks(self, choice: Choice, parts: Parts) -> float:
        """Number of tasks that run a node's own operation."""
        node = self.space.program.nodes[choice.node]
        blocks = [len(self.cuts(choice, label, count)) for label, count in enumerate(parts)]
        every = float(math.prod(blocks))
        reduced = math.prod(
            count for count, label in zip(blocks, node.labels, strict=True)
            if label.role is Role.REDUCE
        )  # fmt: skip
        tiles = math.prod(map(len, self.chunks(choice, parts)))
        if node.kind is Kind.CONTRACT and not self.retile:
            # stock dask keeps every partial product and sums them in a tree of its own
            sums = every / self.settings.model.stock_fan_in
            return every + (sums + tiles if reduced > 1 else tiles)
        if node.kind is Kind.CONTRACT:
            partials = math.prod(
                count for count, label in zip(choice.mesh_parts, node.labels, strict=True)
                if label.role is Role.REDUCE
            )  # fmt: skip
            scattered = choice.option.scattered(reduced_labels(node.labels))
            return every + (tiles * (1 + (partials if scattered else 0)) if partials > 1 else 0)
        if node.kind is Kind.FOLD:
            return every + tiles * max(
                1, math.ceil((reduced - 1) / (self.settings.model.fan_in - 1))
            )
        if node.kind is Kind.SCAN:
            return 3 * every
        return every

    def working_set(self, choice: Choice, parts: Parts) -> int:
        """Bytes of the tiles that one task reads and writes.

        It is not known which chunks a task of an unchanged operation reads; one of each input is
        assumed.
        """
        return _kept(self._working_sets, choice, parts, self._new_working_set)

    def _new_working_set(self, choice: Choice, parts: Parts) -> int:
        node = self.space.program.nodes[choice.node]
        longest = [max(self.cuts(choice, label, count)) for label, count in enumerate(parts)]
        blocks = []
        for edge in node.edges:
            producer = self.space.program.nodes[edge.producer]
            sizes = producer.shape
            if node.kind is Kind.OPAQUE and edge.chunks is not None:
                sizes = tuple(max(cuts, default=0) for cuts in edge.chunks)
            spans = (
                _span(axis, longest, size) for axis, size in zip(edge.axes, sizes, strict=True)
            )
            blocks.append(math.prod(spans) * producer.itemsize)
        own = math.prod(
            size if axis.label is None else axis.width * longest[axis.label]
            for axis, size in zip(node.out, node.shape, strict=True)
        )
        if node.kind is Kind.VIEW:
            # a view reads as many bytes as it writes, from any number of arrays
            return 2 * own * node.itemsize
        # a tile that is joined from pieces is in memory twice for a moment
        return max(
            [sum(blocks) + own * node.itemsize, self.combined(choice, parts)]
            + [2 * block for block in blocks]
        )

    def combined(self, choice: Choice, parts: Parts) -> int:
        """Bytes of a task that combines partial results: the partials and the tile."""
        node = self.space.program.nodes[choice.node]
        if node.kind not in (Kind.CONTRACT, Kind.FOLD):
            return 0
        # products that a worker makes one after the other are accumulated
        counts = choice.mesh_parts if self.retile and node.kind is Kind.CONTRACT else parts
        partials = math.prod(
            len(self.cuts(choice, label, count))
            for label, count in enumerate(counts)
            if node.labels[label].role is Role.REDUCE
        )
        if partials < 2:
            return 0
        model = self.settings.model
        read = min(partials, model.fan_in if self.retile else model.stock_fan_in)
        tile = math.prod(max(cuts, default=0) for cuts in self.chunks(choice, parts))
        return math.ceil(tile * (read * node.partial + node.itemsize))

    def chunks(self, choice: Choice, parts: Parts) -> Chunks:
        """Chunks of the array that the node makes, or keeps for its readers."""
        return _kept(self._chunks, choice, parts, self._new_chunks)

    def _new_chunks(self, choice: Choice, parts: Parts) -> Chunks:
        cuts = [self.cuts(choice, label, count) for label, count in enumerate(parts)]
        if choice.keep:
            return tuple(cuts)
        node = self.space.program.nodes[choice.node]
        chunks: list[tuple[int, ...]] = []
        for column, (axis, size) in enumerate(zip(node.out, node.shape, strict=True)):
            if axis.label is None:
                chunks.append((size,))
                continue
            label_cuts = cuts[axis.label]
            scattered = self.space.mesh.parts(choice.option.scattering(column, axis.label))
            if self.retile and scattered > 1 and choice.fixed[axis.label] is None:
                mesh_cuts = choice.mesh_parts[axis.label] * scattered
                count = math.lcm(parts[axis.label], mesh_cuts)
                label_cuts = self.cuts(choice, axis.label, min(count, max(size, 1)))
                if not set(bounds(cuts[axis.label])) <= set(bounds(label_cuts)):
                    label_cuts = cuts[axis.label]
            width = axis.width
            chunks.append(label_cuts if width == 1 else tuple(width * cut for cut in label_cuts))
        return tuple(chunks)


_Found = TypeVar("_Found")


def _kept(
    table: dict[tuple[int, Parts, Parts], _Found],
    choice: Choice,
    parts: Parts,
    find: Callable[[Choice, Parts], _Found],
) -> _Found:
    """What was found before for choices of one family, or what is found now."""
    key = choice.family, choice.mesh_parts, parts
    known = table.get(key)
    if known is None:
        known = table[key] = find(choice, parts)
    return known


def block_count(chunks: Chunks) -> int:
    """Number of blocks of an array."""
    return math.prod(map(len, chunks))


def _span(axis: AxisMap, longest: Sequence[int], size: int) -> int:
    """Elements of an axis that the longest block of its label reads."""
    if axis.label is None:
        return size
    extent = longest[axis.label]
    if extent == 0:
        return 0
    if axis.width < abs(axis.step):
        return min(extent * axis.width, size)
    return min(abs(axis.step) * (extent - 1) + axis.width, size)
