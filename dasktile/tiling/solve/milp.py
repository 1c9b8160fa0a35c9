"""The same problem as an integer program, for graphs too wide for elimination.

Every state of a variable is a column that is 0 or 1, every pair of states of neighbours a
column that follows from these (the local marginal polytope, Wainwright and Jordan 2008).
HiGHS solves it by branch and bound; its bound is one of the whole problem, whether or not it
comes to an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import numpy.typing as npt

from dasktile.tiling.solve.problem import Problem, Solution, Table

Ints = npt.NDArray[np.int64]

#: Pairs of states beyond which the program is not even written.
MOST = 20_000

#: Nodes of the search tree; no limit in seconds, which would not give the same plan twice.
NODES = 50

#: The largest cost as HiGHS sees it: its tolerances are absolute.
_STEPS = 1e6

#: What may be between a cost and its bound, of the cost or of the largest, where they meet.
TOLERANCE = 1e-9


def integer(problem: Problem, start: Sequence[int]) -> Solution | None:
    """Minimise a problem with HiGHS.

    Parameters
    ----------
    problem
        Unary and pairwise costs; infinite entries are forbidden states.
    start
        An assignment that is known; costs are counted from it.

    Returns
    -------
    An assignment with a bound, or None where the program is too large or nothing was found.
    """
    if sum(table.size for table in problem.pairwise.values()) > MOST:
        return None
    first = np.cumsum([0, *(len(costs) for costs in problem.unary)])
    count = int(first[-1])
    tables = list(problem.pairwise.items())
    starts = count + np.cumsum([0, *(table.size for _, table in tables)])
    cost = np.concatenate([*problem.unary, *(table.ravel() for _, table in tables)])
    allowed = np.isfinite(cost)
    scale = max(float(np.abs(cost[allowed]).max(initial=0.0)), 1e-300) / _STEPS
    rows: list[Ints] = []
    columns: list[Ints] = []
    values: list[Table] = []
    row = 0

    def add(row_of: Ints, column: Ints, value: float) -> None:
        rows.append(row_of)
        columns.append(column)
        values.append(np.full(len(column), value))

    for variable in range(len(problem.unary)):
        states = np.arange(first[variable], first[variable + 1])
        add(np.full(len(states), row), states, 1.0)
        row += 1
    ones = row
    for (pair, table), begin in zip(tables, starts[:-1], strict=True):
        cells = begin + np.arange(table.size).reshape(table.shape)
        for axis, variable in enumerate(pair):
            own = np.broadcast_to(
                np.expand_dims(np.arange(table.shape[axis]), 1 - axis), table.shape
            )
            add(row + own.ravel(), cells.ravel(), 1.0)
            states = np.arange(first[variable], first[variable + 1])
            add(row + np.arange(len(states)), states, -1.0)
            row += len(states)
    # every process of a cluster imports this module, and hardly any needs a solver
    optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    matrix = sparse.coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(row, len(cost)),
    ).tocsr()
    right = np.zeros(row)
    right[:ones] = 1.0
    integral = np.zeros(len(cost))
    integral[:count] = 1
    result = optimize.milp(
        np.where(allowed, cost, 0.0) / scale,
        integrality=integral,
        bounds=optimize.Bounds(0.0, allowed.astype(float)),
        constraints=optimize.LinearConstraint(matrix, right, right),
        options={"node_limit": NODES, "mip_rel_gap": 0.0},
    )
    chosen = list(start)
    if result.x is not None:
        picked = [
            int(np.argmax(result.x[low:high]))
            for low, high in zip(first[:-1], first[1:], strict=True)
        ]
        if problem.cost(picked) < problem.cost(start):
            chosen = picked
    total = problem.cost(chosen)
    bound = -math.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) * scale
    if math.isclose(total, bound, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale * _STEPS):
        return Solution(tuple(chosen), total, total, True)
    return Solution(tuple(chosen), total, min(bound, total), total <= bound)
