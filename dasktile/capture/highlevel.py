"""From the layers of a dask graph to a program.

The walk starts at the outputs and follows the inputs of the operations.  The recognisers are
called in order for each array layer.  A layer that none of them recognises is unchanged,
together with the layers it needs that are not arrays.  Nothing here recurses, because graphs
are deep.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from dask.array import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.utils import key_split

from dasktile._compat.dask import Task
from dasktile.capture.base import (
    ArrayInfo,
    Captured,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    Rechunked,
    Recogniser,
    Verbatim,
    has_blocks,
)
from dasktile.capture.corrections import correct_arrays, has_wrong_chunk_type
from dasktile.capture.reasons import reason_for
from dasktile.capture.references import head_of
from dasktile.capture.rules import (
    blockwise,
    contraction,
    einsums,
    folds,
    groups,
    sources,
    transforms,
    views,
)
from dasktile.capture.undeclared import declare_reads
from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role, bounds

#: The first result that is an operation or a rechunk decides.  If there is none, the reason of
#: the first recogniser that declines is shown.  Contractions come before folds, which would
#: recognise their sums as ordinary ones; gufuncs before views, which would recognise the layer
#: that renames their blocks as a rechunk; cheap recognisers before those that read tasks; last
#: the one that only gives a reason for an unchanged layer.
RECOGNISERS: tuple[Recogniser, ...] = (
    *contraction.RECOGNISERS,
    *einsums.RECOGNISERS,
    *transforms.RECOGNISERS,
    *sources.RECOGNISERS,
    *blockwise.RECOGNISERS,
    *groups.RECOGNISERS,
    *views.RECOGNISERS,
    *folds.RECOGNISERS,
    blockwise.block_dependent,
)

_Answer = Operation | Rechunked

logger = logging.getLogger("dasktile")

#: How often each recogniser has raised an exception in this process.
failures: Counter[str] = Counter()


def capture(arrays: Sequence[Array]) -> Captured:
    """Capture dask arrays as one program.

    Parameters
    ----------
    arrays
        The arrays to compute, all of known chunk sizes.

    Returns
    -------
    The program, whose outputs are the arrays in order.  An array and its rechunked version
    share a node.

    Raises
    ------
    ValueError
        If an array has unknown chunk sizes: see :func:`describable`.
    """
    roots = []
    for array in arrays:
        if not describable(array):
            raise ValueError(f"{array.name!r} has unknown chunk sizes: {array.chunks}")
        chunks = tuple(tuple(int(size) for size in sizes) for sizes in array.chunks)
        roots.append(ArrayInfo(array.name, tuple(map(sum, chunks)), array.dtype, chunks))
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
    return capture_graph(graph, roots)


def describable(array: Array) -> bool:
    """True if all chunk sizes of an array are known, so that it can be captured."""
    return not any(math.isnan(size) for sizes in array.chunks for size in sizes)


def capture_graph(
    graph: HighLevelGraph, roots: Sequence[ArrayInfo], alone: Mapping[str, str] | None = None
) -> Captured:
    """Capture what a graph computes for the arrays `roots`, its outputs in this order.

    Arrays named in `alone` keep their chunks, for the reason given there.

    Raises
    ------
    UndeclaredReadError
        If tasks read keys of an array that are not its blocks.
    """
    view = GraphView(graph, {root.name: root for root in roots})
    correct_arrays(view)
    view = declare_reads(view)
    errors: list[Exception] = []
    names = [root.name for root in roots]
    answers = _walk(view, names, alone or {}, errors)
    _join_sources(view, answers, names)
    order = _sorted(answers, names)
    index = {name: number for number, name in enumerate(order)}

    def producer(name: str) -> int:
        return index[_resolved(answers, name)]

    nodes: list[Node] = []
    kernels: list[Any] = []
    for name in order:
        answer, info = answers[name], view.array(name)
        assert isinstance(answer, Operation) and info is not None
        nodes.append(
            Node(
                name=name,
                op=answer.op,
                kind=answer.kind,
                labels=answer.labels,
                out=answer.out,
                shape=info.shape,
                dtype=str(info.dtype),
                itemsize=info.dtype.itemsize,
                chunks=info.chunks,
                edges=tuple(
                    Edge(
                        producer(read.layer),
                        read.axes,
                        read.chunks,
                        read.within,
                        read.spread,
                        read.picks,
                    )
                    for read in answer.inputs
                ),
                partial=answer.partial,
                work=answer.work,
                stored=answer.stored,
                resident=answer.resident,
                reason=answer.reason,
                root=answer.root,
                repeatable=answer.repeatable,
                groups=answer.groups,
                windows=answer.windows,
            )
        )
        kernels.append(answer.kernel)
    outputs = tuple(producer(root.name) for root in roots)
    return Captured(Program(tuple(nodes), outputs), tuple(kernels), view.graph, tuple(errors))


def _walk(
    view: GraphView, names: Sequence[str], alone: Mapping[str, str], errors: list[Exception]
) -> dict[str, _Answer]:
    """The result for every layer that the named ones need; exceptions are added to `errors`."""
    answers: dict[str, _Answer] = {}
    stack = list(reversed(names))
    while stack:
        name = stack.pop()
        if name in answers:
            continue
        answer = answers[name] = _recognise(view, name, alone.get(name, ""), errors)
        stack.extend(reversed(_reads(answer)))
    return answers


def _reads(answer: _Answer) -> list[str]:
    if isinstance(answer, Rechunked):
        return [answer.layer]
    return [read.layer for read in answer.inputs]


def _resolved(answers: Mapping[str, _Answer], name: str) -> str:
    """The layer that computes an array, below all rechunks."""
    answer = answers[name]
    while isinstance(answer, Rechunked):
        name = answer.layer
        answer = answers[name]
    return name


def _sorted(answers: Mapping[str, _Answer], names: Iterable[str]) -> list[str]:
    """Layers of operations, producers first, otherwise in the order of the outputs."""
    order: dict[str, None] = {}
    for root in names:
        stack = [_resolved(answers, root)]
        while stack:
            name = stack[-1]
            if name in order:
                stack.pop()
                continue
            reads = (_resolved(answers, read) for read in _reads(answers[name]))
            waiting = [read for read in reads if read not in order]
            if waiting:
                stack.extend(reversed(waiting))
            else:
                order[name] = None
                stack.pop()
    return list(order)


def _join_sources(view: GraphView, answers: dict[str, _Answer], names: Sequence[str]) -> None:
    """Make one node of many unchanged sources of one block, and of the array that joins them.

    Such arrays, as of ``da.stack`` of ``da.from_delayed``, would each be on one worker alone, and
    on the same one.  The blocks of the joined array are divided among the workers.
    """
    readers = Counter(names)
    for answer in answers.values():
        readers.update(set(_reads(answer)))
    joined: set[str] = set()
    for name in _sorted(answers, names):
        reads, info = _reads(answers[name]), view.array(name)
        if len(reads) < 2 or view.layers[name].annotations or not _takes_blocks(view, name):
            continue
        inside: set[str] = set()
        for read in reads:
            private = _private(view, answers, readers, joined, read)
            if not private:
                break
            inside |= private
        else:
            assert info is not None
            first = next(read for read in _sorted(answers, reads) if not _reads(answers[read]))
            reason = getattr(answers[first], "reason", "")
            answers[name] = _opaque(view, info, reason, inside)
            joined.add(name)


def _takes_blocks(view: GraphView, name: str) -> bool:
    """Whether every block of an array is made from one block of another, each from its own."""
    if isinstance(view.layers[name], Blockwise):
        return False
    reads = [task.dependencies for task in view.tasks(name).values()]
    return all(len(keys) == 1 for keys in reads) and len({*reads}) == len(reads)


def _private(
    view: GraphView,
    answers: Mapping[str, _Answer],
    readers: Mapping[str, int],
    joined: Collection[str],
    name: str,
) -> set[str]:
    """The arrays that only this one is made of, all of one block, and this array itself.

    Empty if no unchanged source is among them, or if something else reads this array.  They may
    read other arrays of one block.
    """
    found: set[str] = set()
    has_source = False
    stack = [name]
    while stack:
        read = stack.pop()
        answer, info = answers[read], view.array(read)
        assert info is not None
        whole = read in joined and read == name
        if isinstance(answer, Rechunked) or not (whole or _has_one_block(info)):
            return set()
        if readers[read] > 1:
            if read == name:
                return set()
            continue
        if answer.resident or view.layers[read].annotations:
            return set()
        found.add(read)
        reads = _reads(answer)
        has_source |= whole or (answer.kind is Kind.OPAQUE and not reads)
        stack.extend(reads)
    return found if has_source else set()


def _has_one_block(array: ArrayInfo) -> bool:
    return math.prod(array.numblocks) == 1


def _recognise(view: GraphView, name: str, reason: str, errors: list[Exception]) -> _Answer:
    info = view.array(name)
    assert info is not None
    reason = reason or _unchanged_reason(view.layers[name], info)
    if reason:
        resident = sources.in_memory(view, name)
        if resident is not None and resident.kind is Kind.OPAQUE:
            return resident
        return _opaque(view, info, reason)
    declined = ""
    for recogniser in RECOGNISERS:
        try:
            answer = recogniser(view, name)
            problem = _problem(view, info, answer) if answer is not None else ""
        except Exception as error:
            label = f"{recogniser.__module__}.{recogniser.__name__}"
            failures[label] += 1
            errors.append(error)
            logger.debug("%s failed", label, exc_info=True)
            defect = f"dasktile failed: {label} raised {type(error).__name__}: {error}"
            return _opaque(view, info, defect)
        if problem:
            reason = reason or problem
        elif isinstance(answer, NotRecognised):
            declined = declined or answer.reason
        elif answer is not None:
            return answer
    return _opaque(view, info, reason or reason_for(view, name, declined))


def _unchanged_reason(layer: Layer, info: ArrayInfo) -> str:
    """The reason for which a layer is unchanged whatever its operation; empty if there is none."""
    if layer.annotations:
        return "the layer is annotated"
    if info.dtype.hasobject or info.dtype.kind == "V":
        return f"arrays of dtype {info.dtype} are not supported"
    if any(size == 0 for sizes in info.chunks for size in sizes):
        return "some chunks are empty"
    if isinstance(layer, Blockwise) and layer.output_blocks:
        return "only some of its blocks are in the graph"
    kind = _unsupported_type(layer)
    if kind == "tuple":
        return "its blocks are tuples of partial results"
    return f"chunks of type {kind} are not supported" if kind else ""


def _unsupported_type(layer: Layer) -> str:
    """The type of a layer's chunks if it is not supported, else empty."""
    kind = str((layer.collection_annotations or {}).get("chunk_type", "numpy.ndarray"))
    plain = kind == "numpy.ndarray" or kind.startswith("cupy.")
    return "" if plain or has_wrong_chunk_type(layer) else kind


