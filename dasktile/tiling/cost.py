"""Exact bytes between workers, for every candidate and every pair of candidates.

Every worker receives the bytes that it needs minus those that it holds
(:mod:`dasktile.tiling.received`).  A piece counts once for each worker, however many of its tasks
read it.  A label that is summed across ``r`` workers costs ``r - 1`` partial results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dasktile.ir import Edge, Groups, Kind, Node, Role, are_cut
from dasktile.tiling.boxes import take
from dasktile.tiling.candidates import Space, Variable
from dasktile.tiling.grid import sizes
from dasktile.tiling.objective import effort
from dasktile.tiling.options import reduced_labels
from dasktile.tiling.overlaps import Overlaps
from dasktile.tiling.received import (
    Ints,
    Table,
    intersection,
    made_where_read,
    overcounts,
    received_elements,
)
from dasktile.tiling.settings import CostModel
from dasktile.tiling.solve.eliminate import Problem
from dasktile.tiling.windows import sent_share

#: Weight of one tile, in bytes, which breaks ties between tilings that move the same number of
#: bytes, and the most that all tiles of a program weigh.  All weights together are less than half
#: a byte, so that none outweighs a byte.
TIE, MOST_TIES = 2.0**-20, 2.0**-3

#: Weight of a byte of partial sums and of replicas where memory is scarce, which breaks ties, too,
#: and the most that they cost: of equal ways, the one with fewest of them is chosen.
EXTRA, MOST_EXTRA = 2.0**-40, 2.0**-4

#: Bytes of partial results that count as one tile, of those that one worker sums up (chosen: a task
#: takes about as long as a megabyte, and more of them cut partial results for many workers), and
#: the most bytes that they cost in a program where they break ties.
SUMMED, MOST_SUMMED = 2.0**21, 2.0**-3

#: Cost of making blocks where they are read, in bytes: a home is preferred where it is as good.
MOVING = 2.0**-24

#: Cost of results of which no worker has a part in their final chunks, in bytes, all together: of
#: equal ways, the one that most workers take part in is chosen.
IDLE = 2.0**-4


@dataclass
class Costs:
    """The cost tables of a space.

    Parameters
    ----------
    space
        Variables and candidates.
    scarce
        Whether ties go to tilings with fewest bytes of partial sums and replicas.
    own
        For every variable, the bytes of partial sums and of carries of scans that each of its
        candidates moves.
    tiles
        For every variable, the number of boxes into which each candidate divides the work.
    between
        For pairs of variables (earlier, later), bytes moved from one to the other.
    reads
        For the same pairs, positions of the later one's edges that read the array; the first for a
        kept array, and none where it is unknown which blocks are read.
    overcounts
        Whether elements may be counted that no worker receives, so that no bound follows.
    """

    space: Space
    scarce: bool = False
    own: list[Table] = field(default_factory=list)
    tiles: list[Table] = field(default_factory=list)
    between: dict[tuple[int, int], Table] = field(default_factory=dict)
    reads: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    overcounts: bool = False
    #: For pairs with a root, the same if its blocks are made where its own candidate has them.
    _at_home: dict[tuple[int, int], Table] = field(default_factory=dict)
    #: For every variable, the bytes of `own` that one worker receives at the most.
    _most_summed: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        # nodes of one shape share their boxes, so the identity of the boxes is a key
        tables: dict[object, Table] = {}
        overlaps = Overlaps()
        alike: dict[object, tuple[Table, Table, Table]] = {}
        outputs = set(self.space.program.outputs)
        for index, variable in enumerate(self.space.variables):
            node = self.space.program.nodes[variable.node]
            loose: dict[int, Table] = {}
            if variable.keep:
                self.own.append(self._idle(variable))
                self.tiles.append(np.zeros(len(variable.options)))
                self._most_summed.append(np.zeros(len(variable.options)))
                reads = {self._source_of(variable): list(range(len(variable.needs)))}
            else:
                shape = (id(variable.work), id(variable.held), tuple(map(id, variable.followed)),
                         node.size, node.partial, node.labels, node.out, node.groups)  # fmt: skip
                if shape not in alike:
                    pieces = self._pieces(variable)
                    followed = variable.followed
                    partials = [blocks.partials * node.partial for blocks in followed]
                    tiles = [float(blocks.work.owned.sum()) for blocks in followed]
                    own = np.append(_partial_bytes(node, variable, pieces), partials)
                    alike[shape] = (
                        own,
                        np.append(self._tiles(variable, pieces), tiles),
                        _most_summed(variable, own),
                    )
                for tables_of, table in zip(
                    (self.own, self.tiles, self._most_summed), alike[shape], strict=True
                ):
                    tables_of.append(table)
                reads = {}
                for position, (edge, need) in enumerate(
                    zip(node.edges, variable.needs, strict=True)
                ):
                    if need is not None:
                        reads.setdefault(self.space.source(edge.producer), []).append(position)
                        continue
                    # It is unknown which blocks are read, and so is what that moves.  The array
                    # must be brought into the chunks of the edge, which has a least cost.
                    source = self.space.source(edge.producer)
                    handing = self._handing(source, edge)[:, None]
                    loose[source] = loose.get(source, 0.0) + handing
            for source, edges in reads.items():
                producer = self.space.variables[source]
                made = self.space.program.nodes[producer.node]
                needs = [
                    need for position in edges if (need := variable.needs[position]) is not None
                ]
                if variable.keep:
                    edges = [0]  # a node that follows an array has no second sharding
                blocks = [
                    [option_blocks.needs[position] for position in edges]
                    for option_blocks in variable.followed
                ]
                held = [option_blocks.held for option_blocks in producer.followed]
                boxes: tuple[object, ...]
                if len(needs) == 1 and producer.held_second is None and made.windows == 1:
                    boxes = overlaps.content(producer.held, needs[0])
                else:
                    boxes = (id(producer.held), id(producer.held_second), *map(id, needs))
                windows = made.edges[0].axes if made.windows > 1 else ()
                key = (boxes, made.itemsize, windows, variable.final,
                       tuple(id(need) for row in blocks for need in row),
                       tuple(map(id, held)))  # fmt: skip
                if key not in tables:
                    self.overcounts |= overcounts(needs, self._model)
                    elements = received_elements(
                        producer.held,
                        held,
                        needs,
                        blocks,
                        self._model,
                        producer.held_second,
                        overlaps,
                    )
                    share = sent_share(made, producer.held, held, needs, blocks)
                    tables[key] = elements * share * made.itemsize
                    if variable.final is not None:
                        for row, have in enumerate(held, len(producer.held)):
                            if are_cut((bound.tolist() for bound in have.edges), variable.final):
                                tables[key][row] = 0.0
                self.between[source, index] = tables[key]
                self.reads[source, index] = edges
                if made.root and not producer.keep and producer.node not in outputs:
                    self._at_home[source, index] = tables[key]
                    least = self._least_saved(made)
                    moving = (key, tuple(map(id, needs)), made.chunks, least)
                    if moving not in tables:
                        elements = made_where_read(made.chunks, needs, blocks, self._model)
                        moved = elements * made.itemsize
                        fewer = moved + least < tables[key]
                        tables[moving] = np.where(fewer, moved + MOVING, tables[key])
                    self.between[source, index] = tables[moving]
            for source, handing in loose.items():
                columns = np.zeros((1, len(variable.options)))
                known = self.between.get((source, index), 0.0)
                self.between[source, index] = known + handing + columns
                self.reads.setdefault((source, index), [])

    def where_scarce(self) -> Costs:
        """The same tables where memory is scarce."""
        other = copy(self)
        other.scarce = True
        return other

    def _idle(self, variable: Variable) -> Table:
        """Costs of workers without a part of a large result in its final chunks."""
        if variable.final is None or variable.node in self.space.small:
            return np.zeros(len(variable.options))
        share = IDLE / len(self.space.program.outputs)
        # of what is in memory, workers without a block are idle in any case
        followed = np.zeros(len(variable.followed))
        return np.append(share * (~variable.held.active).mean(axis=1), followed)

    def _source_of(self, variable: Variable) -> int:
        """The variable that a kept array, or an output in its final chunks, is made from."""
        if variable.final is not None:
            return self.space.source(variable.node)
        return self.space.made[variable.node]

    @property
    def _model(self) -> CostModel:
        return self.space.settings.model

    def problem(self, tile_weight: float = TIE) -> Problem:
        """The problem to minimise: bytes moved plus `tile_weight` for every tile.

        Partial results cost extra: the bytes that one worker sums up at the most count as tiles,
        `SUMMED` bytes each.
        """
        summed = self._most_summed
        if tile_weight <= TIE:
            most = sum(float(each.max(initial=0.0)) for each in self.tiles)
            tile_weight = min(tile_weight, MOST_TIES / max(1.0, most))
        weight = tile_weight / SUMMED
        if tile_weight <= TIE:
            every = sum(float(each.max(initial=0.0)) for each in summed)
            weight = min(weight, MOST_SUMMED / max(1.0, every))
        unary = [
            own + tile_weight * tiles + weight * most
            for own, tiles, most in zip(self.own, self.tiles, summed, strict=True)
        ]
        if self.scarce:
            workers = self.space.mesh.workers
            unary = [
                cost + np.minimum(EXTRA * (own + workers * replicas), MOST_EXTRA / len(unary))
                for cost, own, replicas in zip(unary, self.own, self.replica_bytes(), strict=True)
            ]
        return Problem(unary, self.between)

    def moved(self, states: Sequence[int]) -> tuple[int, ...]:
        """Bytes moved for every node under an assignment, without those for final chunks."""
        by_node = self._received(states, is_final=False)
        for index, variable in enumerate(self.space.variables):
            if variable.final is None:
                by_node[variable.node] += float(self.own[index][states[index]])
        return _whole(by_node)

    def handed(self, states: Sequence[int]) -> tuple[int, ...]:
        """Bytes moved to bring every output into its final chunks."""
        return _whole(self._received(states, is_final=True))

    def _received(self, states: Sequence[int], is_final: bool) -> list[float]:
        """For every node, the bytes received for variables of final chunks, or for all others."""
        by_node = [0.0] * len(self.space.program.nodes)
        for (source, index), table in self.between.items():
            variable = self.space.variables[index]
            if (variable.final is not None) == is_final:
                by_node[variable.node] += float(table[states[source], states[index]])
        return by_node

    def moving(self, states: Sequence[int]) -> frozenset[int]:
        """Roots whose blocks are made where they are read, since that moves fewer bytes."""
        return frozenset(
            self.space.variables[source].node
            for source, index in self._at_home
            if self.is_moving(source, index, states)
        )

    def is_moving(self, source: int, index: int, states: Sequence[int]) -> bool:
        """Whether blocks of a variable are made where another one reads them."""
        home = self._at_home.get((source, index))
        at = states[source], states[index]
        return home is not None and bool(self.between[source, index][at] < home[at])

    def replica_bytes(self) -> list[Table]:
        """For every variable, bytes that a worker holds beyond its share of the array."""
        extras = []
        workers = self.space.mesh.workers
        for variable in self.space.variables:
            extra = np.zeros(len(variable.options))
            if variable.keep:
                node = self.space.program.nodes[variable.node]
                volume = variable.held.volume()
                if variable.held_second is not None:
                    both = intersection(variable.held, variable.held_second)
                    volume = volume + variable.held_second.volume() - both.volume()
                boxes = variable.options[: len(volume)]
                several = [option.is_replicated for option in boxes]
                share = node.size / workers
                more = np.maximum(volume.max(axis=1, initial=0.0) - share, 0.0) * node.itemsize
                extra[: len(volume)] = np.where(several, more, 0.0)
            extras.append(extra)
        return extras

    def loads(self, states: Sequence[int]) -> npt.NDArray[np.float64]:
        """Operations of every worker for every node under an assignment: (nodes, workers)."""
        loads = np.zeros((len(self.space.program.nodes), self.space.mesh.workers))
        #: Elements of every worker, by the boxes and the candidate.
        volumes: dict[tuple[int, int], Table] = {}
        for index, variable in enumerate(self.space.variables):
            if not variable.keep:
                node = self.space.program.nodes[variable.node]
                boxes = len(variable.options) - len(variable.followed)
                if states[index] >= boxes:
                    volume = variable.followed[states[index] - boxes].work.volume()
                else:
                    key = id(variable.work), states[index]
                    if key not in volumes:
                        chosen = np.array([states[index]])
                        volumes[key] = take(variable.work, chosen).volume()[0]
                    volume = volumes[key]
                loads[variable.node] += volume * effort(node, self._model)
        return loads

    def _least_saved(self, root: Node) -> float:
        """Bytes that are saved at least where a stored array keeps its chunks to be read by them.

        Other tiles of it are read as they are, while blocks of few bytes have to be joined.
        """
        if root.kind is Kind.OPAQUE or not self.space.axes.free:
            return 0.0
        return self._model.kept_to_be_read * root.nbytes

    def _handing(self, source: int, edge: Edge) -> Table:
        """Least bytes that bring an array into the chunks of an edge."""
        producer = self.space.variables[source]
        made = self.space.program.nodes[producer.node]
        _, handed = self.space.placements(edge.chunks or ())
        ways = received_elements(
            producer.held, [option.held for option in producer.followed], [handed], [], self._model
        )
        least: Table = ways.min(axis=1) * made.itemsize / made.windows
        return least

    def _tiles(self, variable: Variable, pieces: Sequence[Ints]) -> Table:
        """Boxes into which each candidate divides the work, and the result."""
        node = self.space.program.nodes[variable.node]
        scattered, of = variable.boxed.scattered(reduced_labels(node.labels))
        final = np.array([self.space.mesh.parts(axes) for axes in scattered], dtype=np.int64)[of]
        for axis in node.out:
            if axis.label is not None:
                final = final * pieces[axis.label]
        return (_product(pieces, len(of)) + final).astype(np.float64)

    def _pieces(self, variable: Variable) -> list[Ints]:
        """For every label, the pieces into which each candidate that is a box cuts it."""
        labels = self.space.program.nodes[variable.node].labels
        grids = self.space.axes.grids[variable.node]
        pieces = []
        for position, (label, grid) in enumerate(zip(labels, grids, strict=True)):
            cuts, of = variable.boxed.cutting(position)
            counts = [
                len(sizes(label.size, self.space.mesh.parts(axes), grid)) if axes else 1
                for axes in cuts
            ]
            pieces.append(np.array(counts, dtype=np.int64)[of])
        return pieces


def _whole(moved: Sequence[float]) -> tuple[int, ...]:
    """Bytes without what breaks ties."""
    return tuple(math.ceil(each - 1e-6) for each in moved)


def _product(pieces: Sequence[Ints], candidates: int) -> Ints:
    total = np.ones(candidates, dtype=np.int64)
    for counts in pieces:
        total = total * counts
    return total


def _partial_bytes(node: Node, variable: Variable, pieces: Sequence[Ints]) -> Table:
    """Bytes of partial results and carries that each candidate sends between workers."""
    if node.groups is not None and node.groups.count:
        return _group_elements(node.groups, variable) * node.partial
    candidates = len(variable.options) - len(variable.followed)
    total = np.zeros(candidates)
    partials = np.ones(candidates, dtype=np.int64)
    for label, counts in zip(node.labels, pieces, strict=True):
        if label.role is Role.REDUCE:
            partials = partials * counts
        elif label.role is Role.SCAN and label.size:
            total += (counts - 1) * node.size / label.size * node.partial
    return total + (partials - 1) * node.size * node.partial


def _most_summed(variable: Variable, own: Table) -> Table:
    """Of the bytes of partial results, those that one worker receives at the most."""
    if not own.any():
        return np.zeros(len(own))
    held = np.array([
        *variable.held.volume(),
        *(blocks.held.volume() for blocks in variable.followed),
    ])  # fmt: skip
    most: Table = own * held.max(axis=1) / np.maximum(held.sum(axis=1), 1)
    return most


def _group_elements(groups: Groups, variable: Variable) -> Table:
    """Elements of partial results that each candidate sends, with the groups of their tile only."""
    work, held = variable.work, variable.held
    lengths = (work.hi - work.lo)[:, :, :-1]
    lanes = np.where(work.active, np.prod(lengths, axis=2, dtype=np.float64), 0.0)
    lo, hi = work.lo[:, :, -1], work.hi[:, :, -1]
    ranges, of = np.unique(np.stack([lo, hi], axis=-1).reshape(-1, 2), axis=0, return_inverse=True)
    counts = np.array([groups.within(*each) for each in ranges.tolist()], dtype=np.float64)
    found = counts[of.reshape(-1)].reshape(lo.shape)
    # what a worker holds of the result is not sent to it by itself
    elements: Table = (found * (lanes - held.volume() / groups.count)).sum(axis=1)
    return np.maximum(elements, 0.0)
