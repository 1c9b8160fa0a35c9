"""Home workers while workers join and leave, against a plain and slow implementation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dasktile.ir import workers_of_positions
from dasktile.schedule import homes as homes_module
from dasktile.schedule.homes import Homes
from dasktile.schedule.worker_list import WorkerList


class PlainHomes:
    """The tables of `Homes`, by looking at all workers and positions for every change."""

    def __init__(self, workers: Sequence[str], max_vacant: int) -> None:
        self.workers = list(workers)
        self.max_vacant = max_vacant
        self.initial: dict[int, tuple[str, ...]] = {}
        self.successors: dict[str, str] = {}
        self.vacant: dict[str, int] = {}

    def lose(self, address: str) -> None:
        if address in self.workers:
            self.vacant[address] = self.workers.index(address)
            self.workers.remove(address)
            if len(self.vacant) > self.max_vacant:
                del self.vacant[next(iter(self.vacant))]

    def join(self, address: str, instead_of: str | None = None) -> None:
        if address in self.workers:
            return
        if instead_of not in self.vacant:
            instead_of = address if address in self.vacant else self.last_vacant()
        self.successors.pop(address, None)
        if instead_of is None:
            self.workers.append(address)
        else:
            self.workers.insert(self.vacant.pop(instead_of), address)
            if instead_of != address:
                self.successors[instead_of] = address
                self.vacant.pop(address, None)
        for positions in list(self.initial):
            self.take_duplicate(positions, address)

    def take_duplicate(self, positions: int, address: str) -> None:
        table = self.table(positions)
        if address not in table:
            repeated = (at for at, worker in enumerate(table) if worker in table[:at])
            duplicate = next(repeated, None)
            if duplicate is not None:
                self.give(positions, duplicate, address)
            share = positions // len(self.workers)
            present = map(self.successor, self.initial[positions])
            if not all(worker in self.workers for worker in present):
                share = 0
            while share > 1 and (table := self.table(positions)).count(address) < share:
                fullest = max(self.workers, key=table.count)
                last = max(at for at, worker in enumerate(table) if worker == fullest)
                self.give(positions, last, address)

    def give(self, positions: int, position: int, address: str) -> None:
        initial = list(self.initial[positions])
        initial[position] = address
        self.initial[positions] = tuple(initial)

    def last_vacant(self) -> str | None:
        used = {self.successor(worker) for initial in self.initial.values() for worker in initial}
        latest = list(reversed(self.vacant))
        return next((worker for worker in latest if worker in used), next(iter(latest), None))

    def table(self, positions: int) -> tuple[str, ...]:
        count = len(self.workers)
        numbers = workers_of_positions(positions, count)
        initial = self.initial.setdefault(
            positions, tuple(self.workers[number] for number in numbers)
        )
        table: list[str] = []
        lost = 0
        for address in map(self.successor, initial):
            table.append(address if address in self.workers else self.workers[lost % count])
            lost += address not in self.workers
        return tuple(table)

    def successor(self, address: str) -> str:
        seen = set()
        while address in self.successors and address not in seen:
            seen.add(address)
            address = self.successors[address]
        return address


@pytest.mark.parametrize("seed", range(60))
def test_homes_are_those_of_a_plain_implementation(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    max_vacant = rng.choice([2, 1000])
    monkeypatch.setattr(homes_module, "MAX_VACANT", max_vacant)
    everyone = [f"w{number}" for number in range(rng.choice([4, 12, 30]))]
    first = everyone[: len(everyone) // 2]
    homes, plain = Homes(first), PlainHomes(first, max_vacant)
    joining = rng.choice([0.3, 0.5, 0.7])
    for _ in range(200):
        if rng.random() < 0.1:
            positions = rng.randrange(1, 2 * len(everyone))
            assert homes.table(positions) == plain.table(positions)
        elif rng.random() < joining:
            address = rng.choice(everyone)
            instead_of = rng.choice([None, rng.choice(everyone)])
            homes.join(address, instead_of)
            plain.join(address, instead_of)
        elif len(plain.workers) > 1:
            address = rng.choice(everyone)
            homes.lose(address)
            plain.lose(address)
        assert homes.workers == plain.workers
        assert list(homes.vacant) == list(plain.vacant)
        if rng.random() < 0.3:
            assert {n: homes.table(n) for n in plain.initial} == {
                n: plain.table(n) for n in plain.initial
            }
    assert sorted(everyone, key=homes.place) == plain.workers + sorted(
        set(everyone).difference(plain.workers)
    )


def test_workers_added_at_the_same_place_again_and_again() -> None:
    order, workers = ["a", "z"], WorkerList(["a", "z"])
    for number in range(300):
        order.insert(1, f"w{number}")
        workers.insert(1, f"w{number}")
    workers.insert(10**6, "end")
    workers.insert(0, "start")
    assert workers.addresses == ["start", *order, "end"]
    assert sorted(workers.addresses, key=workers.place) == workers.addresses
    for address in list(workers.addresses):
        assert workers.remove(address) == 0
    assert not workers.addresses
