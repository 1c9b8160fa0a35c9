"""One cut of a whole program into parts: its cost, and the cheapest one.

Two kinds of variable alternate: the tiling of an array, and the aligned form of an operation.
Costs are only between an operation and its arrays, so the levels of a breadth-first search are
those of the undirected dataflow graph.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Edge, Label, Node, Program, Role
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.problem import Problem

Table = npt.NDArray[np.float64]

#: Joint states of the variables between two levels at the most (bounds time and memory).
WIDEST = 20_000

#: Entries of the largest table of the elimination that is used where levels are wider.
WIDTH = 1_000_000

#: A cut along none of the axes in question: one part has the whole array.
ELSEWHERE = -1


def conversion(made: int | str, wanted: int | str, parts: int = 2) -> float:
    """Bytes of a conversion, over all parts, as a multiple of the array's bytes.

    SoyBean, section 4.2.1: the bytes that a part needs minus those that it has.

    Parameters
    ----------
    made, wanted
        An axis or ``"r"`` (replicated); `made` may be ``"red"`` (partial sums) too.
    parts
        Workers, or groups of them.

    Examples
    --------
    >>> [conversion(*pair) for pair in ((0, 1), (0, "r"), ("r", 0), ("red", 0), ("red", "r"))]
    [0.5, 1.0, 0.0, 1.0, 2.0]
    """
    if made in ("r", wanted):
        return 0.0
    gathered = parts - 1.0 if wanted == "r" else 0.0
    if made == "red":
        return parts - 1.0 + gathered
    return gathered or 1.0 - 1.0 / parts


@dataclass
class OneCut:
    """The problem of choosing one cut, for a program that may have been cut before.

    Variable ``2 * n`` is the tiling of node number n's array: an axis, or past the last
    axis replicated.  Variable ``2 * n + 1`` is the form that the node takes.

    Parameters
    ----------
    program
        The program.
    parts
        Number of parts.
    label_cuts, axis_cuts
        For every node, the number of parts into which the cuts before divided each label, and
        each axis of the kept array.
    allowed
        Given a node's index and the labels that could be cut, returns the labels that may be cut.
    forms
        For every node, the labels that its forms cut; a single None where no label can be cut and
        one part runs the operation.
    """

    program: Program
    parts: int
    label_cuts: Sequence[Sequence[int]]
    axis_cuts: Sequence[Sequence[int]]
    allowed: Callable[[int, list[int]], list[int]]
    forms: list[list[int | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.forms = []
        for index, node in enumerate(self.program.nodes):
            possible = [
                position
                for position, label in enumerate(node.labels)
                if _pieces(label) >= self.label_cuts[index][position] * self.parts
            ]
            self.forms.append([*self.allowed(index, possible)] or [None])

    def problem(self) -> Problem:
        """The costs of the cut: bytes converted inside one group of the cuts before."""
        unary: list[Table] = []
        pairs: dict[tuple[int, int], Table] = {}
        for index, node in enumerate(self.program.nodes):
            unary += [self._tilings(index, node), self._carries(index, node)]
            pairs[2 * index, 2 * index + 1] = self._made(index, node)
            for edge in node.edges:
                pair = 2 * edge.producer, 2 * index + 1
                pairs[pair] = pairs.get(pair, 0.0) + self._read(index, node, edge)
        return Problem(unary, pairs)

    def _tilings(self, index: int, node: Node) -> Table:
        """Costs of the tilings: infinite for axes that are too short."""
        cuts = self.axis_cuts[index]
        short = [size < cut * self.parts for size, cut in zip(node.shape, cuts, strict=True)]
        return np.where([*short, False], np.inf, 0.0)

    def _carries(self, index: int, node: Node) -> Table:
        """Bytes of the carries from each part of a scan to the next."""
        costs = np.zeros(len(self.forms[index]))
        for column, form in enumerate(self.forms[index]):
            if form is not None and node.labels[form].role is Role.SCAN:
                across = node.labels[form].size / self.label_cuts[index][form]
                costs[column] = (self.parts - 1) * self._results(index, node) / across
        return costs * node.partial

    def _results(self, index: int, node: Node) -> float:
        """Elements that one group computes, partial sums included."""
        cuts = self.label_cuts[index]
        return node.size / math.prod(
            cuts[axis.label] for axis in node.out if axis.label is not None
        )

    def _made(self, index: int, node: Node) -> Table:
        """Bytes from the forms to the tilings of the result, (tilings, forms)."""
        red = self._results(index, node) * node.partial
        kept = node.nbytes / math.prod(self.axis_cuts[index])
        tilings = [*range(len(node.shape)), "r"]
        table = np.empty((len(tilings), len(self.forms[index])))
        for column, form in enumerate(self.forms[index]):
            axes = [axis for axis, seen in enumerate(node.out) if seen.label == form]
            partial = form is not None and not axes
            made = ELSEWHERE if form is None or partial else axes[0]
            for row, tiling in enumerate(tilings):
                table[row, column] = kept * conversion(made, tiling, self.parts)
                if partial:
                    # partial sums are sent first, and finished results are replicated then
                    copied = kept * conversion(made, "r", self.parts) if tiling == "r" else 0.0
                    table[row, column] = red * conversion("red", ELSEWHERE, self.parts) + copied
        return table

    def _read(self, index: int, node: Node, edge: Edge) -> Table:
        """Bytes from the tilings of an array to the reads of the forms, (tilings, forms)."""
        producer = self.program.nodes[edge.producer]
        cuts = self.label_cuts[index]
        needed = float(producer.itemsize)
        for axis, size in zip(edge.axes, producer.shape, strict=True):
            needed *= _span(axis, node, size) / (1 if axis.label is None else cuts[axis.label])
        elsewhere = needed * conversion(ELSEWHERE, 0, self.parts)
        table = np.zeros((len(producer.shape) + 1, len(self.forms[index])))
        for column, form in enumerate(self.forms[index]):
            axes = [position for position, axis in enumerate(edge.axes) if axis.label == form]
            if form is None or (edge.within is not None and edge.within[0] == form):
                table[:-1, column] = elsewhere  # one part reads the whole array
            elif not axes:
                table[:-1, column] = needed * conversion(ELSEWHERE, "r", self.parts)
            else:
                axis = edge.axes[axes[0]]
                read, missing = self._windows(axis, node, producer.shape[axes[0]])
                table[:-1, column] = elsewhere * read
                table[axes[0], column] = needed * missing
        return table

    def _windows(self, axis: AxisMap, node: Node, size: int) -> tuple[float, float]:
        """Elements of an axis that the parts of a label read, and those that they lack.

        A part lacks what it reads outside of its own part of the axis.  Both are multiples of the
        elements that the whole label reads: (1, 0) where the parts match.
        """
        span = _span(axis, node, size)
        if axis.identity or axis.label is None or not span:
            return 1.0, 0.0
        count, parts = node.labels[axis.label].size, self.parts
        read = missing = 0
        for part in range(parts):
            lo, hi = axis.interval(part * count // parts, (part + 1) * count // parts, size)
            begin, end = max(lo, part * size // parts), min(hi, (part + 1) * size // parts)
            read += hi - lo
            missing += hi - lo - max(0, end - begin)
        return read / span, missing / span


def _pieces(label: Label) -> int:
    """The largest number of parts into which a label can be cut."""
    if label.role is Role.WHOLE:
        return 1
    return len(label.cuts) if label.role is Role.PINNED else label.size


def _span(axis: AxisMap, node: Node, size: int) -> int:
    """Elements of an axis that the whole loop nest reads."""
    if axis.label is None or not node.labels[axis.label].size:
        return size
    lo, hi = axis.interval(0, node.labels[axis.label].size, size)
    return hi - lo


def by_levels(problem: Problem, widest: int = WIDEST) -> list[int]:
    """Minimise by dynamic programming over the levels of a breadth-first search.

    SoyBean, section 4.2.2: variables are processed level by level.  The cheapest assignment is
    kept for every joint state of the variables with neighbours in later levels, which are all in
    the last two levels.  Where there are more than `widest` joint states, as around an array that
    many operations read, :func:`dasktile.tiling.solve.eliminate.solve` is used instead.

    Returns
    -------
    The state of every variable.
    """
    order, around = _levels(len(problem.unary), problem.pairwise)
    position = {variable: step for step, variable in enumerate(order)}
    last = [max(position[other] for other in (v, *around[v])) for v in range(len(order))]
    live: list[int] = []
    rows = np.zeros((1, 0), dtype=np.int16)
    costs = np.zeros(1)
    steps: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = []
    for step, variable in enumerate(order):
        count = len(problem.unary[variable])
        grown = costs[:, None] + problem.unary[variable][None, :]
        for column, other in enumerate(live):
            if other in around[variable]:
                grown = grown + around[variable][other][rows[:, column]]
        chosen: npt.NDArray[np.intp] = np.flatnonzero(np.isfinite(grown))
        costs, parent, choice = grown.ravel()[chosen], chosen // count, chosen % count
        rows = np.column_stack([rows[parent], choice.astype(np.int16)])
        live.append(variable)
        stay = [column for column, other in enumerate(live) if last[other] > step]
        if len(stay) < len(live):
            live = [live[column] for column in stay]
            rows = np.ascontiguousarray(rows[:, stay])
            best = _cheapest(rows, costs)
            rows, costs, parent, choice = rows[best], costs[best], parent[best], choice[best]
        if len(rows) > widest:
            return list(solve(problem, WIDTH).states)
        steps.append((parent, choice))
    states = [0] * len(order)
    row = 0
    for variable, (parent, choice) in zip(reversed(order), reversed(steps), strict=True):
        states[variable] = int(choice[row])
        row = int(parent[row])
    return states


def _cheapest(rows: npt.NDArray[np.int16], costs: Table) -> npt.NDArray[np.intp]:
    """For every distinct row, the index of its cheapest instance."""
    if not rows.shape[1]:
        return np.array([np.argmin(costs)])
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, group = np.unique(whole, return_inverse=True)
    order = np.lexsort((costs, group))
    first = np.append(True, group[order][1:] != group[order][:-1])
    return np.sort(order[first])


def _levels(
    count: int, pairs: Mapping[tuple[int, int], Table]
) -> tuple[list[int], list[dict[int, Table]]]:
    """Variables in breadth-first order from one end, and for each its neighbours' tables."""
    around: list[dict[int, Table]] = [{} for _ in range(count)]
    for (i, j), table in sorted(pairs.items(), key=lambda item: item[0]):
        around[i][j] = table.T
        around[j][i] = table

    def search(start: int, seen: set[int]) -> list[int]:
        visited = []
        queue = deque([start])
        seen.add(start)
        while queue:
            visited.append(queue.popleft())
            fresh = [other for other in sorted(around[visited[-1]]) if other not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        return visited

    order: list[int] = []
    seen: set[int] = set()
    for start in range(count):
        if start not in seen:
            # the variable furthest from any other is an end, from which levels are narrow
            order += search(search(start, set())[-1], seen)
    return order, around
