"""The rules of a legal program and of a legal tiled program, which run between passes.

A rule is a function that returns the first fault of one node, or None.  :data:`PROGRAM_RULES` and
:data:`TILED_RULES` name the rules in their order: each may rely on those before it.  A fault is a
defect of a pass, and never of the user's arguments.

The rules count elements from chunks, runs and homes alone.  They use no function that the passes
use, so that an error in such a function cannot hide itself.  What a plan costs is no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from dasktile.ir.program import AxisMap, Chunks, Edge, Kind, Node, Program, Role
from dasktile.ir.tiled import Follow, Share, TiledProgram, Tiling, Where

#: A fault: one sentence that says what is wrong, and what was expected; None if there is none.
Fault = str | None

#: Share of an even part by which a part may be longer where all parts have one length (by
#: definition: lengths of at least 50 elements are rounded up to whole elements).
ROUNDING = 1 / 50


class VerificationError(RuntimeError):
    """A program or a tiled program breaks a rule, which is a defect of dasktile.

    Parameters
    ----------
    rule
        Name of the rule.
    subject
        The node, or the whole program.
    fault
        What is wrong, and what was expected.
    """

    def __init__(self, rule: str, subject: str, fault: str) -> None:
        super().__init__(f"{subject} breaks the rule {rule!r}: {fault}")
        self.rule, self.subject, self.fault = rule, subject, fault

    def __reduce__(self) -> tuple[type[VerificationError], tuple[str, str, str]]:
        return type(self), (self.rule, self.subject, self.fault)


def verify_program(program: Program) -> None:
    """Check that a program is legal.

    Parameters
    ----------
    program
        The program.

    Raises
    ------
    VerificationError
        If it is not; the message has the node, the rule, what is wrong and what was expected.
    """
    for index in range(len(program.nodes)):
        for rule, fault_of in PROGRAM_RULES.items():
            _raise(rule, _subject(program, index), fault_of(program, index))
    _raise("names", "the program", _names(program))
    _raise("outputs", "the program", _outputs(program))


def verify_tiled(tiled: TiledProgram, memory_limit: int | None = None) -> None:
    """Check that a tiled program, and the program in it, are legal.

    Parameters
    ----------
    tiled
        The tiled program.
    memory_limit
        Bytes that the tiles of one task may take, and that a worker may hold of one array of which
        others hold replicas.  None where no limit holds, as for tiles that are the input's chunks.

    Raises
    ------
    VerificationError
        If they are not; the message has the node, the rule, what is wrong and what was expected.
    """
    verify_program(tiled.program)
    _raise("tilings", "the tiled program", _tilings(tiled))
    check = _Check(tiled, memory_limit, _cells(tiled.program))
    for index in range(len(tiled.program.nodes)):
        for rule, fault_of in TILED_RULES.items():
            _raise(rule, _subject(tiled.program, index), fault_of(check, index))


def _subject(program: Program, index: int) -> str:
    node = program.nodes[index]
    return f"node {index} ({node.op} {node.name!r})"


def _raise(rule: str, subject: str, fault: Fault) -> None:
    if fault is not None:
        raise VerificationError(rule, subject, fault)


# --- rules of a program ----------------------------------------------------------------


def _inputs(program: Program, index: int) -> Fault:
    """The arrays that a node reads are made before it, and every axis of them has a map."""
    node = program.nodes[index]
    for number, edge in enumerate(node.edges):
        if not 0 <= edge.producer < index:
            return f"edge {number} reads node {edge.producer}; expected a node before it"
        shape = program.nodes[edge.producer].shape
        if len(edge.axes) != len(shape):
            return f"edge {number} has {len(edge.axes)} maps; expected one for each axis of {shape}"
        if edge.chunks is not None and tuple(map(sum, edge.chunks)) != shape:
            return f"edge {number} reads chunks {edge.chunks}; expected those of shape {shape}"
        labels = [axis.label for axis in edge.axes if axis.label is not None]
        labels += [edge.within[0]] if edge.within is not None else []
        for label in labels:
            if not 0 <= label < len(node.labels):
                return f"edge {number} has label {label}; expected one of {len(node.labels)}"
        if edge.within is not None:
            label, lo, hi = edge.within
            size = node.labels[label].size
            if not 0 <= lo < hi <= size:
                return f"iterations [{lo}, {hi}) read edge {number}; expected some of {size}"
    return None


def _sizes(program: Program, index: int) -> Fault:
    """The chunks of labels and of arrays sum to their sizes."""
    node = program.nodes[index]
    for number, label in enumerate(node.labels):
        if not _covers(label.cuts, label.size):
            return f"label {number} has cuts {label.cuts}; expected sizes that sum to {label.size}"
    for what, chunks in (("chunks", node.chunks), ("stored chunks", node.stored)):
        if chunks is not None and not _is_cut(chunks, node.shape):
            return f"the array has {what} {chunks}; expected those of shape {node.shape}"
    return None


def _output(program: Program, index: int) -> Fault:
    """The iterations of a label write every element of an axis once."""
    node = program.nodes[index]
    if len(node.out) != len(node.shape):
        return f"there are {len(node.out)} output maps; expected one for each axis of {node.shape}"
    for place, (axis, size) in enumerate(zip(node.out, node.shape, strict=True)):
        if axis.label is None:
            continue
        if not 0 <= axis.label < len(node.labels):
            return f"axis {place} has label {axis.label}; expected one of {len(node.labels)}"
        count = node.labels[axis.label].size
        if axis.start or axis.width < 1 or axis.step != axis.width or count * axis.width != size:
            return f"axis {place} has {axis} for {count} iterations; expected to cover {size}"
    return None


def _roles(program: Program, index: int) -> Fault:
    """Only reductions make partial results, and every other label divides the result."""
    node = program.nodes[index]
    shown = {axis.label for axis in node.out}
    for number, label in enumerate(node.labels):
        reduced, scanned = label.role is Role.REDUCE, label.role is Role.SCAN
        if reduced and node.kind not in (Kind.CONTRACT, Kind.FOLD):
            return f"label {number} is reduced; expected no reduction in a {node.kind.value}"
        if reduced and number in shown:
            return f"reduced label {number} is along an output axis; expected along none"
        if scanned and node.kind is not Kind.SCAN:
            return f"label {number} is scanned; expected no scan in a {node.kind.value}"
        if not reduced and label.role is not Role.WHOLE and label.size > 1 and number not in shown:
            return f"{label.role.value} label {number} is along no output axis; expected along one"
    return None


def _windows(program: Program, index: int) -> Fault:
    """Every iteration reads elements that exist.

    Of an array that several others are joined to, each is read by some iterations: no iteration
    reads two of them, and none reads nothing.
    """
    node = program.nodes[index]
    joining = node.kind is Kind.VIEW and len(node.edges) > 1
    # by label, the iterations that read each edge, (start, stop)
    pieces: dict[int, list[tuple[int, int]]] = {}
    for number, edge in enumerate(node.edges):
        shape = program.nodes[edge.producer].shape
        read = {} if edge.within is None else {edge.within[0]: edge.within[1:]}
        for place, (axis, size) in enumerate(zip(edge.axes, shape, strict=True)):
            if axis.label is None or not size:
                continue
            label, what = node.labels[axis.label], f"axis {place} of edge {number}"
            if axis.width < 1:
                return f"{what} is read in windows of {axis.width}; expected at least 1 element"
            if edge.chunks is not None:
                windows = _block_windows(axis, label.cuts, size)
                if windows != _parts(edge.chunks[place]):
                    return f"{what} is read in blocks {windows}; expected {edge.chunks[place]}"
                continue
            if axis.identity and node.kind is not Kind.VIEW and label.size != size:
                return f"label {axis.label} has {label.size} iterations; expected {size} for {what}"
            lo, hi = _reading(axis, size, label.size)
            first, last = read.get(axis.label, (0, label.size))
            lo, hi = max(lo, first), min(hi, last)
            if (lo, hi) != (first, last) and (lo >= hi or edge.within or not joining):
                return (
                    f"iterations [{first}, {last}) of label {axis.label} read {what}; expected "
                    f"elements within its size of {size} in each of them"
                )
            read[axis.label] = lo, hi
        for numbered, part in read.items():
            pieces.setdefault(numbered, []).append(part)
    for numbered, parts in pieces.items() if joining else ():
        size = node.labels[numbered].size
        starts, stops = zip(*sorted(parts), strict=True)
        if set(parts) != {(0, size)} and (
            len(parts) != len(node.edges) or (0, *stops) != (*starts, size)
        ):
            return (
                f"arrays are joined from iterations {sorted(parts)} of label {numbered}; expected "
                f"that each of {size} reads one array"
            )
    return None


def _block_windows(axis: AxisMap, cuts: Sequence[int], size: int) -> list[tuple[int, int]]:
    """The elements of an axis that each block of a label reads, (start, stop)."""
    windows = []
    for lo, hi in _parts(cuts):
        ends = [axis.start + axis.step * at for at in (lo, hi - 1)]
        windows.append((max(0, min(ends)), min(size, max(ends) + axis.width)))
    return windows


def _reading(axis: AxisMap, size: int, count: int) -> tuple[int, int]:
    """The iterations, of `count`, that read an element of an axis of a size, (start, stop)."""
    # those with start + step * t < size and start + step * t + width > 0
    low, high = 1 - axis.width - axis.start, size - 1 - axis.start
    if not axis.step:
        return (0, count) if low <= 0 <= high else (0, 0)
    if axis.step < 0:
        low, high = -high, -low
    step = abs(axis.step)
    first, last = max(0, -(-low // step)), min(count - 1, high // step)
    return (first, last + 1) if first <= last else (0, 0)


def _persisted(program: Program, index: int) -> Fault:
    """Every block of a persisted array has its places, and is read from memory."""
    node = program.nodes[index]
    if node.homes is None:
        return None
    blocks = math.prod(map(len, node.chunks))
    if len(node.homes) != blocks:
        return f"{len(node.homes)} blocks of a persisted array have places; expected {blocks}"
    if node.edges:
        return f"a persisted array reads {len(node.edges)} arrays; expected none"
    return None


def _names(program: Program) -> Fault:
    """Nodes of one name are the same, or numbered replicas: layers are named after them."""
    first: dict[tuple[str, int], Node] = {}
    for index, node in enumerate(program.nodes):
        if first.setdefault((node.name, node.copy), node) != node:
            return f"node {index} has name {node.name!r} and number {node.copy}; expected others"
    return None


def _outputs(program: Program) -> Fault:
    """The outputs are nodes."""
    for index in program.outputs:
        if not 0 <= index < len(program.nodes):
            return f"output {index} is no node; expected one of {len(program.nodes)}"
    return None


def _runs(program: Program, index: int) -> Fault:
    """Groups and taken elements are given for every iteration of their label, and exist."""
    node = program.nodes[index]
    reduced = [label for label in node.labels if label.role is Role.REDUCE]
    if node.groups is not None:
        if node.kind is not Kind.FOLD or reduced != [node.labels[-1]]:
            return "it has groups; expected a reduction along the last label only"
        if fault := _ends_of_runs(node.groups.runs, reduced[0].size):
            return f"its groups have {fault}"
    for number, edge in enumerate(node.edges):
        picks = edge.picks
        if picks is None:
            continue
        shape = program.nodes[edge.producer].shape
        if not (0 <= picks.axis < len(shape) and 0 <= picks.label < len(node.labels)):
            return (
                f"edge {number} takes along axis {picks.axis} by label {picks.label}; expected one"
                f" of {len(shape)} axes and one of {len(node.labels)} labels"
            )
        size = node.labels[picks.label].size
        if fault := _ends_of_runs(picks.runs, size):
            return f"edge {number} takes elements in {fault}"
        if any(not 0 <= element < shape[picks.axis] for element, _ in picks.runs):
            return f"edge {number} takes elements outside of {shape[picks.axis]}; expected none"
    return None


def _ends_of_runs(runs: Sequence[tuple[int, int]], size: int) -> Fault:
    """Runs end one after the other, the last one after all iterations."""
    ends = [0, *(end for _, end in runs)]
    if ends[-1] == size and all(lo < hi for lo, hi in pairwise(ends)):
        return None
    return f"runs that end at {ends[-1]}; expected increasing ends up to {size}"


#: The rules of every node of a program, in their order.
PROGRAM_RULES: dict[str, Callable[[Program, int], Fault]] = {
    "inputs": _inputs,
    "sizes": _sizes,
    "output": _output,
    "roles": _roles,
    "windows": _windows,
    "persisted": _persisted,
    "runs": _runs,
}


# --- rules of a tiled program ----------------------------------------------------------


@dataclass(frozen=True)
class _Check:
    """A tiled program, and what is found once for many nodes.

    Parameters
    ----------
    tiled, memory_limit
        As in :func:`verify_tiled`.
    cells
        By the size of an axis, its longest pinned or stored chunk, in elements.
    known
        The faults of the placements that were checked before.
    """

    tiled: TiledProgram
    memory_limit: int | None
    cells: dict[int, int]
    known: dict[object, Fault] = field(default_factory=dict)

    def node(self, index: int) -> Node:
        return self.tiled.program.nodes[index]

    def tiling(self, index: int) -> Tiling:
        return self.tiled.tilings[index]


def _cells(program: Program) -> dict[int, int]:
    """By the size of an axis, its longest pinned or stored chunk: parts may end at any of them."""
    cells: dict[int, int] = {}
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


def _tilings(tiled: TiledProgram) -> Fault:
    """There is a mesh, a tiling for every node, and nothing about other nodes."""
    count = len(tiled.program.nodes)
    if len(tiled.tilings) != count:
        return f"there are {len(tiled.tilings)} tilings; expected {count}"
    if any(size < 1 for size in tiled.mesh):
        return f"the mesh is {tiled.mesh}; expected at least 1 worker along each axis"
    for index in (*tiled.kept, *tiled.copied):
        if not 0 <= index < count:
            return f"node {index} is kept or replicated; expected one of {count} nodes"
    for index in tiled.kept_at:
        if index not in tiled.kept:
            return f"node {index} has a placement of kept chunks; expected kept chunks"
    return None


def _cuts(check: _Check, index: int) -> Fault:
    """Tiles cover the loop nest without gap or overlap, and labels are cut as their roles allow."""
    node, tiling = check.node(index), check.tiling(index)
    if len(tiling.cuts) != len(node.labels):
        return f"{len(tiling.cuts)} labels are cut; expected {len(node.labels)}"
    for number, (label, sizes) in enumerate(zip(node.labels, tiling.cuts, strict=True)):
        if not _covers(sizes, label.size):
            return f"label {number} is cut into {sizes}; expected sizes that sum to {label.size}"
        if label.role is Role.WHOLE and len(sizes) != 1:
            return f"whole label {number} is cut into {sizes}; expected one piece"
        if (label.role is Role.PINNED or node.kind is Kind.OPAQUE) and sizes != label.cuts:
            return f"pinned label {number} is cut into {sizes}; expected {label.cuts}"
    return None


def _chunks(check: _Check, index: int) -> Fault:
    """Tiles cover the array without gap or overlap, and are those that the labels make.

    They are cut further only along axes without a label, or along which a sum is scattered.
    """
    node, tiling = check.node(index), check.tiling(index)
    if not _is_cut(tiling.chunks, node.shape):
        return f"the array has chunks {tiling.chunks}; expected those of shape {node.shape}"
    if node.kind is Kind.OPAQUE and tiling.chunks != node.chunks:
        return f"an unchanged array has chunks {tiling.chunks}; expected {node.chunks}"
    for place, (axis, sizes) in enumerate(zip(node.out, tiling.chunks, strict=True)):
        made: tuple[int, ...] = (node.shape[place],)
        if axis.label is not None:
            made = tuple(axis.width * cut for cut in tiling.cuts[axis.label])
        finer = axis.label is None or place in tiling.scatter
        if sizes != made and not (finer and set(accumulate(made)) <= set(accumulate(sizes))):
            return f"axis {place} has chunks {sizes}; expected {made}, as its label is cut"
    return None


def _mesh(check: _Check, index: int) -> Fault:
    """Every mesh axis cuts a label that may be cut, or none."""
    node, tiling, axes = check.node(index), check.tiling(index), len(check.tiled.mesh)
    if len(tiling.mesh) != axes or len(tiling.scatter) != axes:
        return f"mesh {tiling.mesh} and scatter {tiling.scatter} are given; expected {axes} axes"
    for axis, label in enumerate(tiling.mesh):
        if label is None:
            continue
        if not 0 <= label < len(node.labels):
            return f"mesh axis {axis} cuts label {label}; expected one of {len(node.labels)}"
        if node.labels[label].role is Role.WHOLE:
            return f"mesh axis {axis} cuts whole label {label}; expected that none does"
    return None


def _partial_sums(check: _Check, index: int) -> Fault:
    """Partial sums are of reduced labels, and are complete in the array that others read.

    A mesh axis that cuts a reduced label divides the array only along the axis on which it
    scatters the sum.
    """
    node, tiling = check.node(index), check.tiling(index)
    for axis, (label, target) in enumerate(zip(tiling.mesh, tiling.scatter, strict=True)):
        reduced = label is not None and node.labels[label].role is Role.REDUCE
        if target is not None and not reduced:
            return f"mesh axis {axis} scatters a sum; expected that it cuts a reduced label"
        if target is not None and not 0 <= target < len(node.shape):
            return f"mesh axis {axis} scatters along axis {target}; expected one of {node.shape}"
        if reduced and tiling.work_at is not None and node.itemsize and not node.partial > 0:
            return f"partial sums on mesh axis {axis} have {node.partial} bytes; expected more"
        if not reduced or not isinstance(tiling.held_at, tuple):
            continue
        for place, share in enumerate(tiling.held_at):
            if axis in share.by and place != target:
                return (
                    f"mesh axis {axis} divides partial sums along axis {place}; expected complete "
                    f"sums, {'on one worker' if target is None else f'scattered on axis {target}'}"
                )
    return None


def _work(check: _Check, index: int) -> Fault:
    """Every tile of the loop nest is on one worker, by the mesh axes that cut its labels."""
    tiling = check.tiling(index)
    work = tiling.work_at
    if (work is None) != (tiling.held_at is None):
        return "only the work or only the result has a placement; expected both or none"
    if work is None:
        return None
    fault = _placed(check, work, tiling.cuts, "label", index)
    if fault is not None:
        return fault
    if isinstance(work, Follow):
        if any(label is not None for label in tiling.mesh):
            return f"mesh {tiling.mesh} cuts a node that follows {work.array!r}; expected no label"
        return None
    for number, share in enumerate(work):
        cutting = {axis for axis, label in enumerate(tiling.mesh) if label == number}
        if set(share.by) != cutting:
            return f"mesh axes {share.by} divide label {number}; expected {sorted(cutting)}"
    return None


def _held(check: _Check, index: int) -> Fault:
    """Every tile of the array is on one worker, which is the one that makes it."""
    node, tiling = check.node(index), check.tiling(index)
    work, held = tiling.work_at, tiling.held_at
    if work is None or held is None:
        return None
    fault = _placed(check, held, tiling.chunks, "axis", index)
    if fault is not None:
        return fault
    labels = [axis.label for axis in node.out]
    if isinstance(work, Follow) or isinstance(held, Follow):
        if not isinstance(work, Follow) or not isinstance(held, Follow):
            return "only the work or only the result follows an array; expected both or none"
        shown = [label if label in labels else None for label in work.dims]
        dims = tuple(None if label is None else labels.index(label) for label in shown)
        if (held.node, held.dims) != (work.node, dims):
            return f"the result is where {held} is; expected dims {dims}, as its labels"
        return None
    taken: set[int] = set()
    for place, (axis, share) in enumerate(zip(node.out, held, strict=True)):
        scattered = {number for number, target in enumerate(tiling.scatter) if target == place}
        made = Share() if axis.label is None else work[axis.label]
        # on a diagonal two axes run along one label
        made = Share() if taken & set(made.by) else made
        taken.update(made.by)
        if axis.label is None and share.by:
            return f"mesh axes {share.by} divide axis {place}; expected none, as it has no label"
        if axis.label is None:
            continue
        if set(share.by) != {*made.by, *scattered} or share.by[: len(made.by)] != made.by:
            return (
                f"mesh axes {share.by} divide axis {place}; expected {made.by}, which cut its "
                f"label, and then {sorted(scattered)}, which scatter"
            )
        if made.by:
            own = [axis.width * end for end in _ends(made, tiling.cuts[axis.label])]
            ends = _ends(share, tiling.chunks[place])[:: len(share.runs) // len(made.runs)]
            if ends != own:
                return f"workers hold axis {place} up to {ends}; expected {own}, which they make"
    return None


def _kept(check: _Check, index: int) -> Fault:
    """An array in other chunks for its readers is the whole array, each tile on one worker."""
    node, tiled = check.node(index), check.tiled
    chunks = tiled.kept.get(index)
    if chunks is None:
        return None
    if not _is_cut(chunks, node.shape):
        return f"the array is kept in chunks {chunks}; expected those of shape {node.shape}"
    if index not in tiled.kept_at:
        return None
    return _placed(check, tiled.kept_at[index], chunks, "kept axis", index)


def _replicas(check: _Check, index: int) -> Fault:
    """A replicated array is divided by some mesh axes, and the same along others."""
    tiled, limit = check.tiled, check.memory_limit
    if index not in tiled.copied:
        return None
    where, axes = tiled.copied[index]
    if not axes or len(set(axes)) != len(axes) or not set(axes) <= set(range(len(tiled.mesh))):
        return f"replicas are along mesh axes {axes}; expected some of mesh {tiled.mesh}, each once"
    if isinstance(where, Follow):
        return f"replicas follow {where.array!r}; expected that mesh axes divide them"
    chunks = tiled.kept.get(index, check.tiling(index).chunks)
    fault = _placed(check, where, chunks, "replicated axis", index)
    if fault is not None:
        return fault
    both = sorted({axis for share in where for axis in share.by} & set(axes))
    if both:
        return f"mesh axes {both} divide and replicate the array; expected one of the two"
    largest = check.node(index).itemsize
    for share, sizes in zip(where, chunks, strict=True):
        largest *= max(hi - lo for lo, hi in pairwise(_ends(share, sizes)))
    if limit is not None and largest > limit:
        return f"a worker holds {largest} bytes of a replicated array; expected at most {limit}"
    return None


def _memory(check: _Check, index: int) -> Fault:
    """The tiles that a task reads and makes fit the memory limit, where smaller ones may."""
    node, limit = check.node(index), check.memory_limit
    # pinned tiles and stored chunks cannot be made smaller
    if limit is None or node.pinned or node.stored is not None:
        return None
    longest = [max(sizes, default=0) for sizes in check.tiling(index).cuts]
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


def _read_bytes(check: _Check, edge: Edge, longest: Sequence[int]) -> int:
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
TILED_RULES: dict[str, Callable[[_Check, int], Fault]] = {
    "cuts": _cuts,
    "chunks": _chunks,
    "mesh": _mesh,
    "partial sums": _partial_sums,
    "work": _work,
    "held": _held,
    "kept": _kept,
    "replicas": _replicas,
    "memory": _memory,
}


# --- placements ------------------------------------------------------------------------


def _placed(check: _Check, where: Where, chunks: Chunks, what: str, index: int) -> Fault:
    """The first fault of the workers of some tiles; many nodes have the same placement."""
    own = isinstance(where, Follow) and where.node == index
    key = (where, chunks, what, own)
    if key not in check.known:
        check.known[key] = (
            _followed(check, where, chunks, what, own)
            if isinstance(where, Follow)
            else _divided(check, where, chunks, what)
        )
    return check.known[key]


def _followed(check: _Check, where: Follow, chunks: Chunks, what: str, own: bool) -> Fault:
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
    for axis, (dim, sizes) in enumerate(zip(where.dims, array.chunks, strict=True)):
        if dim is None and len(sizes) > 1 and what == "label":
            return f"axis {axis} of {where.array!r} runs along no label; expected one"
        if dim is not None and (not 0 <= dim < len(chunks) or chunks[dim] != sizes):
            return f"{what} {dim} of {chunks} follows {where.array!r}; expected its chunks {sizes}"
    return None


def _divided(check: _Check, where: Sequence[Share], chunks: Chunks, what: str) -> Fault:
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
        # a part ends at the tile or at the pinned or stored chunk nearest to an even share
        size, step = sum(sizes), max(check.cells.get(sum(sizes), 0), *sizes)
        largest = max(hi - lo for lo, hi in pairwise(_ends(share, sizes)))
        if largest > size / parts * (1 + ROUNDING) + step:
            return (
                f"a worker has {largest} of {size} elements of {what} {place}, divided into "
                f"{parts}; expected at most an even share and {step} more"
            )
    return None


def _covers(sizes: Sequence[int], size: int) -> bool:
    """Whether tiles of these sizes cover an axis without gap or overlap."""
    return len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == size


def _is_cut(chunks: Chunks, shape: Sequence[int]) -> bool:
    """Whether chunks cover an array without gap or overlap."""
    return len(chunks) == len(shape) and all(map(_covers, chunks, shape))


def _parts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where each tile along an axis begins and ends, in elements."""
    return list(pairwise(accumulate(sizes, initial=0)))


def _ends(share: Share, sizes: Sequence[int]) -> list[int]:
    """Where the parts of the workers along an axis begin and end, in elements."""
    edges = list(accumulate(sizes, initial=0))
    return [edges[block] for block in accumulate(share.runs or (len(sizes),), initial=0)]
