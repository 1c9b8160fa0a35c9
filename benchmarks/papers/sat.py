"""NAE-3SAT as tiling: instances of which the least cost is known.

Appendix A of the Spartan thesis.  A variable is a square array, true if cut by rows and
false if by columns; a negated literal is the transpose.  A clause is six maps, each of one
literal's transpose with another literal, and a map costs one unit where its two inputs are
not cut alike.  A clause whose three literals agree costs 6, any other 2, so that M clauses
cost 2 M if they can be satisfied and more if they cannot.

Transposes are written on the edges, so that an array and its transpose cannot be converted
apart, as the appendix demands ("conflict").  The unit of the exact model on two workers is
half an array, which each reader fetches anew; a copy of a whole array for all of its
readers is two units, and has to be forbidden by a memory limit below one array.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks.papers.random_programs import ITEMSIZE, Maker
from dasktile.ir import Program

#: Three literals: variables from 1, negative where negated.
Clause = tuple[int, int, int]

#: Length of every axis of every array.
SIZE = 64

#: Bytes that the exact model charges a map whose inputs are not cut alike, on two workers.
UNIT = SIZE * SIZE * ITEMSIZE // 2

#: A memory limit that has no room for a copy of an array.
NO_COPIES = SIZE * SIZE * ITEMSIZE - 1


def satisfiable(rng: np.random.Generator, variables: int, clauses: int) -> list[Clause]:
    """Random clauses that one hidden assignment satisfies, every variable in one at least.

    Parameters
    ----------
    rng
        Decides everything.
    variables
        At least 3, and at most three for every clause.
    clauses
        How many.
    """
    if not 3 <= variables <= 3 * clauses:
        raise ValueError(f"variables must be from 3 to 3 * clauses, got {variables} and {clauses}")
    hidden = [bool(value) for value in rng.integers(0, 2, variables)]
    found: list[Clause] = []
    unused = [int(variable) for variable in rng.permutation(variables)]
    while len(found) < clauses:
        # first those that are in no clause yet
        head = unused[3 * len(found) : 3 * len(found) + 3]
        others = [variable for variable in range(variables) if variable not in head]
        chosen = head + [int(variable) for variable in rng.permutation(others)[: 3 - len(head)]]
        first, second, third = (
            (variable + 1) * (1 if sign else -1)
            for variable, sign in zip(chosen, rng.integers(0, 2, 3), strict=True)
        )
        if not violated([(first, second, third)], hidden):
            found.append((first, second, third))
    return found


def violated(clauses: Sequence[Clause], values: Sequence[bool]) -> int:
    """How many clauses have three literals that agree."""
    return sum(
        len({values[abs(literal) - 1] == (literal > 0) for literal in clause}) == 1
        for clause in clauses
    )


def least(clauses: Sequence[Clause]) -> int:
    """Units that the best tiling costs, by trying all assignments."""
    count = max(abs(literal) for clause in clauses for literal in clause)
    worst = min(violated(clauses, values)
                for values in itertools.product((False, True), repeat=count))  # fmt: skip
    return 2 * len(clauses) + 4 * worst


def sat_program(clauses: Sequence[Clause]) -> Program:
    """The tiling problem of some clauses."""
    make = Maker()
    count = max(abs(literal) for clause in clauses for literal in clause)
    arrays = [make.newarray(SIZE, SIZE) for _ in range(count)]
    for clause in clauses:
        for one, other in itertools.permutations(clause, 2):
            # the transpose of a negated literal is the array itself
            turned = [position for position, is_turned in enumerate((one > 0, other < 0))
                      if is_turned]  # fmt: skip
            make.map(arrays[abs(one) - 1], arrays[abs(other) - 1], turned=turned)
    return make.program()
