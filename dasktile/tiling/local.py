"""The second level: the number of tiles into which each worker's share is cut.

The first level has fixed the bytes between workers.  The second level decides about memory (the
tiles and the result of a task must fit), overlap (a worker with several tiles receives one while it
computes another) and tasks (neighbours that cut an axis at different positions need tasks that cut
and join tiles).  Labels of one axis class have the same few part counts to choose from, each a
multiple of the one before, so that most neighbours agree and the cuts of the others nest.

:mod:`dasktile.tiling.local_choices` has what may be chosen, :mod:`dasktile.tiling.tiles` what it
costs.  Here the most parts of each axis class are found, for overlap and for memory, and then the
solver chooses among the part counts up to these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dasktile.ir import Chunks, Kind, Role, Sharding, Tiling, Where
from dasktile.report.formatting import format_excess, format_limit
from dasktile.tiling.block_places import place_result, place_work
from dasktile.tiling.candidates import Space
from dasktile.tiling.conversion import Conversion, Conversions, Table
from dasktile.tiling.local_choices import Choice, Parts, local_choices
from dasktile.tiling.reads import Read
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Problem, solve
from dasktile.tiling.tiles import LocalCosts, Offer, block_count


class MemoryLimitError(ValueError):
    """An operation does not fit the memory limit even in its smallest tiles.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> import numpy as np
    >>> x = da.from_array(np.ones((1000, 1000)), chunks=(100, 1000))
    >>> dasktile.optimize(da.fft.fft(x, axis=1), workers=2, memory_limit="10 KiB")
    Traceback (most recent call last):
    ...
    dasktile.tiling.local.MemoryLimitError: ...
    """


@dataclass(frozen=True, slots=True)
class LocalCuts:
    """The decision of the second level: a tiling for every node, kept chunks, and their cost.

    Parameters
    ----------
    tilings, kept, kept_at, final
        As in :class:`~dasktile.ir.TiledProgram`.
    tasks, peak, joined
        As in :class:`~dasktile.tiling.plan.Price`.
    """

    tilings: tuple[Tiling, ...]
    kept: dict[int, Chunks]
    kept_at: dict[int, Where]
    final: dict[tuple[int, Chunks], Where]
    tasks: tuple[int, ...]
    peak: tuple[int, ...]
    joined: tuple[int, ...]


@dataclass
class Splitter:
    """Chooses local cuts for the mesh tilings of the first level.

    Parameters
    ----------
    space, states, reads
        The variables of the first level, the chosen candidates, and the reads between them.
    settings
        Constants.
    memory_limit
        Bytes that one task's tiles and result may take, or None.
    threads
        Tasks that a worker runs at once.
    retile
        True to choose part counts; False to price the input's own chunks.
    placed
        True where tasks run on the workers of the plan.
    moving
        Roots whose blocks are made where they are read, in the chunks of the input graph.
    conversions
        Conversions that were counted for the same program.
    """

    space: Space
    states: Sequence[int]
    reads: Sequence[Read]
    settings: Settings
    memory_limit: int | None = None
    threads: int = 1
    retile: bool = True
    placed: bool = False
    moving: Collection[int] = ()
    conversions: Conversions = field(default_factory=Conversions)
    choices: list[Choice] = field(init=False)
    fine: dict[int, int] = field(default_factory=dict)
    costs: LocalCosts = field(init=False)

    def __post_init__(self) -> None:
        self.costs = LocalCosts(
            self.space,
            self.settings,
            self.memory_limit,
            self.threads,
            self.retile,
            self.placed,
            self.conversions,
        )
        self.choices = local_choices(self.space, self.states, self.retile, self.moving)

    def run(self) -> LocalCuts:
        """Choose the part counts of all variables.

        Raises
        ------
        MemoryLimitError
            If some node does not fit the memory limit in any tiles.
        """
        if self.retile:
            self._start()
            self._refine_for_overlap()
            self._refine_for_memory()
        shared: dict[object, Offer] = {}
        offers: list[Offer] = []
        for choice in self.choices:
            key = (choice.family, self._finest(choice))
            if key not in shared:
                shared[key] = self.costs.offer(choice, self._part_counts(choice))
            offers.append(shared[key])
        pairwise: dict[tuple[int, int], Table] = {}
        between: list[Conversion] = []
        #: Conversions with their costs, for reads that have these in common.
        alike: dict[tuple[int, int, int], tuple[Conversion, Table]] = {}
        for read in self.reads:
            made, used = offers[read.source], offers[read.reader]
            same = id(made), id(used), read.alike
            if same not in alike:
                alike[same] = self.costs.conversion(self.choices[read.reader], read, made, used)
            conversion, table = alike[same]
            between.append(conversion)
            pair = read.source, read.reader
            pairwise[pair] = table + pairwise[pair] if pair in pairwise else table
        unary = [offer.unary for offer in offers]
        solution = solve(
            Problem(unary, pairwise), self.settings.width_budget, limits=self.settings.solver
        )
        return self._outcome(solution.states, offers, between)

    # -- part counts -----------------------------------------------------------

    def _start(self) -> None:
        """Set the part counts of every class to the coarsest refinement of all mesh cuts."""
        for choice in self.choices:
            for klass, parts, fixed in zip(
                choice.classes, choice.mesh_parts, choice.fixed, strict=True
            ):
                if klass >= 0 and fixed is None:
                    self.fine[klass] = math.lcm(self.fine.get(klass, 1), parts)

    def _refine_for_overlap(self) -> None:
        """Double part counts until every worker has the targeted number of tiles."""
        workers = self.space.mesh.workers
        for choice in self.choices:
            node = self.space.program.nodes[choice.node]
            target = self.costs.target(node)
            if choice.keep or target == 1:
                continue
            self._refine_for_threads(choice)
            common = self.costs.common(node)
            while True:
                parts = self._finest(choice)
                each = math.prod(
                    part / held
                    for label, (part, held) in enumerate(zip(parts, choice.mesh_parts, strict=True))
                    if label in common
                )
                if (
                    each >= target
                    or math.prod(parts) >= self.settings.local.many_tiles * target * workers
                ):
                    break
                weights = [
                    float(size) if label in common else 0.0
                    for label, size in enumerate(choice.label_sizes)
                ]
                widest = self._widest(choice, parts, weights)
                if widest is None:
                    break
                self.fine[choice.classes[widest]] *= 2

    def _refine_for_threads(self, choice: Choice) -> None:
        """Double part counts until all threads have tiles that do not wait for each other."""
        node = self.space.program.nodes[choice.node]
        if node.kind is not Kind.CONTRACT:
            return  # all of its tiles are independent
        while self.costs.parallel(choice, parts := self._finest(choice)) < self.threads:
            weights = [
                0.0 if label.role is Role.REDUCE else size / part
                for label, size, part in zip(node.labels, choice.label_sizes, parts, strict=True)
            ]
            widest = self._widest(choice, parts, weights)
            if widest is None:
                return
            self.fine[choice.classes[widest]] *= 2

    def _refine_for_memory(self) -> None:
        """Double part counts until every task fits the memory limit."""
        limit = self.costs.limit
        for choice in self.choices:
            if choice.keep:
                continue
            node = self.space.program.nodes[choice.node]
            while True:
                parts = self._finest(choice)
                need = self.costs.working_set(choice, parts)
                if need <= limit:
                    break
                weights = [
                    need - self.costs.working_set(choice, _doubled(parts, label))
                    for label in range(len(parts))
                ]
                widest = self._widest(choice, parts, [float(weight) for weight in weights])
                if widest is None:
                    # pinned tiles, stored chunks and blocks that are sent cannot be made smaller
                    if self.memory_limit is None or need <= self.memory_limit:
                        break
                    if node.pinned or node.stored is not None or choice.node in self.moving:
                        break
                    raise MemoryLimitError(
                        f"memory_limit of {format_limit(self.memory_limit)} is below one tile:"
                        f" {node.op} of shape {node.shape} needs"
                        f" {format_excess(need, self.memory_limit)} for its smallest tiles"
                    )
                self.fine[choice.classes[widest]] *= 2

    def _widest(self, choice: Choice, parts: Parts, weights: list[float]) -> int | None:
        """The label of the largest weight that can be cut further, or None.

        Of labels of equal weight, those that the mesh cuts come first.
        """
        able = [
            label
            for label, size in enumerate(choice.label_sizes)
            if choice.fixed[label] is None and parts[label] < size and weights[label] > 0
            and len(self.costs.cuts(choice, label, parts[label] * 2))
            > len(self.costs.cuts(choice, label, parts[label]))
        ]  # fmt: skip
        if not able:
            return None

        def weight(label: int) -> float:
            if not self.settings.scarce or not self._is_whole(choice.classes[label]):
                return weights[label]
            return weights[label] * self.settings.local.whole_share

        return max(able, key=lambda label: (weight(label), parts[label], -label))

    def _is_whole(self, klass: int) -> bool:
        """Whether blocks of some input stay whole if other arrays are cut further along an axis.

        A block stays in memory until all tiles that are cut from it have been made.
        """
        for choice, label in self._made.get(klass, ()):
            parts = min(2 * self.fine.get(klass, 1), choice.label_sizes[label])
            if len(self.costs.cuts(choice, label, parts)) < parts:
                return True
        return False

    @cached_property
    def _made(self) -> dict[int, list[tuple[Choice, int]]]:
        """By class of axes, the labels of arrays that are read, or made in blocks of their own."""
        made: dict[int, list[tuple[Choice, int]]] = {}
        for choice in self.choices:
            node = self.space.program.nodes[choice.node]
            if choice.keep or node.edges or (node.stored is None and not node.pinned):
                continue
            for label, klass in enumerate(choice.classes):
                if choice.label_sizes[label] > 1:
                    made.setdefault(klass, []).append((choice, label))
        return made

    def _finest(self, choice: Choice) -> Parts:
        return tuple(
            len(fixed) if fixed is not None
            else min(max(self.fine.get(klass, 1), parts), max(size, 1))
            for klass, parts, fixed, size in zip(
                choice.classes, choice.mesh_parts, choice.fixed, choice.label_sizes, strict=True
            )
        )  # fmt: skip

    def _part_counts(self, choice: Choice) -> list[Parts]:
        """Part counts to choose among, at most :attr:`LocalLimits.max_cuts`."""
        most = self.settings.local.max_cuts
        ladders: list[list[int]] = []
        for fixed, own, low, high in zip(
            choice.fixed, choice.own, choice.mesh_parts, self._finest(choice), strict=True
        ):
            if fixed is not None:
                ladders.append([len(fixed)])
                continue
            low = min(low, high)
            steps = [low]
            while steps[-1] * 2 < high and high % (steps[-1] * 2) == 0:
                steps.append(steps[-1] * 2)
            made = [] if own is None else [len(own)]
            # of equal costs the first one is chosen
            steps = [*made, *steps, high] if choice.keep else [*steps, high, *made]
            ladders.append(list(dict.fromkeys(steps)))
        while math.prod(map(len, ladders)) > 4 * most:
            longest = max(range(len(ladders)), key=lambda label: (len(ladders[label]), -label))
            if len(ladders[longest]) == 2:
                break
            del ladders[longest][1]
        offers = list(itertools.islice(itertools.product(*ladders), 64 * most))
        if len(offers) > most:
            # the finest part counts stay, since they need the least memory
            offers = sorted(offers[:-1], key=lambda parts: self.costs.unary(choice, parts))
            offers = [*offers[: most - 1], self._finest(choice)]
        return list(dict.fromkeys(offers))

    # -- the result --------------------------------------------------------------

    def _outcome(
        self, states: Sequence[int], offers: Sequence[Offer], between: Sequence[Conversion]
    ) -> LocalCuts:
        program, mesh = self.space.program, self.space.mesh
        tasks = [0.0] * len(program.nodes)
        peak = [0] * len(program.nodes)
        joined = [0] * len(program.nodes)
        tilings: list[Tiling] = []
        kept: dict[int, Chunks] = {}
        kept_at: dict[int, Where] = {}
        final: dict[tuple[int, Chunks], Where] = {}
        for choice, state, offer in zip(self.choices, states, offers, strict=True):
            chunks, parts = offer.chunks[state], offer.parts[state]
            if choice.final:
                final[choice.node, chunks] = place_work(mesh, choice, chunks)
            elif choice.keep:
                first = tilings[choice.node]
                where = place_work(mesh, choice, chunks)
                is_copied = isinstance(where, Sharding) and bool(where.replicated)
                moved = self.placed and where != first.held_at
                if chunks != first.chunks or moved or is_copied:
                    kept[choice.node] = chunks
                    kept_at[choice.node] = where
                if self.retile and chunks != first.chunks:
                    peak[choice.node] = max(peak[choice.node], self.costs.joined(choice, parts))
            if choice.keep:
                continue
            tasks[choice.node] += self.costs.tasks(choice, parts)
            peak[choice.node] = self.costs.working_set(choice, parts)
            cuts = offer.cuts[state]
            tiling = Tiling(cuts, chunks)
            if choice.node not in self.moving:
                out = program.nodes[choice.node].out
                tiling = replace(
                    tiling,
                    work_at=place_work(mesh, choice, cuts),
                    held_at=place_result(mesh, choice, out, chunks),
                )
            tilings.append(tiling)
        for read, (counts, pieces) in zip(self.reads, between, strict=True):
            at = states[read.source], states[read.reader]
            reader = self.choices[read.reader].node
            if pieces[at]:
                tasks[reader] += counts[at]
                if pieces[at] > 1:
                    joined[reader] += program.nodes[read.edge.producer].held_bytes
            elif read.fused:
                tasks[read.edge.producer] -= block_count(
                    offers[read.source].chunks[states[read.source]]
                )
        return LocalCuts(
            tuple(tilings),
            kept,
            kept_at,
            final,
            tuple(math.ceil(count) for count in tasks),
            tuple(peak),
            tuple(joined),
        )


def _doubled(parts: Parts, label: int) -> Parts:
    return tuple(count * 2 if position == label else count for position, count in enumerate(parts))
