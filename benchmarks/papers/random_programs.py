"""Random programs of a few operators, like those that the Spartan thesis evaluates its tiling on.

Section 3.2: arrays of two dimensions, whose lengths are chosen from a few sizes, and 2 to 15
operators: maps, folds, scans, products, transposes and slices.  The sizes here are a hundredth of
the thesis' 128K to 512K, and bytes moved are in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role

#: Lengths of an axis.
SIZES = (1280, 2560, 5120)

#: Bytes of an element.
ITEMSIZE = 8

#: Number of chunks along every axis.
CHUNKS = 4

#: Relative frequencies of the operators: most are maps and products.
WEIGHTS = {"map": 6, "dot": 3, "fold": 2, "transpose": 2, "slice": 1, "scan": 1}

#: Probability that the second operand is a new array although an existing one fits.
NEW = 0.3


class Maker:
    """A builder of programs of float64 arrays, with `CHUNKS` chunks along every axis."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def program(self) -> Program:
        """The program so far, whose outputs are the arrays without readers."""
        read = {edge.producer for node in self.nodes for edge in node.edges}
        outputs = (index for index in range(len(self.nodes)) if index not in read)
        return Program(tuple(self.nodes), tuple(outputs))

    @property
    def operators(self) -> int:
        """The number of arrays that are results of operators."""
        return sum(node.kind is not Kind.SOURCE for node in self.nodes)

    def newarray(self, *shape: int) -> int:
        """Add a source array, which can be generated in any tiles."""
        return self._add("ones", Kind.SOURCE, _free(shape), _axes(shape), shape)

    def map(self, *reads: int, turned: Sequence[int] = ()) -> int:
        """Add an elementwise operation; operands at the positions in `turned` are transposed."""
        shape = self.nodes[reads[0]].shape[:: -1 if 0 in turned else 1]
        edges = []
        for position, index in enumerate(reads):
            rank = len(self.nodes[index].shape)
            axes = tuple(AxisMap(len(shape) - rank + axis) for axis in range(rank))
            edges.append(Edge(index, axes[::-1] if position in turned else axes))
        return self._add("add", Kind.MAP, _free(shape), _axes(shape), shape, tuple(edges))

    def transpose(self, index: int) -> int:
        """Add a transpose."""
        shape = self.nodes[index].shape[::-1]
        edge = Edge(index, _axes(shape)[::-1])
        return self._add("transpose", Kind.MAP, _free(shape), _axes(shape), shape, (edge,))

    def slice(self, index: int, axis: int, start: int, stop: int) -> int:
        """Add a view of a range of an axis."""
        shape = list(self.nodes[index].shape)
        shape[axis] = stop - start
        axes = tuple(AxisMap(label, start if label == axis else 0) for label in range(len(shape)))
        return self._add(
            "getitem", Kind.VIEW, _free(shape), _axes(shape), shape, (Edge(index, axes),)
        )

    def fold(self, index: int, axis: int) -> int:
        """Add a sum over one axis."""
        shape = self.nodes[index].shape
        out = tuple(AxisMap(position) for position in range(len(shape)) if position != axis)
        return self._add("sum", Kind.FOLD, _free(shape, (axis, Role.REDUCE)), out,
                         [size for position, size in enumerate(shape) if position != axis],
                         (Edge(index, _axes(shape)),))  # fmt: skip

    def scan(self, index: int, axis: int) -> int:
        """Add a cumulative sum along one axis."""
        shape = self.nodes[index].shape
        return self._add("cumsum", Kind.SCAN, _free(shape, (axis, Role.SCAN)), _axes(shape),
                         shape, (Edge(index, _axes(shape)),))  # fmt: skip

    def dot(self, left: int, right: int) -> int:
        """Add a product of two matrices."""
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
    """A free label for every axis; `special` is an axis with another role, and this role."""
    roles = [Role.FREE] * len(shape)
    if special is not None:
        roles[special[0]] = special[1]
    labels = []
    for size, role in zip(shape, roles, strict=True):
        cuts = tuple((part + 1) * size // CHUNKS - part * size // CHUNKS for part in range(CHUNKS))
        labels.append(Label(size, role, tuple(cut for cut in cuts if cut) or (0,)))
    return tuple(labels)


def random_program(rng: np.random.Generator, operators: int) -> Program:
    """A random program.

    Parameters
    ----------
    rng
        Generator of all random choices.
    operators
        Number of operators, without source arrays.
    """
    make = Maker()
    make.newarray(*_sizes(rng, 2))
    names, weights = list(WEIGHTS), np.array(list(WEIGHTS.values()), dtype=float)
    while (missing := operators - make.operators) > 0:
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        matrices = [number for number, node in enumerate(make.nodes) if len(node.shape) == 2]
        index = int(rng.choice(matrices))
        shape = make.nodes[index].shape
        axis = int(rng.integers(2))
        if name == "map":
            make.map(index, _partner(make, rng, shape, missing > 1))
        elif name == "dot":
            make.dot(index, _partner(make, rng, (shape[1], None), missing > 1))
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
    """Random programs of `least` to `most` operators each."""
    rng = np.random.default_rng(seed)
    return [random_program(rng, int(rng.integers(least, most + 1))) for _ in range(count)]


def _sizes(rng: np.random.Generator, count: int) -> list[int]:
    return [int(size) for size in rng.choice(SIZES, count)]


def _partner(
    make: Maker, rng: np.random.Generator, shape: tuple[int, int | None], turn: bool
) -> int:
    """An array of a shape, that broadcasts to it or whose transpose has it, or a new one."""
    rows, columns = shape
    fits = []
    for index, node in enumerate(make.nodes):
        if columns is not None and node.shape == (columns,):
            fits.append((index, False))
        elif len(node.shape) == 2:
            for turned in (False, True)[: 1 + turn]:
                fitting_shape = node.shape[::-1] if turned else node.shape
                if fitting_shape[0] == rows and columns in (None, fitting_shape[1]):
                    fits.append((index, turned))
    if not fits or rng.random() < NEW:
        return make.newarray(rows, columns if columns is not None else _sizes(rng, 1)[0])
    index, turned = fits[int(rng.integers(len(fits)))]
    return make.transpose(index) if turned else index
