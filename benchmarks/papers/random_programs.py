"""Random programs of a few operators, as the Spartan thesis evaluates its tiling on.

Section 3.2: arrays of two dimensions, every one chosen from a few sizes, and 2 to 15 of the
operators that there are: maps, folds, scans, products, transposes and slices.  The sizes
here are a hundredth of the thesis' 128K to 512K; what moves is in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role

#: Lengths of an axis.
SIZES = (1280, 2560, 5120)

#: Bytes of an element.
ITEMSIZE = 8

#: Chunks along every axis of the input graph.
CHUNKS = 4

#: How often each operator is drawn: a program of arrays mostly maps and multiplies.
WEIGHTS = {"map": 6, "dot": 3, "fold": 2, "transpose": 2, "slice": 1, "scan": 1}

#: How often an operator's other operand is a new array although one that there is fits.
NEW = 0.3


class Maker:
    """Adds one array after another; float64, every axis in a few chunks."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def program(self) -> Program:
        """What has been added; the arrays that nothing reads are wanted."""
        read = {edge.producer for node in self.nodes for edge in node.edges}
        wanted = (index for index in range(len(self.nodes)) if index not in read)
        return Program(tuple(self.nodes), tuple(wanted))

    @property
    def operators(self) -> int:
        """How many arrays are not new."""
        return sum(node.kind is not Kind.SOURCE for node in self.nodes)

    def newarray(self, *shape: int) -> int:
        """An array that may be made in any tiles."""
        return self._add("ones", Kind.SOURCE, _free(shape), _axes(shape), shape)

    def map(self, *reads: int, turned: Sequence[int] = ()) -> int:
        """An elementwise operation; operands at the positions in `turned` are transposed."""
        shape = self.nodes[reads[0]].shape[:: -1 if 0 in turned else 1]
        edges = []
        for position, index in enumerate(reads):
            rank = len(self.nodes[index].shape)
            axes = tuple(AxisMap(len(shape) - rank + axis) for axis in range(rank))
            edges.append(Edge(index, axes[::-1] if position in turned else axes))
        return self._add("add", Kind.MAP, _free(shape), _axes(shape), shape, tuple(edges))

    def transpose(self, index: int) -> int:
        """A view with the axes in reverse."""
        shape = self.nodes[index].shape[::-1]
        edge = Edge(index, _axes(shape)[::-1])
        return self._add("transpose", Kind.MAP, _free(shape), _axes(shape), shape, (edge,))

    def slice(self, index: int, axis: int, start: int, stop: int) -> int:
        """A view of a range of an axis."""
        shape = list(self.nodes[index].shape)
        shape[axis] = stop - start
        axes = tuple(AxisMap(at, start if at == axis else 0) for at in range(len(shape)))
        return self._add(
            "getitem", Kind.VIEW, _free(shape), _axes(shape), shape, (Edge(index, axes),)
        )

    def fold(self, index: int, axis: int) -> int:
        """A sum over one axis."""
        shape = self.nodes[index].shape
        left = tuple(AxisMap(at) for at in range(len(shape)) if at != axis)
        return self._add("sum", Kind.FOLD, _free(shape, (axis, Role.REDUCE)), left,
                         [size for at, size in enumerate(shape) if at != axis],
                         (Edge(index, _axes(shape)),))  # fmt: skip

    def scan(self, index: int, axis: int) -> int:
        """A running sum along one axis."""
        shape = self.nodes[index].shape
        return self._add("cumsum", Kind.SCAN, _free(shape, (axis, Role.SCAN)), _axes(shape),
                         shape, (Edge(index, _axes(shape)),))  # fmt: skip

    def dot(self, left: int, right: int) -> int:
        """A product of two matrices."""
        rows, inner = self.nodes[left].shape
        columns = self.nodes[right].shape[1]
        return self._add("matmul", Kind.CONTRACT, _free((rows, inner, columns), (1, Role.REDUCE)),
                         (AxisMap(0), AxisMap(2)), (rows, columns),
                         (Edge(left, (AxisMap(0), AxisMap(1))),
                          Edge(right, (AxisMap(1), AxisMap(2)))), work=2.0)  # fmt: skip

    def _add(
        self,
        op: str,
        kind: Kind,
        labels: tuple[Label, ...],
        out: tuple[AxisMap, ...],
        shape: Sequence[int],
        edges: tuple[Edge, ...] = (),
        work: float = 1.0,
    ) -> int:
        chunks = tuple(labels[axis.label or 0].cuts for axis in out)
        self.nodes.append(
            Node(f"{op}-{len(self.nodes)}", op, kind, labels, out, tuple(shape), "float64",
                 ITEMSIZE, chunks, edges, partial=float(ITEMSIZE), work=work)
        )  # fmt: skip
        return len(self.nodes) - 1


