"""NAE-3SAT as a tiling problem: instances with a known least cost.

    python -m benchmarks.papers.sat [--instances 120] [--seed 1000] [--all]

plans random instances of 4 to 40 clauses and 5 to 24 variables, every second one satisfiable, and
prints how many are proven and the processor seconds of the slowest plans.

This is appendix A of the Spartan thesis.  A variable is a square array: true if cut by rows, false
if cut by columns.  A negated literal is the transpose.  A clause is six maps, each of the transpose
of one literal with another literal.  A map costs one unit if its two inputs are not cut alike.  A
clause whose three literals agree costs 6 units, any other 2, so that M clauses cost 2 M units if
they can be satisfied and more if they cannot.

Transposes are part of the edges, so that an array and its transpose cannot be resharded separately,
as the appendix requires ("conflict").  The unit of the exact model on two workers is half an array,
which every reader receives separately.  A replica of a whole array for all of its readers costs two
units, and is excluded by a memory limit below one array.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.papers.random_programs import ITEMSIZE, Maker
from dasktile.ir import Program
from dasktile.tiling import TilingPlan, tile

#: Three literals: numbers of variables from 1, negative if negated.
Clause = tuple[int, int, int]

#: Numbers of clauses and of variables of the sweep.
CLAUSES, VARIABLES = range(4, 41), range(5, 25)

#: Length of every axis of every array.
SIZE = 64

#: Bytes: the cost of a map whose inputs are not cut alike, in the exact model on two workers.
UNIT = SIZE * SIZE * ITEMSIZE // 2

#: Bytes: a memory limit that excludes replicas of an array.
NO_COPIES = SIZE * SIZE * ITEMSIZE - 1


def satisfiable(rng: np.random.Generator, variables: int, clauses: int) -> list[Clause]:
    """Random clauses that a hidden assignment satisfies, with every variable in at least one.

    Parameters
    ----------
    rng
        Generator of all random choices.
    variables
        Number of variables, from 3 to three for every clause.
    clauses
        Number of clauses.
    """
    if not 3 <= variables <= 3 * clauses:
        raise ValueError(f"variables must be from 3 to 3 * clauses, got {variables} and {clauses}")
    hidden = [bool(value) for value in rng.integers(0, 2, variables)]
    chosen_clauses: list[Clause] = []
    unused = [int(variable) for variable in rng.permutation(variables)]
    while len(chosen_clauses) < clauses:
        # variables that are in no clause yet come first
        head = unused[3 * len(chosen_clauses) : 3 * len(chosen_clauses) + 3]
        rest = [variable for variable in range(variables) if variable not in head]
        chosen = head + [int(variable) for variable in rng.permutation(rest)[: 3 - len(head)]]
        first, second, third = (
            (variable + 1) * (1 if sign else -1)
            for variable, sign in zip(chosen, rng.integers(0, 2, 3), strict=True)
        )
        if not violated([(first, second, third)], hidden):
            chosen_clauses.append((first, second, third))
    return chosen_clauses


def violated(clauses: Sequence[Clause], values: Sequence[bool]) -> int:
    """The number of clauses whose three literals agree."""
    return sum(
        len({values[abs(literal) - 1] == (literal > 0) for literal in clause}) == 1
        for clause in clauses
    )


def least(clauses: Sequence[Clause]) -> int:
    """The cost of the best tiling in units, over all assignments."""
    count = max(abs(literal) for clause in clauses for literal in clause)
    fewest_violated = min(violated(clauses, values)
                for values in itertools.product((False, True), repeat=count))  # fmt: skip
    return 2 * len(clauses) + 4 * fewest_violated


def sat_program(clauses: Sequence[Clause]) -> Program:
    """The tiling problem of the clauses, as a program."""
    make = Maker()
    count = max(abs(literal) for clause in clauses for literal in clause)
    arrays = [make.newarray(SIZE, SIZE) for _ in range(count)]
    for clause in clauses:
        for left, right in itertools.permutations(clause, 2):
            # the transpose of a negated literal is the array itself
            turned = [position for position, is_turned in enumerate((left > 0, right < 0))
                      if is_turned]  # fmt: skip
            make.map(arrays[abs(left) - 1], arrays[abs(right) - 1], turned=turned)
    return make.program()


def draw_clauses(rng: np.random.Generator, variables: int, clauses: int) -> list[Clause]:
    """Random clauses of three different variables each, which may have no solution.

    Parameters
    ----------
    rng
        Generator of all random choices.
    variables, clauses
        As for `satisfiable`.
    """
    found: list[Clause] = []
    for _ in range(clauses):
        chosen = rng.permutation(variables)[:3] + 1
        signs = rng.choice([-1, 1], 3)
        first, second, third = (int(each) for each in chosen * signs)
        found.append((first, second, third))
    # some variables may be in no clause: the others are numbered from 1
    drawn = sorted({abs(literal) for clause in found for literal in clause})
    renamed = {sign * old: sign * new for new, old in enumerate(drawn, 1) for sign in (1, -1)}
    return [(renamed[first], renamed[second], renamed[third]) for first, second, third in found]


def draw_instances(count: int, seed: int) -> Iterator[tuple[list[Clause], bool]]:
    """Random instances of the sweep, and whether a solution is hidden in each.

    Parameters
    ----------
    count
        Number of instances.
    seed
        Of the first instance; the others have the next seeds.
    """
    for number in range(count):
        rng = np.random.default_rng(seed + number)
        clauses = int(rng.choice(CLAUSES))
        variables = int(rng.integers(VARIABLES.start, min(VARIABLES.stop - 1, 3 * clauses) + 1))
        is_hidden = number % 2 == 0
        make = satisfiable if is_hidden else draw_clauses
        yield make(rng, variables, clauses), is_hidden


def plan_clauses(clauses: Sequence[Clause]) -> TilingPlan:
    """The plan of the clauses on two workers, in which no array has a replica."""
    return tile(sat_program(clauses), workers=2, memory_limit=NO_COPIES, method="exact", force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan the instances, and print a line for all of them, or for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--all", action="store_true", help="print a line for each")
    options = parser.parse_args(arguments)
    if options.instances < 1:
        parser.error(f"--instances must be at least 1, got {options.instances}")
    seconds, proven, hidden, solved = [], 0, 0, 0
    for clauses, is_hidden in draw_instances(options.instances, options.seed):
        start = time.process_time()
        plan = plan_clauses(clauses)
        seconds.append(time.process_time() - start)
        units = plan.after.bytes / UNIT
        proven += plan.proven_optimal
        hidden += is_hidden
        solved += is_hidden and units == 2 * len(clauses)
        if options.all:
            variables = max(abs(literal) for clause in clauses for literal in clause)
            print(
                f"{len(clauses)} clauses, {variables} variables: {units:g} units,"
                f" {'proven' if plan.proven_optimal else 'not proven'}, {seconds[-1]:.2f} s",
                flush=True,
            )
    print(
        f"{proven} of {len(seconds)} instances are proven, {solved} of {hidden} with a hidden"
        f" solution have two units for each clause; seconds: median"
        f" {np.median(seconds):.2f}, slowest {max(seconds):.2f}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
