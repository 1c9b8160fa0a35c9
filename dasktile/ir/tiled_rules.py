"""The rules of a legal tiled program, whose program is legal.

A rule returns the first fault of one node, or None.  Each may rely on those before it in
:data:`TILED_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from dasktile.ir.program import Chunks, Edge, Kind, Node, Role
from dasktile.ir.program_rules import Fault, covers, is_cut
from dasktile.ir.sharding import Follow, Sharding, Share, Where
from dasktile.ir.tiled import TiledProgram, Tiling

#: Share of an even part by which a part may be longer where all parts have one length (by
#: definition: lengths of at least 50 elements are rounded up to whole elements).
ROUNDING = 1 / 50


@dataclass(frozen=True)
class Check:
    """A tiled program, and what is found once for many nodes.

    Parameters
    ----------
    tiled, memory_limit
        As in :func:`dasktile.ir.verify.verify_tiled`.
    cells
        By the size of an axis, its longest pinned, stored or final chunk, in elements.
    known
        The faults of the placements that were checked before.
    """

    tiled: TiledProgram
    memory_limit: int | None
    cells: dict[int, int]
    known: dict[object, Fault] = field(default_factory=dict)

    def node(self, index: int) -> Node:
        """A node of the program."""
        return self.tiled.program.nodes[index]

    def tiling(self, index: int) -> Tiling:
        """The tiling of a node."""
        return self.tiled.tilings[index]

    def ranges(self, index: int) -> list[tuple[int, int]]:
        """The needed range of every label of a node."""
        if self.tiled.ranges is None:
            return [(0, label.size) for label in self.node(index).labels]
        return list(self.tiled.ranges[index])

    def along(self, index: int) -> list[tuple[int, int]]:
        """The needed range of every axis of a node's array."""
        node, ranges = self.node(index), self.ranges(index)
        found = []
        for axis, size in zip(node.out, node.shape, strict=True):
            lo, hi = (0, size) if axis.label is None else ranges[axis.label]
            width = 1 if axis.label is None else axis.width
            found.append((width * lo, width * hi))
        return found


def longest_fixed(tiled: TiledProgram) -> dict[int, int]:
    """By the size of an axis, its longest chunk that is fixed: parts may end at any of them.

    These are pinned, stored and final chunks.
    """
    program = tiled.program
    cells: dict[int, int] = {}
    for _, chunks in tiled.final:
        for sizes in chunks:
            cells[sum(sizes)] = max(cells.get(sum(sizes), 0), *sizes)
    for node in program.nodes:
        pinned = [
            label.cuts
            for label in node.labels
            if label.role is Role.PINNED or node.kind is Kind.OPAQUE
        ]
        for sizes in (*pinned, *(node.stored or ())):
            cells[sum(sizes)] = max(cells.get(sum(sizes), 0), *sizes)
    for node in program.nodes:
        for axis, size in zip(node.out, node.shape, strict=True):
            if axis.label is not None:
                along = axis.width * cells.get(node.labels[axis.label].size, 0)
                cells[size] = max(cells.get(size, 0), along)
    return cells


def tilings_fault(tiled: TiledProgram) -> Fault:
    """There is a mesh, a tiling for every node, and nothing about other nodes."""
    count = len(tiled.program.nodes)
    if len(tiled.tilings) != count:
        return f"there are {len(tiled.tilings)} tilings; expected {count}"
    if any(size < 1 for size in tiled.mesh):
        return f"the mesh is {tiled.mesh}; expected at least 1 worker along each axis"
    for index in tiled.kept:
        if not 0 <= index < count:
            return f"node {index} is kept; expected one of {count} nodes"
    for index in tiled.kept_at:
        if index not in tiled.kept:
            return f"node {index} has a placement of kept chunks; expected kept chunks"
    if tiled.ranges is None:
        return None
    if len(tiled.ranges) != count:
        return f"{len(tiled.ranges)} nodes have ranges; expected {count}"
    for index, (node, own) in enumerate(zip(tiled.program.nodes, tiled.ranges, strict=True)):
        sizes = [label.size for label in node.labels]
        if len(own) != len(sizes) or any(
            not 0 <= lo <= hi <= size for (lo, hi), size in zip(own, sizes, strict=True)
        ):
            return f"node {index} has ranges {own}; expected parts of labels of sizes {sizes}"
    return None


