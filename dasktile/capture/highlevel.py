"""From the layers of a dask graph to a program.

The walk starts at the outputs and follows the inputs of the operations.  The recognisers are
called in order for each array layer.  A layer that none of them recognises is unchanged,
together with the layers it needs that are not arrays.  Nothing here recurses, because graphs
are deep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask.array import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import unique_internal
from dasktile.capture.answers import Answer, producers_first, reads_of, resolved
from dasktile.capture.base import (
    ArrayInfo,
    Captured,
    GraphView,
    NotRecognised,
    Operation,
    Rechunked,
    Recogniser,
)
from dasktile.capture.corrections import called_function, correct_arrays, has_wrong_chunk_type
from dasktile.capture.empty import with_all_blocks
from dasktile.capture.failures import note_failure
from dasktile.capture.joined import join_sources
from dasktile.capture.measured import measured_arrays
from dasktile.capture.reasons import UNKNOWN_SIZES, no_rule, reason_for
from dasktile.capture.rules import (
    assignments,
    blockwise,
    contraction,
    diagonals,
    einsums,
    folds,
    groups,
    histograms,
    masked,
    selections,
    sources,
    transforms,
    views,
    whole_groups,
)
from dasktile.capture.rules.stencils import Stencil
from dasktile.capture.titles import call_of_layer
from dasktile.capture.unchanged import opaque
from dasktile.capture.undeclared import declare_reads
from dasktile.capture.user_kernels import lookup
from dasktile.ir import Edge, Kind, Label, Node, Program

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
    *masked.RECOGNISERS,
    *groups.RECOGNISERS,
    *whole_groups.RECOGNISERS,
    *views.RECOGNISERS,
    *assignments.RECOGNISERS,
    *diagonals.RECOGNISERS,
    *histograms.RECOGNISERS,
    *selections.RECOGNISERS,
    *folds.RECOGNISERS,
    blockwise.block_dependent,
)


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
    view = GraphView(with_all_blocks(graph), {root.name: root for root in roots})
    correct_arrays(view)
    view.add(measured_arrays(view))
    view = declare_reads(view)
    names = [root.name for root in roots]
    answers = _walk(view, names, alone or {})
    join_sources(view, answers, names)
    order = producers_first(answers, names)
    index = {name: number for number, name in enumerate(order)}

    def producer(name: str) -> int:
        return index[resolved(answers, name)]

    nodes: list[Node] = []
    kernels: list[Any] = []
    for name in order:
        answer, info = answers[name], view.result(name)
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
                user_function=_is_registered(answer.kernel),
                has_inner_tasks=answer.has_inner_tasks,
            )
        )
        kernels.append(answer.kernel)
    outputs = tuple(producer(root.name) for root in roots)
    return Captured(Program(tuple(nodes), outputs), tuple(kernels), view.graph, tuple(view.errors))


def _walk(view: GraphView, names: Sequence[str], alone: Mapping[str, str]) -> dict[str, Answer]:
    """The result for every layer that the named ones need."""
    answers: dict[str, Answer] = {}
    stack = list(reversed(names))
    while stack:
        name = stack.pop()
        if name in answers:
            continue
        answer = answers[name] = _recognise(view, name, alone.get(name, ""))
        stack.extend(reversed(reads_of(answer)))
    return answers


def _recognise(view: GraphView, name: str, reason: str) -> Answer:
    info = view.result(name)
    assert info is not None
    if info.bounded:
        return opaque(view, info, _reason(view, name, UNKNOWN_SIZES))
    if reason:
        # where its inputs are placed depends on what it is
        known = _recognise(view, name, "")
        if not isinstance(known, Operation) or known.kind is Kind.OPAQUE:
            return known if _is_resident(known) else opaque(view, info, reason)
        return opaque(view, info, reason, known=known)
    reason = _unchanged_reason(view.layers[name], info)
    if reason:
        resident = sources.in_memory(view, name)
        if resident is not None and resident.kind is Kind.OPAQUE:
            return resident
        return opaque(view, info, reason)
    declined = ""
    otherwise: Operation | None = None
    for recogniser in RECOGNISERS:
        try:
            answer = recogniser(view, name)
            problem = _problem(view, info, answer) if answer is not None else ""
        except Exception as error:
            label = note_failure(view, recogniser, error)
            defect = f"dasktile failed: {label} raised {type(error).__name__}: {error}"
            return opaque(view, info, defect)
        if problem:
            reason = reason or problem
        elif isinstance(answer, NotRecognised):
            declined, otherwise = declined or answer.reason, otherwise or answer.known
        elif answer is not None:
            return answer
    return opaque(view, info, reason or _reason(view, name, declined), known=otherwise)


def _reason(view: GraphView, name: str, declined: str) -> str:
    """As :func:`reason_for`, and a general reason where that fails: no plan depends on it."""
    try:
        return reason_for(view, name, declined)
    except Exception as error:
        note_failure(view, reason_for, error)
        return declined or no_rule(call_of_layer(name))


def _is_registered(kernel: Any) -> bool:
    """Whether an operation applies a function that the user registered to every block."""
    task = kernel.layer.task if isinstance(kernel, blockwise.Map) else None
    if isinstance(kernel, Stencil):
        task = kernel.task
    return task is not None and lookup(task.func) is not None


def _is_resident(answer: Answer) -> bool:
    return isinstance(answer, Operation) and answer.resident


def _unchanged_reason(layer: Layer, info: ArrayInfo) -> str:
    """The reason for which a layer is unchanged whatever its operation; empty if there is none."""
    if layer.annotations:
        return "the layer is annotated"
    if info.dtype.hasobject or info.dtype.kind == "V":
        if called_function(layer)[0] is unique_internal:
            return f"a step of unique: {UNKNOWN_SIZES}"
        return f"arrays of dtype {info.dtype} are not supported"
    if any(0 in sizes for sizes in info.chunks):
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


def _problem(view: GraphView, info: ArrayInfo, answer: Answer | NotRecognised) -> str:
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