def _problem(view: GraphView, info: ArrayInfo, answer: _Answer | NotRecognised) -> str:
    """The inconsistency in the result of a recogniser; empty if there is none."""
    if isinstance(answer, NotRecognised):
        return ""
    if isinstance(answer, Rechunked):
        other = view.array(answer.layer)
        if other is None or other.shape != info.shape or other.dtype != info.dtype:
            return "a rechunk of an array of unknown shape"
        return ""
    for label in answer.labels:
        if sum(label.cuts) != label.size:
            return f"cuts {label.cuts} do not sum to {label.size}"
    count = len(answer.labels)
    if len(answer.out) != len(info.shape):
        return f"{len(answer.out)} output maps for {len(info.shape)} axes"
    for axis, size in zip(answer.out, info.shape, strict=True):
        if axis.label is not None:
            if not 0 <= axis.label < count:
                return f"label {axis.label} does not exist"
            if axis.start or axis.step != axis.width:
                return f"output map {axis} skips elements"
            if axis.step * answer.labels[axis.label].size != size:
                return f"output map {axis} does not cover {size}"
    for read in answer.inputs:
        array = view.array(read.layer)
        if array is None:
            return "reads an array of unknown chunk sizes"
        if len(read.axes) != len(array.shape):
            return f"{len(read.axes)} maps for an array of {array.shape}"
        if any(axis.label is not None and not 0 <= axis.label < count for axis in read.axes):
            return "an input map names a label that does not exist"
        if read.chunks is not None and tuple(map(sum, read.chunks)) != array.shape:
            return f"reads chunks {read.chunks} of an array of {array.shape}"
        if read.within is not None and not _lies_within(answer.labels, *read.within):
            return f"an input is read within {read.within}, which does not exist"
        if answer.kind is Kind.OPAQUE:
            continue
        if any(0 in sizes for sizes in array.chunks):
            return "reads an array with empty chunks"
        kind = _unsupported_type(view.layers[read.layer])
        if kind:
            return f"reads chunks of type {kind}, which are not supported"
    return ""