def _cuts(check: Check, index: int) -> Fault:
    """Tiles cover the loop nest without gap or overlap, and labels are cut as their roles allow."""
    node, tiling = check.node(index), check.tiling(index)
    if len(tiling.cuts) != len(node.labels):
        return f"{len(tiling.cuts)} labels are cut; expected {len(node.labels)}"
    for number, (label, sizes) in enumerate(zip(node.labels, tiling.cuts, strict=True)):
        if not covers(sizes, label.size):
            return f"label {number} is cut into {sizes}; expected sizes that sum to {label.size}"
        if label.role is Role.WHOLE and len(sizes) != 1:
            return f"whole label {number} is cut into {sizes}; expected one piece"
        if (label.role is Role.PINNED or node.kind is Kind.OPAQUE) and sizes != label.cuts:
            return f"pinned label {number} is cut into {sizes}; expected {label.cuts}"
    return None


def _chunks(check: Check, index: int) -> Fault:
    """Tiles cover the array without gap or overlap, and are those that the labels make.

    They are cut further only along axes without a label, or along which a sum is scattered.
    """
    node, tiling = check.node(index), check.tiling(index)
    if not is_cut(tiling.chunks, node.shape):
        return f"the array has chunks {tiling.chunks}; expected those of shape {node.shape}"
    if node.kind is Kind.OPAQUE and tiling.chunks != node.chunks:
        return f"an unchanged array has chunks {tiling.chunks}; expected {node.chunks}"
    for place, (axis, sizes) in enumerate(zip(node.out, tiling.chunks, strict=True)):
        made: tuple[int, ...] = (node.shape[place],)
        if axis.label is not None:
            made = tuple(axis.width * cut for cut in tiling.cuts[axis.label])
        finer = axis.label is None or _may_scatter(tiling, axis.label, place)
        if sizes != made and not (finer and set(accumulate(made)) <= set(accumulate(sizes))):
            return f"axis {place} has chunks {sizes}; expected {made}, as its label is cut"
    return None


def _may_scatter(tiling: Tiling, label: int, place: int) -> bool:
    """Whether sums may be scattered along an axis of the array."""
    work, held = tiling.work_at, tiling.held_at
    if not isinstance(work, Sharding) or not isinstance(held, Sharding):
        return False
    return place >= len(held.dims) or not set(held.dims[place].by) <= set(work.dims[label].by)


def _work(check: Check, index: int) -> Fault:
    """Every tile of the loop nest is on one worker; mesh axes divide labels that may be cut."""
    node, tiling = check.node(index), check.tiling(index)
    work = tiling.work_at
    if (work is None) != (tiling.held_at is None):
        return "only the work or only the result has a placement; expected both or none"
    if work is None:
        return None
    fault = _placed(check, work, tiling.cuts, "label", index, check.ranges(index))
    if fault is not None:
        return fault
    if isinstance(work, Follow):
        return None
    if work.replicated:
        return f"work is repeated along mesh axes {work.replicated}; expected that it runs once"
    for number, (label, share) in enumerate(zip(node.labels, work.dims, strict=True)):
        if share.by and label.role is Role.WHOLE:
            return f"mesh axes {share.by} divide whole label {number}; expected that none does"
        sums = share.by and label.role is Role.REDUCE and node.itemsize
        if sums and not node.partial > 0:
            return f"partial sums on mesh axes {share.by} have {node.partial} bytes; expected more"
    return None


