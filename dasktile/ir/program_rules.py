"""The rules of a legal program.

A rule returns the first fault of one node, or None.  Each may rely on those before it in
:data:`PROGRAM_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from dasktile.ir.program import AxisMap, Chunks, Kind, Node, Program, Role

#: A fault: one sentence that says what is wrong, and what was expected; None if there is none.
Fault = str | None


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
        if not covers(label.cuts, label.size):
            return f"label {number} has cuts {label.cuts}; expected sizes that sum to {label.size}"
    for what, chunks in (("chunks", node.chunks), ("stored chunks", node.stored)):
        if chunks is not None and not is_cut(chunks, node.shape):
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
        labels_read = [axis.label for axis in edge.axes]
        for place, (axis, size) in enumerate(zip(edge.axes, shape, strict=True)):
            if axis.label is None or not size:
                continue
            label, what = node.labels[axis.label], f"axis {place} of edge {number}"
            if axis.width < 1:
                return f"{what} is read in windows of {axis.width}; expected at least 1 element"
            if axis.breaks:
                if fault := _breaks(axis, label.size, size, program.is_part):
                    return f"{what} is read in windows {fault}"
                continue
            if axis.parts:
                sizes = () if edge.chunks is None else edge.chunks[place]
                if fault := _axis_parts(axis, label.cuts, sizes, program.is_part):
                    return f"{what} is read in blocks {fault}"
                continue
            if edge.chunks is not None:
                windows = _block_windows(axis, label.cuts, size)
                parts = _parts(edge.chunks[place])
                if windows != parts and not (program.is_part and set(windows) <= set(parts)):
                    return f"{what} is read in blocks {windows}; expected {edge.chunks[place]}"
                continue
            # a diagonal ends where the shorter of two axes ends
            is_whole = node.kind is not Kind.VIEW and labels_read.count(axis.label) == 1
            is_all = label.size == size or (program.is_part and label.size < size)
            if axis.identity and is_whole and not is_all:
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


def _breaks(axis: AxisMap, count: int, size: int, is_part: bool) -> Fault:
    """Windows of several sizes follow one another, one for each iteration."""
    sizes = [hi - lo for lo, hi in pairwise(axis.breaks)]
    inside = is_part and axis.breaks[0] >= 0 and axis.breaks[-1] <= size
    is_whole = covers(sizes, size) and not axis.breaks[0]
    if axis.start or not (is_whole or inside) or len(sizes) != count:
        return f"of {len(sizes)} sizes up to {axis.breaks[-1]}; expected {count} up to {size}"
    if not min(sizes) or not axis.step == axis.width == max(sizes):
        return f"of {min(sizes)} to {max(sizes)}; expected 1 to {axis.width} elements"
    return None


def _axis_parts(axis: AxisMap, cuts: Sequence[int], sizes: Sequence[int], is_part: bool) -> Fault:
    """Every block of a label reads the block of an axis with its number.

    In a part of a program, others may read blocks before and after these.
    """
    # no iteration reads the blocks before the first one
    skips = is_part and bool(cuts[0]) and axis.parts[0][0] == 0
    skipped = axis.parts[0][1] if skips else 0
    ends = [end for end in accumulate(sizes) if end > skipped or not skips]
    expected = [(0, skipped)] * skips + list(zip(accumulate(cuts), ends, strict=False))
    if list(axis.parts) == expected and (is_part or len(sizes) == len(cuts)):
        return None
    return f"{list(axis.parts)}; expected {expected}"


def _block_windows(axis: AxisMap, cuts: Sequence[int], size: int) -> list[tuple[int, int]]:
    """The elements of an axis that each block of a label reads, (start, stop)."""
    windows = []
    for lo, hi in _parts(cuts):
        ends = [axis.start + axis.step * at for at in (lo, hi - 1)]
        # beyond the end there is an empty block
        windows.append((min(size, max(0, min(ends))), min(size, max(ends) + axis.width)))
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


def names_fault(program: Program) -> Fault:
    """Nodes of one name are the same, or numbered replicas: layers are named after them."""
    first: dict[tuple[str, int], Node] = {}
    for index, node in enumerate(program.nodes):
        if first.setdefault((node.name, node.copy), node) != node:
            return f"node {index} has name {node.name!r} and number {node.copy}; expected others"
    return None


def outputs_fault(program: Program) -> Fault:
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


def covers(sizes: Sequence[int], size: int) -> bool:
    """Whether tiles of these sizes cover an axis without gap or overlap."""
    return len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == size


def is_cut(chunks: Chunks, shape: Sequence[int]) -> bool:
    """Whether chunks cover an array without gap or overlap."""
    return len(chunks) == len(shape) and all(map(covers, chunks, shape))


def _parts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where each tile along an axis begins and ends, in elements."""
    return list(pairwise(accumulate(sizes, initial=0)))