def _lies_within(labels: Sequence[Label], label: int, lo: int, hi: int) -> bool:
    return 0 <= label < len(labels) and 0 <= lo < hi <= labels[label].size


def _opaque(
    view: GraphView, info: ArrayInfo, reason: str, inside: Collection[str] = ()
) -> Operation:
    """An unchanged node, with all layers it needs down to the next arrays of known shape.

    Arrays named in `inside` are part of it.
    """
    members, arrays = _members(view, info.name, inside)
    one_block = _has_one_block(info)
    return Operation(
        op=key_split(info.name),
        kind=Kind.OPAQUE,
        labels=tuple(Label(sum(cuts), Role.PINNED, cuts) for cuts in info.chunks),
        out=tuple(AxisMap(axis) for axis in range(len(info.shape))),
        kernel=Verbatim(members, tuple(array.name for array in arrays)),
        inputs=tuple(
            Input(
                array.name,
                _known_maps(view.layers[info.name], info, array),
                array.chunks,
                # blocks of a node with several are known to be made apart
                spread=one_block and _is_spread(view, members, array),
            )
            for array in arrays
        ),
        reason=reason,
        root=members == (info.name,) and _is_root(view, info.name),
    )


def _is_root(view: GraphView, name: str) -> bool:
    """Whether the tasks of a layer read nothing and may run on any worker."""
    layer = view.layers[name]
    if view.graph.dependencies.get(name) or layer.annotations:
        return False
    return isinstance(layer, Blockwise) or all(
        type(task) is Task and not task.dependencies for task in view.tasks(name).values()
    )