def _held(check: Check, index: int) -> Fault:
    """Every tile of the array is on one worker, which is the one that makes it.

    Mesh axes that divide a reduced label make partial sums.  They divide the array along the axis
    on which the sum is scattered, or not at all.
    """
    node, tiling = check.node(index), check.tiling(index)
    work, held = tiling.work_at, tiling.held_at
    if work is None or held is None:
        return None
    fault = _placed(check, held, tiling.chunks, "axis", index, check.along(index))
    if fault is not None:
        return fault
    if isinstance(held, Sharding) and held.replicated:
        return f"the result is on mesh axes {held.replicated} several times; expected once"
    labels = [axis.label for axis in node.out]
    if isinstance(work, Follow) or isinstance(held, Follow):
        if not isinstance(work, Follow) or not isinstance(held, Follow):
            return "only the work or only the result follows an array; expected both or none"
        shown = [label if label in labels else None for label in work.dims]
        dims = tuple(None if label is None else labels.index(label) for label in shown)
        if (held.node, held.dims) != (work.node, dims):
            return f"the result is where {held} is; expected dims {dims}, as its labels"
        if any(
            own != other and (dim is not None or (own or (0,))[0] != (other or (0,))[0])
            for dim, own, other in zip(dims, held.numbers, work.numbers, strict=True)
        ):
            return f"the result follows blocks {held.numbers}; expected {work.numbers}, as the work"
        return None
    reduced = {
        axis
        for label, share in zip(node.labels, work.dims, strict=True)
        if label.role is Role.REDUCE
        for axis in share.by
    }
    taken: set[int] = set()
    for place, (axis, share) in enumerate(zip(node.out, held.dims, strict=True)):
        made = Share() if axis.label is None else work.dims[axis.label]
        # on a diagonal two axes run along one label
        made = Share() if taken & set(made.by) else made
        taken.update(made.by)
        if axis.label is None and share.by:
            return f"mesh axes {share.by} divide axis {place}; expected none, as it has no label"
        scattered = share.by[len(made.by) :]
        if share.by[: len(made.by)] != made.by or not reduced.issuperset(scattered):
            return (
                f"mesh axes {share.by} divide axis {place}; expected {made.by}, which cut its "
                f"label, and then some of {sorted(reduced)}, which cut a reduced label"
            )
        if made.by:
            assert axis.label is not None
            own = [axis.width * end for end in _ends(made, tiling.cuts[axis.label])]
            ends = _ends(share, tiling.chunks[place])[:: len(share.runs) // len(made.runs)]
            if ends != own:
                return f"workers hold axis {place} up to {ends}; expected {own}, which they make"
    return None


def _kept(check: Check, index: int) -> Fault:
    """An array in other chunks for its readers is the whole array, each tile on one worker."""
    node, tiled = check.node(index), check.tiled
    chunks = tiled.kept.get(index)
    if chunks is None:
        return None
    if not is_cut(chunks, node.shape):
        return f"the array is kept in chunks {chunks}; expected those of shape {node.shape}"
    if index not in tiled.kept_at:
        return None
    # they are on the workers that make the tiles from which they are cut
    made = tiled.tilings[index].chunks
    ranges = check.along(index)
    return _placed(check, tiled.kept_at[index], chunks, "kept axis", index, ranges, made)


def _final(check: Check, index: int) -> Fault:
    """An output in the chunks that it must have is the whole array, each block on one worker."""
    shape = check.node(index).shape
    for (node, chunks), where in check.tiled.final.items():
        if node != index:
            continue
        if not is_cut(chunks, shape):
            return f"the array has final chunks {chunks}; expected those of shape {shape}"
        if isinstance(where, Sharding) and where.replicated:
            return f"final chunks are on mesh axes {where.replicated} several times; expected once"
        fault = _placed(check, where, chunks, "final axis", index, check.along(index))
        if fault is not None:
            return fault
    return None


def _replicas(check: Check, index: int) -> Fault:
    """A replicated array is divided by some mesh axes, and the same along others."""
    where, limit, axes = check.tiled.replicas(index), check.memory_limit, len(check.tiled.mesh)
    if where is None:
        return None
    copied = where.replicated
    if len(set(copied)) != len(copied) or not set(copied) <= set(range(axes)):
        return (
            f"replicas are along mesh axes {copied}; expected some of mesh {check.tiled.mesh}, "
            "each once"
        )
    both = sorted(where.axes.intersection(copied))
    if both:
        return f"mesh axes {both} divide and replicate the array; expected one of the two"
    largest = check.node(index).itemsize
    for share, sizes in zip(where.dims, check.tiled.kept[index], strict=True):
        largest *= max(hi - lo for lo, hi in pairwise(_ends(share, sizes)))
    if limit is not None and largest > limit:
        return f"a worker holds {largest} bytes of a replicated array; expected at most {limit}"
    return None


def _memory(check: Check, index: int) -> Fault:
    """The tiles that a task reads and makes fit the memory limit, where smaller ones may."""
    node, limit = check.node(index), check.memory_limit
    # pinned tiles and stored chunks cannot be made smaller, nor blocks of data that are sent
    is_sent = node.root and check.tiling(index).chunks == node.chunks
    if limit is None or node.pinned or node.stored is not None or is_sent:
        return None
    longest = []
    for (lo, hi), sizes in zip(check.ranges(index), check.tiling(index).cuts, strict=True):
        longest.append(max(_inside(sizes, lo, hi), default=0))
    need = node.itemsize
    for axis, size in zip(node.out, node.shape, strict=True):
        need *= size if axis.label is None else axis.width * longest[axis.label]
    if node.kind is Kind.VIEW:
        need *= 2  # it reads as many bytes as it makes, of any of its arrays
    else:
        need += sum(_read_bytes(check, edge, longest) for edge in node.edges)
    if need > limit:
        return f"a task reads and makes {need} bytes; expected at most {limit}"
    return None


def _read_bytes(check: Check, edge: Edge, longest: Sequence[int]) -> int:
    """Bytes of an array that the largest tile of a reader needs."""
    producer = check.node(edge.producer)
    need = producer.itemsize
    for axis, size in zip(edge.axes, producer.shape, strict=True):
        count = size if axis.label is None else longest[axis.label]
        if axis.label is not None and abs(axis.step) > axis.width:
            count *= axis.width
        elif axis.label is not None and count:
            count = abs(axis.step) * (count - 1) + axis.width
        need *= min(size, count)
    return need


#: The rules of every node of a tiled program, in their order.
TILED_RULES: dict[str, Callable[[Check, int], Fault]] = {
    "cuts": _cuts,
    "work": _work,
    "chunks": _chunks,
    "held": _held,
    "kept": _kept,
    "replicas": _replicas,
    "final": _final,
    "memory": _memory,
}


# --- placements ------------------------------------------------------------------------


def _placed(
    check: Check,
    where: Where,
    chunks: Chunks,
    what: str,
    index: int,
    ranges: Sequence[tuple[int, int]],
    made: Chunks | None = None,
) -> Fault:
    """The first fault of the workers of some tiles; many nodes have the same placement.

    `ranges` are needed, and `made` are the tiles that the workers make, if these are cut from them.
    """
    own = isinstance(where, Follow) and where.node == index
    key = (where, chunks, what, own, tuple(ranges), made)
    if key not in check.known:
        check.known[key] = (
            _followed(check, where, chunks, what, own)
            if isinstance(where, Follow)
            else _divided(check, where.dims, chunks, what, ranges, chunks if made is None else made)
        )
    return check.known[key]


def _followed(check: Check, where: Follow, chunks: Chunks, what: str, own: bool) -> Fault:
    """The first fault of tiles that are where the blocks of a persisted array are."""
    nodes, workers = check.tiled.program.nodes, math.prod(check.tiled.mesh)
    if not 0 <= where.node < len(nodes) or nodes[where.node].name != where.array:
        return f"tiles follow {where.array!r}, node {where.node}; expected a node of that name"
    array = nodes[where.node]
    homes = array.homes
    if homes is None:
        return f"tiles follow {where.array!r}; expected an array whose blocks have known places"
    if any(not 0 <= place < workers for places in homes for place in places):
        return f"blocks of {where.array!r} have places {homes}; expected some of {workers} workers"
    if not own and not all(homes):
        return f"tiles follow {where.array!r}; expected that no block of it is lost"
    dims = [dim for dim in where.dims if dim is not None]
    if len(where.dims) != len(array.shape) or len(set(dims)) != len(dims):
        return f"the axes of {where.array!r} run along {where.dims}; expected one {what} for each"
    for axis, (dim, sizes, numbers) in enumerate(
        zip(where.dims, array.chunks, where.numbers, strict=True)
    ):
        if dim is None and numbers is None and len(sizes) > 1 and what == "label":
            return f"axis {axis} of {where.array!r} runs along no label; expected one"
        if dim is not None and not 0 <= dim < len(chunks):
            return f"{what} {dim} follows {where.array!r}; there are {len(chunks)}"
        blocks = 1 if dim is None else len(chunks[dim])
        if numbers is not None and blocks != len(numbers):
            return (
                f"{blocks} tiles along {what} {dim} follow {len(numbers)} blocks; expected one each"
            )
        if any(not 0 <= number < len(sizes) for number in numbers or (blocks - 1,)):
            return (
                f"{blocks} tiles along {what} {dim} follow blocks {numbers} of {where.array!r}; "
                f"expected some of {len(sizes)} along its axis {axis}"
            )
    return None


def _divided(
    check: Check,
    where: Sequence[Share],
    chunks: Chunks,
    what: str,
    ranges: Sequence[tuple[int, int]],
    made: Chunks,
) -> Fault:
    """The first fault of tiles that mesh axes divide into parts, one for each worker."""
    mesh = check.tiled.mesh
    if len(where) != len(chunks):
        return f"the mesh divides {len(where)} dimensions; expected every {what} of {len(chunks)}"
    used: set[int] = set()
    for place, (share, sizes) in enumerate(zip(where, chunks, strict=True)):
        for axis in share.by:
            if not 0 <= axis < len(mesh):
                return f"mesh axis {axis} divides {what} {place}; expected one of mesh {mesh}"
            if axis in used:
                return f"mesh axis {axis} divides {what} {place} too; expected that it divides one"
            used.add(axis)
        if not share.by and not share.runs:
            continue
        parts = math.prod(mesh[axis] for axis in share.by)
        if len(share.runs) != parts or min(share.runs) < 0 or sum(share.runs) != len(sizes):
            return (
                f"{what} {place} is divided into runs of {share.runs} blocks; expected {parts} "
                f"runs that have each of {len(sizes)} blocks once"
            )
        # a part ends at the tile or at the fixed chunk nearest to an even share
        first, last = ranges[place]
        size = last - first
        pieces = [*_inside(sizes, first, last), *_inside(made[place], first, last)]
        step = max([check.cells.get(sum(sizes), 0), *pieces])
        ends = [min(max(end, first), last) for end in _ends(share, sizes)]
        largest = max(hi - lo for lo, hi in pairwise(ends))
        if largest > size / parts * (1 + ROUNDING) + step:
            return (
                f"a worker has {largest} of {size} elements of {what} {place}, divided into "
                f"{parts}; expected at most an even share and {step} more"
            )
    return None


def _inside(sizes: Sequence[int], lo: int, hi: int) -> list[int]:
    """The sizes of the pieces that are in a range, in part at least."""
    ends = pairwise(accumulate(sizes, initial=0))
    return [stop - start for start, stop in ends if start < hi and stop > lo]


def _ends(share: Share, sizes: Sequence[int]) -> list[int]:
    """Where the parts of the workers along an axis begin and end, in elements."""
    edges = list(accumulate(sizes, initial=0))
    return [edges[block] for block in accumulate(share.runs or (len(sizes),), initial=0)]
