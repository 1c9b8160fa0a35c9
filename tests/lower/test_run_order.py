"""The order from which runs are cut: valid, and with little memory."""

from __future__ import annotations

import random
import sys
from typing import Any

from dasktile.lower.run_order import inputs_first, peak, readers_of, run_order, step_order


def random_reads(rng: random.Random, count: int) -> list[list[int]]:
    return [
        sorted(rng.sample(range(number), rng.randint(0, min(3, number)))) for number in range(count)
    ]


def is_valid(order: list[int], reads: list[list[int]]) -> bool:
    place = {number: at for at, number in enumerate(order)}
    return sorted(order) == list(range(len(reads))) and all(
        place[read] < place[number] for number, each in enumerate(reads) for read in each
    )


def counted_peak(
    order: list[int], reads: list[list[int]], sizes: list[int], homes: list[int], kept: set[int]
) -> int:
    """The peak, counted anew after every task: results where they are made and were read."""
    most = 0
    for at, number in enumerate(order):
        later = {read for reader in order[at:] for read in reads[reader]}
        held = [n for n in order[: at + 1] if n in later or n in kept or n == number]
        there = {(n, homes[n]) for n in held}
        there |= {(n, homes[reader]) for reader in order[: at + 1] for n in reads[reader]}
        most = max(
            most,
            *(sum(sizes[n] for n in held if (n, home) in there) for home in set(homes)),
        )
    return most


def test_every_task_follows_its_inputs_and_the_peak_is_right() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        count = rng.randint(1, 30)
        reads = random_reads(rng, count)
        sizes = [rng.randint(0, 9) for _ in range(count)]
        homes = [rng.randrange(3) for _ in range(count)]
        kept = set(rng.sample(range(count), rng.randint(0, count // 2)))
        order = run_order(reads, sizes, homes, kept)
        assert is_valid(order, reads)
        assert is_valid(inputs_first(reads), reads)
        assert is_valid(step_order(reads, sizes, homes, kept), reads)
        # results that nothing reads are released when they are made
        unread = {number for number, readers in enumerate(readers_of(reads)) if not readers}
        kept |= unread
        assert peak(order, reads, sizes, homes, kept) == counted_peak(
            order, reads, sizes, homes, kept
        )


def test_products_get_one_term_each_in_turn() -> None:
    """A product of two matrices of 6 x 6 blocks: factors are in memory for one step only."""
    count = 6
    blocks = [(i, j) for i in range(count) for j in range(count)]
    a, b = {}, {}
    reads: list[list[int]] = []
    for factor in (a, b):
        for block in blocks:
            factor[block] = len(reads)
            reads.append([])
    sums: dict[tuple[int, int], int] = {}
    for i, j in blocks:
        for k in range(count):
            before = [sums[i, j]] if k else []
            sums[i, j] = len(reads)
            reads.append(sorted([a[i, k], b[k, j], *before]))
    sizes = [1] * len(reads)
    homes, kept = [0] * len(reads), set(sums.values())
    order = step_order(reads, sizes, homes, kept)
    assert is_valid(order, reads)
    # the sums, with the next of one of them, one block of one factor and a row of the other one
    assert peak(order, reads, sizes, homes, kept) == len(kept) + 1 + 1 + count
    usual = run_order(reads, sizes, homes, kept)
    assert peak(usual, reads, sizes, homes, kept) == 2 * count**2


def test_readers() -> None:
    assert readers_of([[], [0], [0, 1]]) == [[1, 2], [2], []]


def test_blocks_of_two_arrays_are_read_together() -> None:
    """Means of u * u, v * v and u * v: no block waits for the last of the three."""
    count = 20
    u, v = list(range(count)), list(range(count, 2 * count))
    reads: list[list[int]] = [[] for _ in u + v]
    partials = []
    for pairs in (zip(u), zip(v), zip(u, v, strict=True)):
        partials.append(list(range(len(reads), len(reads) + count)))
        reads += [list(pair) for pair in pairs]
    reads += partials
    sizes = [100] * (2 * count) + [1] * (3 * count + 3)
    order = run_order(reads, sizes, [0] * len(reads), set())
    assert is_valid(order, reads)
    assert peak(order, reads, sizes, [0] * len(reads), set()) <= 2 * 100 + 3 * count + 3


def test_blocks_that_are_read_from_one_file_are_read_together() -> None:
    count = 20
    # the files, which are no results, and the blocks of each
    reads: list[list[int]] = [[], [], *([0] for _ in range(count)), *([1] for _ in range(count))]
    u, v = range(2, 2 + count), range(2 + count, 2 + 2 * count)
    for pairs in (zip(u), zip(v), zip(u, v, strict=True)):
        partials = list(range(len(reads), len(reads) + count))
        reads += [list(pair) for pair in pairs]
        reads.append(partials)
    sizes = [0, 0] + [100] * (2 * count) + [1] * (3 * count + 3)
    homes = [None, None] + [0] * (len(reads) - 2)
    order = run_order(reads, sizes, homes, set())
    assert is_valid(order, reads)
    assert peak(order, reads, sizes, homes, set()) <= 2 * 100 + 3 * count + 3


def test_terms_of_a_sum_are_computed_one_by_one() -> None:
    # 0 + 1 -> 2; 2 + 3 -> 4; ...
    reads: list[list[int]] = [[], [], [0, 1]]
    for _ in range(10):
        last = len(reads) - 1
        reads += [[], [last, last + 1]]
    assert peak(
        run_order(reads, [1] * len(reads), [0] * len(reads), set()),
        reads, [1] * len(reads), [0] * len(reads), set(),
    ) == 3  # fmt: skip


def count_lines(reads: list[list[int]]) -> int:
    """Lines of the module that are run to order tasks."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.endswith("run_order.py") else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run_order(reads, [1] * len(reads), [0] * len(reads), set())
    finally:
        sys.settrace(before)
    return count


def test_time_is_in_proportion_to_the_reads() -> None:
    def one_reader(count: int) -> list[list[int]]:
        return [[] for _ in range(count)] + [list(range(count))]

    def all_read_all(count: int) -> list[list[int]]:
        return [[] for _ in range(count)] + [list(range(count)) for _ in range(count)]

    assert count_lines(one_reader(400)) < 2.5 * count_lines(one_reader(200))
    assert count_lines(all_read_all(40)) < 5 * count_lines(all_read_all(20))


def test_several_sums_of_one_array_are_combined_as_it_is_read() -> None:
    """Partial results of all sums are released early, not those of the first one only."""
    reads: list[list[int]] = []
    sizes: list[int] = []

    def add(size: int, *inputs: int) -> int:
        reads.append(list(inputs))
        sizes.append(size)
        return len(reads) - 1

    partials: list[list[int]] = [[], []]
    for _ in range(16):
        block = add(10)
        for each in partials:
            each.append(add(3, block))
    for each in partials:
        combined = [add(3, *each[start : start + 4]) for start in range(0, 16, 4)]
        add(3, *combined)
    order = run_order(reads, sizes, [0] * len(reads), set())
    assert is_valid(order, reads)
    # a block, three partial results of two sums, those of the groups before, and one that is made
    assert peak(order, reads, sizes, [0] * len(reads), set()) <= 10 + 2 * 3 * (4 + 3) + 3