def _axes(shape: Sequence[int]) -> tuple[AxisMap, ...]:
    return tuple(AxisMap(axis) for axis in range(len(shape)))


def _free(shape: Sequence[int], special: tuple[int, Role] | None = None) -> tuple[Label, ...]:
    """A label for every axis, one of them perhaps with another role."""
    roles = [Role.FREE] * len(shape)
    if special is not None:
        roles[special[0]] = special[1]
    found = []
    for size, role in zip(shape, roles, strict=True):
        cuts = tuple((part + 1) * size // CHUNKS - part * size // CHUNKS for part in range(CHUNKS))
        found.append(Label(size, role, tuple(cut for cut in cuts if cut) or (0,)))
    return tuple(found)


def random_program(rng: np.random.Generator, operators: int) -> Program:
    """A program of so many operators, the arrays that it starts from not counted.

    Parameters
    ----------
    rng
        Decides everything.
    operators
        How many.
    """
    make = Maker()
    make.newarray(*_sizes(rng, 2))
    names, weights = list(WEIGHTS), np.array(list(WEIGHTS.values()), dtype=float)
    while (room := operators - make.operators) > 0:
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        index = int(rng.choice([at for at, node in enumerate(make.nodes) if len(node.shape) == 2]))
        shape = make.nodes[index].shape
        axis = int(rng.integers(2))
        if name == "map":
            make.map(index, _partner(make, rng, shape, room > 1))
        elif name == "dot":
            make.dot(index, _partner(make, rng, (shape[1], None), room > 1))
        elif name == "fold":
            make.fold(index, axis)
        elif name == "scan":
            make.scan(index, axis)
        elif name == "transpose":
            make.transpose(index)
        else:
            make.slice(index, axis, 0, shape[axis] // 2)
    return make.program()


def programs(count: int = 100, seed: int = 0, least: int = 2, most: int = 15) -> list[Program]:
    """Programs of `least` to `most` operators."""
    rng = np.random.default_rng(seed)
    return [random_program(rng, int(rng.integers(least, most + 1))) for _ in range(count)]


def _sizes(rng: np.random.Generator, count: int) -> list[int]:
    return [int(size) for size in rng.choice(SIZES, count)]


def _partner(
    make: Maker, rng: np.random.Generator, shape: tuple[int, int | None], turn: bool
) -> int:
    """An array of a shape, one that is broadcast to it or whose transpose fits, or a new one."""
    rows, columns = shape
    fits = []
    for index, node in enumerate(make.nodes):
        if columns is not None and node.shape == (columns,):
            fits.append((index, False))
        elif len(node.shape) == 2:
            for turned in (False, True)[: 1 + turn]:
                have = node.shape[::-1] if turned else node.shape
                if have[0] == rows and columns in (None, have[1]):
                    fits.append((index, turned))
    if not fits or rng.random() < NEW:
        return make.newarray(rows, columns if columns is not None else _sizes(rng, 1)[0])
    index, turned = fits[int(rng.integers(len(fits)))]
    return make.transpose(index) if turned else index
