"""Programs built by hand, for tests of the pure core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role, validate
from dasktile.tiling import Settings

#: Bytes decide, however few there are.
BYTES_DECIDE = Settings(task_bytes=1e-3, wider=replace(Settings().wider, min_bytes=0))


def cuts(size: int, chunk: int) -> tuple[int, ...]:
    """Chunk sizes of an axis, as dask makes them of a number."""
    whole = (chunk,) * (size // chunk)
    return whole + ((size % chunk,) if size % chunk else ()) or (0,)


class Builder:
    """Adds one node after another; float64 throughout."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def program(self, *outputs: int) -> Program:
        program = Program(tuple(self.nodes), outputs or (len(self.nodes) - 1,))
        validate(program)
        return program

    def source(
        self,
        shape: Sequence[int],
        chunk: Sequence[int],
        *,
        pinned: bool = False,
        stored: Sequence[int] | None = None,
    ) -> int:
        """An array: generated anywhere, read from storage, or already in memory."""
        chunks = tuple(cuts(size, width) for size, width in zip(shape, chunk, strict=True))
        store = None
        if stored is not None:
            store = tuple(cuts(size, width) for size, width in zip(shape, stored, strict=True))
        role = Role.PINNED if pinned else Role.FREE
        return self._add(
            "source",
            Kind.OPAQUE if pinned else Kind.SOURCE,
            tuple(Label(size, role, own) for size, own in zip(shape, chunks, strict=True)),
            tuple(AxisMap(axis) for axis in range(len(shape))),
            tuple(shape),
            work=0.0,
            stored=store,
            repeatable=not pinned,
            resident=pinned,
            reason="already in memory, in these chunks" if pinned else "",
        )

    def matmul(self, left: int, right: int, *, ta: bool = False, tb: bool = False) -> int:
        """Product of two matrices, either of them transposed on the way in."""
        one, other = self.nodes[left], self.nodes[right]
        rows, inner = (1, 0) if ta else (0, 1)
        columns = 0 if tb else 1
        labels = (
            Label(one.shape[rows], Role.FREE, one.chunks[rows]),
            Label(one.shape[inner], Role.REDUCE, one.chunks[inner]),
            Label(other.shape[columns], Role.FREE, other.chunks[columns]),
        )
        reads_left, reads_right = (AxisMap(0), AxisMap(1)), (AxisMap(1), AxisMap(2))
        return self._add(
            "matmul",
            Kind.CONTRACT,
            labels,
            (AxisMap(0), AxisMap(2)),
            (labels[0].size, labels[2].size),
            edges=(
                Edge(left, reads_left[::-1] if ta else reads_left),
                Edge(right, reads_right[::-1] if tb else reads_right),
            ),
            partial=8.0,
            work=2.0,
        )

    def elementwise(self, *inputs: int, transposed: Sequence[int] = ()) -> int:
        """Any elementwise operation; operands at the positions in `transposed` are."""
        first = self.nodes[inputs[0]]
        shape = first.shape[::-1] if 0 in transposed else first.shape
        chunks = first.chunks[::-1] if 0 in transposed else first.chunks
        edges = []
        for position, index in enumerate(inputs):
            missing = len(shape) - len(self.nodes[index].shape)
            axes = tuple(
                AxisMap(None if size == 1 and shape[axis + missing] > 1 else axis + missing)
                for axis, size in enumerate(self.nodes[index].shape)
            )
            edges.append(Edge(index, axes[::-1] if position in transposed else axes))
        return self._add(
            "add",
            Kind.MAP,
            tuple(Label(n, Role.FREE, own) for n, own in zip(shape, chunks, strict=True)),
            tuple(AxisMap(axis) for axis in range(len(shape))),
            shape,
            edges=tuple(edges),
        )

    def fold(self, index: int, axes: Sequence[int], *, keepdims: bool = False) -> int:
        """A sum over some axes."""
        node = self.nodes[index]
        labels = tuple(
            Label(size, Role.REDUCE if axis in axes else Role.FREE, own)
            for axis, (size, own) in enumerate(zip(node.shape, node.chunks, strict=True))
        )
        out: list[AxisMap] = []
        shape: list[int] = []
        for axis, size in enumerate(node.shape):
            if axis not in axes:
                out.append(AxisMap(axis))
                shape.append(size)
            elif keepdims:
                out.append(AxisMap(None))
                shape.append(1)
        reads = tuple(AxisMap(axis) for axis in range(len(node.shape)))
        return self._add("sum", Kind.FOLD, labels, tuple(out), tuple(shape),
                         edges=(Edge(index, reads),), partial=8.0)  # fmt: skip

    def view(self, index: int, axes: Sequence[AxisMap], shape: Sequence[int]) -> int:
        """Elements picked by affine maps."""
        labels = tuple(Label(size, Role.FREE, (size,)) for size in shape)
        return self._add("getitem", Kind.VIEW, labels,
                         tuple(AxisMap(axis) for axis in range(len(shape))), tuple(shape),
                         edges=(Edge(index, tuple(axes)),), work=0.0)  # fmt: skip

    def whole(self, index: int, axis: int) -> int:
        """A transform that needs one axis in one piece."""
        node = self.nodes[index]
        labels = tuple(
            Label(size, Role.WHOLE if at == axis else Role.FREE, (size,) if at == axis else own)
            for at, (size, own) in enumerate(zip(node.shape, node.chunks, strict=True))
        )
        maps = tuple(AxisMap(at) for at in range(len(node.shape)))
        return self._add("fft", Kind.MAP, labels, maps, node.shape, edges=(Edge(index, maps),))

    def _add(self, op, kind, labels, out, shape, **rest) -> int:
        chunks = tuple(
            (size,)
            if axis.label is None
            else tuple(axis.width * cut for cut in labels[axis.label].cuts)
            for axis, size in zip(out, shape, strict=True)
        )
        self.nodes.append(
            Node(
                f"{op}-{len(self.nodes)}",
                op,
                kind,
                labels,
                out,
                shape,
                "float64",
                8,
                chunks,
                **rest,
            )
        )
        return len(self.nodes) - 1


def chain(skewed: bool, size: int = 4000, chunk: int = 1000, pinned: bool = False) -> Program:
    """(A B) + (C (D E)), square or skewed as in EinDecomp's first experiment."""
    build = Builder()
    tenth = size // 10
    shapes = [(size, size)] * 5
    if skewed:
        shapes = [
            (size, tenth),
            (tenth, size),
            (size, tenth),
            (tenth, 10 * size),
            (10 * size, size),
        ]
    a, b, c, d, e = (
        build.source(shape, (min(chunk, *shape),) * 2, pinned=pinned) for shape in shapes
    )
    build.elementwise(build.matmul(a, b), build.matmul(c, build.matmul(d, e)))
    return build.program()


def gram(rows: int, columns: int, chunk: tuple[int, int]) -> Program:
    """X.T @ X."""
    build = Builder()
    x = build.source((rows, columns), chunk, stored=chunk)
    build.matmul(x, x, ta=True)
    return build.program()


def transposed_add(size: int, chunk: tuple[int, int], pinned: bool) -> Program:
    """C = A + B; D = A.T + B.T; C + D."""
    build = Builder()
    a, b = (build.source((size, size), chunk, pinned=pinned) for _ in range(2))
    build.elementwise(build.elementwise(a, b), build.elementwise(a, b, transposed=(0, 1)))
    return build.program()
