"""Bounds of several searches are combined to what they prove together."""

from __future__ import annotations

from dasktile.tiling.proof import Proof, Search, strongest

ONE_ORDER = Search((4, 3, 2), ordered=False, bound=10.0, exact=True)


def test_all_orders_of_the_prime_factors_are_any_grid() -> None:
    one_order = Search((2, 2, 2), ordered=False, bound=10.0, exact=True)
    every = Search((2, 2, 2), ordered=True, bound=9.0, exact=True)
    assert strongest([one_order, every], 9) == Proof(9.0, True, "any grid of 8 workers")


def test_all_meshes_of_three_axes() -> None:
    meshes = [Search((4, 3, 2), True, 10.0, True), Search((6, 2, 2), True, 12.0, True)]
    words = "any grid of 24 workers with at most 3 axes"
    assert strongest([ONE_ORDER, *meshes], 10) == Proof(10.0, True, words)
    # one of them was not searched
    assert strongest([ONE_ORDER, meshes[0]], 10).grids == "a grid of 4 x 3 x 2 workers"


def test_without_a_proof_the_best_bound_counts() -> None:
    wide = Search((4, 3, 2), ordered=True, bound=4.0, exact=False)
    words = "a grid of 4 x 3 x 2 workers with its axes in one order"
    assert strongest([ONE_ORDER, wide], 11) == Proof(10.0, True, words)
    loose = Search((4, 3, 2), ordered=False, bound=8.0, exact=False)
    assert strongest([loose, wide], 11) == Proof(8.0, False, words)


def test_a_bound_above_the_best_tiling_does_not_hold_for_it() -> None:
    other = Search((3, 2, 2, 2), ordered=False, bound=7.0, exact=False)
    proof = strongest([ONE_ORDER, other], 9)
    assert (proof.bound, proof.exact) == (7.0, False)
    assert strongest([ONE_ORDER], 9) == Proof(0.0, False, "")


def test_prime_numbers_of_workers_have_one_grid() -> None:
    for workers in (1, 2, 7):
        mesh = (workers,) if workers > 1 else ()
        proof = strongest([Search(mesh, ordered=True, bound=5.0, exact=True)], 5)
        assert proof.grids == f"any grid of {workers} workers"
