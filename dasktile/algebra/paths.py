"""The order in which a product of many arrays is contracted, two at a time.

``opt_einsum`` finds orders that do few operations or make small arrays.  On a cluster what
must be sent counts as well: each of its orders becomes a small program, and the one whose
best tiling costs least, bytes sent and operations together, is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import opt_einsum

from dasktile.algebra.subscripts import Term
from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh, mesh_shape
from dasktile.tiling.methods import get
from dasktile.tiling.settings import Settings

#: What is contracted, step by step: operands have the numbers 0, 1, ..., and what comes of a
#: step has the next free number.
Path = tuple[tuple[int, ...], ...]

#: What opt_einsum's dynamic programming is asked to make least: operations, sizes of what
#: is made, and sums of both, in which an element made weighs so many operations.
MINIMIZE = ("flops", "combo-16", "combo-256", "write", "size")

#: Operands up to which it is asked: its time grows as a power of them.
_PROGRAMMED = 10

#: Axes of the mesh that orders are compared on, and its workers: more of either would take
#: more time than they tell.
_MESH_AXES = 2
_MESH_WORKERS = 64


@dataclass(frozen=True, slots=True)
class PathCost:
    """What an order of contraction costs.

    Parameters
    ----------
    path
        The order.
    operations
        Floating-point operations, of all workers together.
    moved
        Bytes that workers send each other under the best tiling of the whole expression.
    bytes
        Both in bytes: the operations of the busiest worker count what all workers could
        send meanwhile.
    """

    path: Path
    operations: float
    moved: int
    bytes: float


def contraction_path(
    inputs: Sequence[Term],
    output: Term,
    sizes: Mapping[str, int],
    itemsize: int,
    workers: int,
    threads: int = 1,
    settings: Settings | None = None,
) -> Path:
    """The cheapest order found in which to contract a sum of products.

    Parameters
    ----------
    inputs
        Labels of every operand.
    output
        Labels of the result.
    sizes
        Size of every label.
    itemsize
        Bytes of an element.
    workers, threads
        Processes that send bytes to each other, and how many tasks each runs at once.
    settings
        How operations and bytes weigh against each other.
    """
    if len(inputs) < 3:
        return (tuple(range(len(inputs))),)
    ordered = tuple(sorted((label, sizes[label]) for label in {*itertools.chain(*inputs)}))
    given = (tuple(map(tuple, inputs)), tuple(output), ordered, itemsize)
    return _cheapest(*given, workers, threads, settings or Settings())


@lru_cache(maxsize=256)
def _cheapest(
    inputs: tuple[Term, ...],
    output: Term,
    sizes: tuple[tuple[str, int], ...],
    itemsize: int,
    workers: int,
    threads: int,
    settings: Settings,
) -> Path:
    size = dict(sizes)
    paths = candidates(inputs, output, size)
    if workers == 1 or len(paths) == 1:
        # nothing is sent: the first does the least operations
        return paths[0]
    prices = (
        price(path, inputs, output, size, itemsize, workers, threads, settings) for path in paths
    )
    return min(prices, key=lambda cost: cost.bytes).path


def candidates(inputs: Sequence[Term], output: Term, sizes: Mapping[str, int]) -> tuple[Path, ...]:
    """Orders worth comparing, the one of least operations first.

    All of them for three operands, else those that opt_einsum finds.
    """
    # numbers: the order of a set of strings is another in every process
    number = {label: index for index, label in enumerate(dict.fromkeys(itertools.chain(*inputs)))}
    terms = [frozenset(number[label] for label in term) for term in inputs]
    result = frozenset(number[label] for label in output)
    size = {number[label]: sizes[label] for label in number}
    paths_from_opt_einsum = [
        opt_einsum.paths.DynamicProgramming(minimize=what)(terms, result, size)
        for what in (MINIMIZE if len(inputs) <= _PROGRAMMED else ())
    ]
    paths_from_opt_einsum.append(opt_einsum.paths.auto(terms, result, size))
    if len(inputs) == 3:
        paths_from_opt_einsum += [((0, 1), (0, 1)), ((0, 2), (0, 1)), ((1, 2), (0, 1))]
    distinct: dict[frozenset[frozenset[int]], Path] = {}
    for path in (_numbered(path, len(inputs)) for path in paths_from_opt_einsum):
        distinct.setdefault(_tree(path, len(inputs)), path)
    paths = tuple(distinct.values())
    least = min(paths, key=lambda path: _operations(path, inputs, output, sizes))
    return (least, *(path for path in paths if path is not least))


def price(
    path: Path,
    inputs: Sequence[Term],
    output: Term,
    sizes: Mapping[str, int],
    itemsize: int,
    workers: int,
    threads: int = 1,
    settings: Settings | None = None,
) -> PathCost:
    """What an order costs; the operands may be in any tiles."""
    settings = settings or Settings()
    program = as_program(path, inputs, output, sizes, itemsize)
    mesh = Mesh(mesh_shape(min(workers, _MESH_WORKERS), _MESH_AXES))
    space = Space(program, mesh, free_axes(program, mesh.workers), settings.max_states, None)
    costs = Costs(space)
    states = get("auto").choose(costs, settings, TIE).states
    moved = sum(costs.moved(states))
    busiest = float(max(costs.loads(states)))
    seconds = busiest / settings.work_per_second / threads
    operations = _operations(path, inputs, output, sizes)
    total = moved + seconds * settings.bytes_per_second * mesh.workers
    return PathCost(path, operations, moved, total)


def steps(path: Path, inputs: Sequence[Term], output: Term) -> list[tuple[tuple[int, ...], Term]]:
    """What is contracted one after the other, and the labels of what comes of it."""
    terms = dict(enumerate(inputs))
    contractions: list[tuple[tuple[int, ...], Term]] = []
    for numbers in path:
        named = dict.fromkeys(itertools.chain(*(terms.pop(number) for number in numbers)))
        needed = {*output, *itertools.chain(*terms.values())}
        term = tuple(label for label in named if label in needed) if terms else tuple(output)
        terms[len(inputs) + len(contractions)] = term
        contractions.append((numbers, term))
    return contractions


def as_program(
    path: Path,
    inputs: Sequence[Term],
    output: Term,
    sizes: Mapping[str, int],
    itemsize: int,
) -> Program:
    """The expression as a program, every step of the path a contraction."""
    terms = list(inputs)
    nodes = [_source(number, term, sizes, itemsize) for number, term in enumerate(inputs)]
    for numbers, term in steps(path, inputs, output):
        nodes.append(_contraction(numbers, term, terms, sizes, itemsize))
        terms.append(term)
    return Program(tuple(nodes), (len(nodes) - 1,))


def _source(number: int, term: Term, sizes: Mapping[str, int], itemsize: int) -> Node:
    shape = tuple(sizes[label] for label in term)
    return Node(
        name=f"operand {number}",
        op="operand",
        kind=Kind.SOURCE,
        labels=tuple(Label(size, Role.FREE, (size,)) for size in shape),
        out=tuple(AxisMap(axis) for axis in range(len(shape))),
        shape=shape,
        dtype=f"V{itemsize}",
        itemsize=itemsize,
        chunks=tuple((size,) for size in shape),
    )


def _contraction(
    numbers: Sequence[int],
    term: Term,
    terms: Sequence[Term],
    sizes: Mapping[str, int],
    itemsize: int,
) -> Node:
    named = itertools.chain(term, *(terms[number] for number in numbers))
    label = {name: place for place, name in enumerate(dict.fromkeys(named))}
    shape = tuple(sizes[name] for name in term)
    return Node(
        name=f"product {len(terms)}",
        op="contract",
        kind=Kind.CONTRACT,
        labels=tuple(
            Label(sizes[name], Role.FREE if name in term else Role.REDUCE, (sizes[name],))
            for name in label
        ),
        out=tuple(AxisMap(axis) for axis in range(len(shape))),
        shape=shape,
        dtype=f"V{itemsize}",
        itemsize=itemsize,
        chunks=tuple((size,) for size in shape),
        edges=tuple(
            Edge(number, tuple(AxisMap(label[name]) for name in terms[number]))
            for number in numbers
        ),
        partial=float(itemsize),
        work=float(len(numbers)),
    )


def _numbered(path: Iterable[Sequence[int]], count: int) -> Path:
    """A path of opt_einsum's, whose numbers are places in the list of what is left.

    Steps of one operand are left out: it is summed where it is multiplied.
    """
    numbered: list[tuple[int, ...]] = []
    held = list(range(count))
    for places in path:
        chosen = sorted(held[place] for place in places)
        held = [number for place, number in enumerate(held) if place not in places]
        if len(chosen) > 1:
            held.append(count + len(numbered))
            numbered.append(tuple(chosen))
        else:
            held += chosen
    return tuple(numbered)


def _tree(path: Path, count: int) -> frozenset[frozenset[int]]:
    """The operands in each array that a path makes: the same for all orders of its steps."""
    merged = [frozenset((number,)) for number in range(count)]
    for numbers in path:
        merged.append(frozenset().union(*(merged[number] for number in numbers)))
    return frozenset(merged[count:])


def _operations(
    path: Path, inputs: Sequence[Term], output: Term, sizes: Mapping[str, int]
) -> float:
    terms = list(inputs)
    total = 0.0
    for numbers, term in steps(path, inputs, output):
        loops = {*itertools.chain(*(terms[number] for number in numbers))}
        total += len(numbers) * math.prod(sizes[label] for label in loops)
        terms.append(term)
    return total
