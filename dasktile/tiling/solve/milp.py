"""The same problem as an integer program, for graphs too wide for elimination.

Every state of a variable is a column that is 0 or 1, every pair of states of neighbours a
column that follows from these (the local marginal polytope, Wainwright and Jordan 2008).
HiGHS solves it by branch and bound.  Its bound holds for the whole problem even if the search
stops early.  The search is limited in nodes and not in seconds, so that plans repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import numpy.typing as npt

from dasktile.tiling.settings import SolverLimits
from dasktile.tiling.solve.problem import Problem, Solution, Table

Ints = npt.NDArray[np.int64]

#: The largest cost after scaling.  The tolerances of HiGHS are absolute, about 1e-6.
_STEPS = 1e6

#: Relative difference up to which a cost counts as equal to its bound (rounding).
TOLERANCE = 1e-9


def integer(problem: Problem, start: Sequence[int], limits: SolverLimits) -> Solution | None:
    """Minimise a problem with HiGHS.

    Parameters
    ----------
    problem
        Unary and pairwise costs; infinite entries are forbidden states.
    start
        A known assignment, which is returned if no better one is found.
    limits
        Sizes up to which the program is written, and limits of the search.

    Returns
    -------
    An assignment with a bound, or None where the program is too large or nothing was found.
    """
    if sum(table.size for table in problem.pairwise.values()) > limits.milp_pairs:
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
    # imported here, since every process of a cluster imports this module and few need a solver
    optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    # SciPy 1.11 passes wider indices to a solver that rejects them
    matrix = sparse.coo_array(
        (
            np.concatenate(values),
            (np.concatenate(rows, dtype=np.int32), np.concatenate(columns, dtype=np.int32)),
        ),
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
        options={"node_limit": limits.milp_nodes, "mip_rel_gap": 0.0},
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