def _is_spread(view: GraphView, members: tuple[str, ...], array: ArrayInfo) -> bool:
    """Whether no task of some layers reads more than half of the blocks of an array."""
    blocks = math.prod(map(len, array.chunks))
    return blocks > 1 and all(
        2 * sum(head_of(key) == array.name for key in task.dependencies) <= blocks
        for member in members
        if array.name in view.dependencies(member)
        for task in view.tasks(member).values()
    )


def _members(
    view: GraphView, name: str, inside: Collection[str] = ()
) -> tuple[tuple[str, ...], tuple[ArrayInfo, ...]]:
    """Layers of an opaque node, that of its array last, and the arrays they read."""
    members: dict[str, None] = {}
    arrays: dict[str, ArrayInfo] = {}
    stack = [name]
    while stack:
        member = stack[-1]
        waiting: list[str] = []
        for other in view.dependencies(member):
            array = view.array(other)
            if array is not None and other not in inside and has_blocks(view.layers[other], array):
                arrays[other] = array
            elif other not in members:
                waiting.append(other)
        if waiting and member not in members:
            stack.extend(reversed(waiting))
        else:
            members[member] = None
            stack.pop()
    return tuple(members), tuple(arrays.values())


def _known_maps(layer: Layer, info: ArrayInfo, array: ArrayInfo) -> tuple[AxisMap, ...]:
    """The part of an array that the blocks of a layer read, from its index symbols."""
    maps = [AxisMap(None)] * len(array.shape)
    if not isinstance(layer, Blockwise):
        return tuple(maps)
    uses = [
        symbols
        for argument, symbols in layer.indices
        # an argument without symbols is a literal of any type
        if symbols is not None and argument == array.name
    ]
    if len(uses) != 1 or len(uses[0]) != len(maps):
        return tuple(maps)
    for axis, symbol in enumerate(uses[0]):
        if symbol in layer.output_indices:
            label = layer.output_indices.index(symbol)
            maps[axis] = _block_map(label, info.chunks[label], array.chunks[axis])
    return tuple(maps)


def _block_map(label: int, own: tuple[int, ...], read: tuple[int, ...]) -> AxisMap:
    """The map by which every block of a label reads the block of an axis with its number."""
    if len(own) != len(read) or not own[0]:
        return AxisMap(None)
    ratio = max(1, read[0] // own[0])
    candidate = AxisMap(label, 0, ratio, ratio)
    inner, outer, size = bounds(own), bounds(read), sum(read)
    fits = all(
        candidate.interval(lo, hi, size) == interval
        for lo, hi, interval in zip(
            inner[:-1], inner[1:], zip(outer[:-1], outer[1:], strict=True), strict=True
        )
    )
    return candidate if fits else AxisMap(None)
