"""What is proven of the tilings that were searched: a lower bound, and the grids it holds for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dasktile.tiling.mesh import MAX_AXES, mesh_shape, mesh_shapes

#: Axes of a mesh by which every number of workers up to `MAX_WORKERS` has its prime factors.
_MOST_AXES = 12


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the tiling of a program that moves fewest bytes.

    Parameters
    ----------
    mesh
        Sizes of the axes of the mesh.
    ordered
        Whether its axes cut labels in every order.
    bound
        Bytes that its tilings move at least.
    exact
        Whether it was searched to the end: one of its tilings moves no more.
    """

    mesh: tuple[int, ...]
    ordered: bool
    bound: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """A lower bound of the bytes that tilings move.

    Parameters
    ----------
    bound
        The bound, in bytes.
    exact
        Whether a tiling moves no more.
    grids
        The grids of workers for which the bound holds, in words.
    """

    bound: int
    exact: bool
    grids: str


def strongest(searches: Sequence[Search], moved: int) -> Proof:
    """The strongest statement that searches prove.

    Parameters
    ----------
    searches
        The searches, those of more tilings last.
    moved
        Bytes that the best of the tilings moves.
    """
    workers = math.prod(searches[0].mesh)
    in_all_orders = {each.mesh: _bytes(each) for each in searches if each.ordered and each.exact}
    proofs: list[Proof] = []
    prime_factors, of_three = mesh_shape(workers, _MOST_AXES), mesh_shapes(workers, MAX_AXES)
    if prime_factors in in_all_orders:
        words = f"any grid of {workers:,} workers"
        proofs.append(Proof(in_all_orders[prime_factors], True, words))
    elif of_three and in_all_orders.keys() >= set(of_three):
        words = f"any grid of {workers:,} workers with at most {MAX_AXES} axes"
        proofs.append(Proof(min(in_all_orders.values()), True, words))
    for each in reversed(searches):
        words = f"a grid of {' x '.join(map(str, each.mesh))} workers"
        if not each.ordered:
            words += " with its axes in one order"
        proofs.append(Proof(_bytes(each), each.exact, words))
    # a bound above what a tiling on another mesh moves says nothing of that mesh
    valid = [proof for proof in proofs if proof.bound <= moved]
    # of proofs that a tiling meets, the one for most tilings has the least bound
    return max(
        valid,
        key=lambda proof: (proof.exact, -proof.bound if proof.exact else proof.bound),
        default=Proof(0, False, ""),
    )


def _bytes(search: Search) -> int:
    """The bound of a search in whole bytes: all weights that break ties sum to less than a half."""
    return max(0, math.floor(search.bound + 0.5))
