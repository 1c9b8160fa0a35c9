"""Workers for the blocks of arrays whose operations are unknown, as ``dask.optimize`` leaves them.

The model, which knows no operation of such an array, counts the same bytes wherever its blocks are
made.  What their tasks move is known from simulated runs only, of several divisions of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dasktile.capture.base import Captured
from dasktile.ir import Kind, Node, Program
from dasktile.lower.written import wanted_keys
from dasktile.planning import Candidate, candidate
from dasktile.predicted import InputRun, with_own_prediction
from dasktile.prediction import CLEARLY_LESS, MORE_MOVED, MOST_UNEVEN, Prediction
from dasktile.request import Request

#: Tasks of the input, as it runs, up to which divisions are tried (chosen: each is written, and its
#: run simulated).
MOST_TASKS = 2_000


def best_division(
    request: Request, captured: Captured, usual: Candidate, stock: InputRun, reason: str
) -> Candidate:
    """A plan, or one that divides the blocks otherwise, which moves fewer bytes or costs less.

    Parameters
    ----------
    request
        The arrays and their graph.
    captured
        The program of the graph.
    usual
        The plan, with a prediction of its run.
    stock
        The run of the input's own graph.
    reason
        Why arrays of other plans keep their chunks.
    """
    nodes = captured.program.nodes
    if not request.machine.placed or any(node.homes for node in nodes):
        return usual
    if not any(map(_is_divided, nodes)):
        return usual
    before = stock.prediction
    if before is None or not before.is_sound or before.tasks > MOST_TASKS or not before.moved:
        return usual
    best = usual
    for divided in divisions(captured, request.machine.workers, stock.ran, stock.roots):
        settings = request.machine.settings()
        other = candidate(request, divided, settings, other=usual.planned, keep=reason)
        if other is None or other.planned.plan.tiled is None:
            continue
        other = with_own_prediction(request, other, stock.work)
        if other.after is not None and (
            best.after is None or _is_better(other.after, best.after, MORE_MOVED * before.moved)
        ):
            best = other
    return best


def _is_better(run: Prediction, best: Prediction, few: float) -> bool:
    """Whether a run moves fewer bytes and costs hardly more, or few more and costs clearly less.

    It must be about as even, as simulated runs do not have the time that functions take.
    """
    if run.uneven > max(best.uneven, MOST_UNEVEN):
        return False
    if run.moved < best.moved:
        return CLEARLY_LESS * run.cost < best.cost
    return run.moved <= best.moved + few and run.cost < CLEARLY_LESS * best.cost


def divisions(
    captured: Captured, workers: int, ran: Mapping[Any, int], roots: Collection[Any] = ()
) -> Iterator[Captured]:
    """A program with its blocks divided along one axis or another, or as they are run by Dask.

    The first axis is left out: plans divide it first.

    Parameters
    ----------
    captured
        A program.
    workers
        Number of workers.
    ran
        The worker that is predicted to run each task of the input's own graph, by key.
    roots
        The keys of those that read no results of others: they may run where they are read.
    """
    nodes = captured.program.nodes
    inner = [index for index, node in enumerate(nodes) if _is_divided(node)]
    for number in range(1, max(len(_cut_axes(nodes[index])) for index in inner)):
        yield _placed(captured, {index: _along(nodes[index], number, workers) for index in inner})
    yield as_simulated(captured, inner, ran, roots)


def as_simulated(
    captured: Captured, indices: Collection[int], ran: Mapping[Any, int], roots: Collection[Any]
) -> Captured:
    """A program with the blocks of arrays on the workers that run them in a simulation of Dask's.

    Parameters
    ----------
    captured, ran, roots
        As for `divisions`.
    indices
        The nodes of the arrays.
    """
    nodes = captured.program.nodes
    # blocks that are not needed are nowhere
    keys = {index: wanted_keys(nodes[index].name, nodes[index].chunks, {}) for index in indices}
    homes = {index: [ran.get(key, 0) for key in keys[index]] for index in indices}
    near = {key: worker for key, worker in ran.items() if key not in roots}
    return replace(_placed(captured, homes), near=near)


def _is_divided(node: Node) -> bool:
    """Whether the model does not know what the blocks of an array are made of."""
    return node.has_inner_tasks and node.kind is Kind.OPAQUE and not (node.edges or node.resident)


def _cut_axes(node: Node) -> list[int]:
    """The axes along which an array has several blocks."""
    return [axis for axis, sizes in enumerate(node.chunks) if len(sizes) > 1]


def _along(node: Node, number: int, workers: int) -> list[int]:
    """The worker of every block, in C order: equal shares of the blocks with one axis first.

    Parameters
    ----------
    node
        The array.
    number
        Which of the axes along which it has several blocks; the last one if it has fewer.
    workers
        Number of workers.
    """
    counts = [len(sizes) for sizes in node.chunks]
    if not counts:
        return [0]
    axes = _cut_axes(node) or [0]
    axis = axes[min(number, len(axes) - 1)]
    order = np.moveaxis(np.arange(math.prod(counts)).reshape(counts), axis, 0).ravel()
    workers_of = np.empty(order.size, dtype=int)
    workers_of[order] = np.arange(order.size) * workers // order.size
    return [int(worker) for worker in workers_of]


def _placed(captured: Captured, homes: Mapping[int, Sequence[int]]) -> Captured:
    """A program some of whose arrays have their blocks on chosen workers."""
    nodes = list(captured.program.nodes)
    for index, workers in homes.items():
        nodes[index] = replace(nodes[index], homes=tuple((worker,) for worker in workers))
    program = Program(tuple(nodes), captured.program.outputs)
    return replace(captured, program=program, divided=True)
