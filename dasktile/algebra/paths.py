"""The order in which a product of many arrays is contracted, two at a time.

``opt_einsum`` finds orders with few operations or small intermediate arrays.  On a cluster the
bytes between workers count as well.  Each order becomes a small program, and the order whose best
tiling costs least, bytes and operations together, is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import opt_einsum

from dasktile.algebra.settings import PathSettings
from dasktile.algebra.subscripts import Term
from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh, mesh_shape
from dasktile.tiling.methods import get
from dasktile.tiling.settings import Settings

#: Numbers of the arrays that each step contracts.  Operands have the numbers 0, 1, ..., and the
#: result of a step has the next free number.
Path = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PathCost:
    """The cost of an order of contraction.

    Parameters
    ----------
    path
        The order.
    operations
        Floating-point operations, of all workers together.
    moved
        Bytes that workers send each other under the best tiling of the whole expression.
    bytes
        Both in bytes: the operations of the worker with most work count as the bytes that all
        workers could send in that time.
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
    limits: PathSettings | None = None,
) -> Path:
    """The cheapest known order in which to contract a sum of products.

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
        Processes that send bytes to each other, and tasks that each runs at once.
    settings
        Constants of the cost model.
    limits
        Limits of the search.
    """
    if len(inputs) < 3:
        return (tuple(range(len(inputs))),)
    ordered = tuple(sorted((label, sizes[label]) for label in {*itertools.chain(*inputs)}))
    given = (tuple(map(tuple, inputs)), tuple(output), ordered, itemsize)
    return _cheapest(*given, workers, threads, settings or Settings(), limits or PathSettings())


@lru_cache(maxsize=256)
def _cheapest(
    inputs: tuple[Term, ...],
    output: Term,
    sizes: tuple[tuple[str, int], ...],
    itemsize: int,
    workers: int,
    threads: int,
    settings: Settings,
    limits: PathSettings,
) -> Path:
    size = dict(sizes)
    paths = candidates(inputs, output, size, limits)
    if workers == 1 or len(paths) == 1:
        # no bytes are sent; the first order has the fewest operations
        return paths[0]
    prices = (
        price(path, inputs, output, size, itemsize, workers, threads, settings, limits)
        for path in paths
    )
    return min(prices, key=lambda cost: cost.bytes).path


def candidates(
    inputs: Sequence[Term],
    output: Term,
    sizes: Mapping[str, int],
    limits: PathSettings | None = None,
) -> tuple[Path, ...]:
    """Orders to compare, the one with the fewest operations first.

    For three operands all orders, otherwise those that opt_einsum finds.
    """
    limits = limits or PathSettings()
    # numbers, since the order of a set of strings differs between processes
    number = {label: index for index, label in enumerate(dict.fromkeys(itertools.chain(*inputs)))}
    terms = [frozenset(number[label] for label in term) for term in inputs]
    result = frozenset(number[label] for label in output)
    size = {number[label]: sizes[label] for label in number}
    proposed = [
        opt_einsum.paths.DynamicProgramming(minimize=objective)(terms, result, size)
        for objective in (limits.minimize if len(inputs) <= limits.max_operands else ())
    ]
    proposed.append(opt_einsum.paths.auto(terms, result, size))
    if len(inputs) == 3:
        proposed += [((0, 1), (0, 1)), ((0, 2), (0, 1)), ((1, 2), (0, 1))]
    distinct: dict[frozenset[frozenset[int]], Path] = {}
    for path in (_numbered(path, len(inputs)) for path in proposed):
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
    limits: PathSettings | None = None,
) -> PathCost:
    """The cost of an order, if the operands may be in any tiles."""
    settings, limits = settings or Settings(), limits or PathSettings()
    program = as_program(path, inputs, output, sizes, itemsize)
    mesh = Mesh(mesh_shape(min(workers, limits.mesh_workers), limits.mesh_axes))
    axes = free_axes(program, mesh.workers, settings.candidates)
    space = Space(program, mesh, axes, settings)
    costs = Costs(space)
    states = get("auto").choose(costs, settings, TIE).states
    moved = sum(costs.moved(states))
    busiest = float(costs.loads(states).sum(axis=0).max())
    seconds = busiest / settings.work_per_second / threads
    operations = _operations(path, inputs, output, sizes)
    total = moved + seconds * settings.bytes_per_second * mesh.workers
    return PathCost(path, operations, moved, total)


def steps(path: Path, inputs: Sequence[Term], output: Term) -> list[tuple[tuple[int, ...], Term]]:
    """The arrays that each step contracts, and the labels of its result."""
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
    """The expression as a program; every step of the path is a contraction."""
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
    """A path of opt_einsum, whose numbers are positions in the list of remaining arrays.

    Steps of one operand are left out, since it is summed where it is multiplied.
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
    """The operands in each intermediate array: equal for all orders of the same steps."""
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
