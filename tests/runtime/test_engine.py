"""Functions run in the order that their variables require, and otherwise concurrently."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dasktile.runtime.engine import DeletedVariableError, Engine, Pool, Variable, inline

LIMIT = 30


class Steps:
    """A lane whose work runs when the test calls for it."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()

    def __call__(self, run: Callable[[], None], priority: int) -> None:
        self.ready.append(run)

    def step(self, which: int = 0) -> None:
        run = self.ready[which]
        del self.ready[which]
        run()

    def all(self) -> None:
        while self.ready:
            self.step()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def engine(steps: Steps) -> Engine:
    return Engine({"steps": steps, "inline": inline})


@pytest.fixture
def threads() -> Iterator[Engine]:
    with ThreadPoolExecutor(4) as first, ThreadPoolExecutor(2) as second:
        yield Engine({"compute": Pool(first), "copy": Pool(second)})


def failing() -> None:
    raise RuntimeError("broken")


def test_reads_run_together_and_writes_alone(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable("a")
    seen: list[str] = []
    for name in ("write 1", "read 1", "read 2", "write 2", "read 3"):
        variables = ([], [a]) if name.startswith("write") else ([a], [])
        engine.push(lambda name=name: seen.append(name), *variables)
    assert len(steps.ready) == 1
    steps.step()
    assert len(steps.ready) == 2
    steps.step(1)
    assert len(steps.ready) == 1
    steps.step()
    assert (a.version, len(steps.ready)) == (1, 1)
    steps.all()
    assert seen == ["write 1", "read 2", "read 1", "write 2", "read 3"]
    assert (a.version, engine.left) == (2, 0)


def test_others_do_not_wait(engine: Engine, steps: Steps) -> None:
    a, b, c = (engine.new_variable() for _ in range(3))
    engine.push(int, [a], [b])
    engine.push(int, [], [c])
    assert len(steps.ready) == 2
    engine.push(int, [b, c], [a])
    steps.step(1)
    assert len(steps.ready) == 1
    steps.step()
    assert len(steps.ready) == 1


def test_a_read_behind_a_write_that_waits_waits_too(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable()
    engine.push(int, [a])
    engine.push(int, [], [a])
    engine.push(int, [a])
    assert len(steps.ready) == 1


def test_lanes(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable()
    assert engine.push(lambda: 3, [], [a], lane="inline").result(0) == 3
    engine.push(failing)
    assert len(steps.ready) == 1
    with pytest.raises(ValueError, match="lane must be one of steps, inline, not 'gpu'"):
        engine.push(int, lane="gpu")
    with pytest.raises(ValueError, match="at least one lane"):
        Engine({})


def test_many_operations_become_ready_at_once(engine: Engine, steps: Steps) -> None:
    a, gate = engine.new_variable(), engine.new_variable()
    count = []
    engine.push(int, [], [gate], lane="steps")
    engine.push(lambda: count.append(1), [gate], [a], lane="inline")
    for _ in range(5000):
        engine.push(lambda: count.append(1), [], [a], lane="inline")
    assert not count
    steps.step()
    assert (len(count), a.version, engine.left) == (5001, 5001, 0)


@pytest.mark.parametrize("reads, mutates", [("aa", ""), ("a", "a"), ("", "bb")])
def test_a_variable_is_named_once(engine: Engine, reads: str, mutates: str) -> None:
    variables = {name: engine.new_variable(name) for name in "ab"}
    with pytest.raises(ValueError, match="named more than once"):
        engine.push(int, [variables[one] for one in reads], [variables[one] for one in mutates])
    assert engine.left == 0
    for variable in variables.values():
        engine.push(int, [], [variable], lane="inline").result(0)


def test_an_exception_is_stored_in_mutated_variables(engine: Engine, steps: Steps) -> None:
    a, b, c, d = (engine.new_variable(name) for name in "abcd")
    ran: list[str] = []
    failed = engine.push(failing, [a], [b])
    spread = engine.push(lambda: ran.append("c"), [b], [c])
    later = engine.push(lambda: ran.append("b"), [], [b])
    free = engine.push(lambda: ran.append("d"), [a], [d])
    steps.all()
    assert ran == ["d"]
    for future in (failed, spread, later):
        assert isinstance(future.exception(0), RuntimeError)
    assert free.exception(0) is None
    engine.wait(a, 0)
    engine.wait(d, 0)
    for variable in (b, c):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken"):
                engine.wait(variable, 0)
    engine.wait_all(0)


def test_deletion_is_a_write(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable("a")
    order: list[str] = []
    engine.push(lambda: order.append("read"), [a])
    engine.delete(a, lambda: order.append("delete"))
    with pytest.raises(DeletedVariableError, match="'a'"):
        engine.push(int, [a])
    with pytest.raises(ValueError, match="was deleted"):
        engine.wait(a)
    assert len(steps.ready) == 1
    steps.all()
    assert order == ["read", "delete"]
    assert engine.left == 0


def test_a_variable_without_operations_is_deleted_at_once(engine: Engine, steps: Steps) -> None:
    a, b = engine.new_variable("a"), engine.new_variable("b")
    engine.push(int, [a])
    engine.push(int, mutates=[b])
    assert not engine.delete_idle(a)
    assert not engine.delete_idle(b)
    steps.all()
    for variable in (a, b):
        assert engine.delete_idle(variable)
        with pytest.raises(DeletedVariableError):
            engine.push(int, [variable])
        with pytest.raises(DeletedVariableError):
            engine.delete_idle(variable)
    assert engine.left == 0


def test_variables_of_failed_operations_can_be_deleted(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable()
    freed: list[int] = []
    engine.push(failing, [], [a])
    done = engine.delete(a, lambda: freed.append(1))
    steps.all()
    assert (freed, done.exception(0)) == ([1], None)


def test_waiting_has_a_limit(engine: Engine, steps: Steps) -> None:
    a = engine.new_variable()
    engine.push(int, [], [a])
    with pytest.raises(TimeoutError):
        engine.wait(a, 0.01)
    with pytest.raises(TimeoutError, match="2 operations"):
        engine.wait_all(0.01)
    steps.all()
    engine.wait_all(0)


def test_operations_that_are_pushed_later_are_not_waited_for() -> None:
    """Each operation pushes the next one, so that there is always one."""
    with ThreadPoolExecutor(1) as executor:
        engine = Engine({"threads": Pool(executor)})
        stop = threading.Event()

        def again() -> None:
            if not stop.is_set():
                engine.push(again, [variable])

        variable = engine.new_variable()
        engine.push(again, [variable])
        for _ in range(10):
            engine.wait_pushed(LIMIT)
        with pytest.raises(TimeoutError):
            engine.wait_all(0.01)
        stop.set()
        engine.wait_all(LIMIT)


def test_waiting_for_what_was_pushed_may_time_out(engine: Engine, steps: Steps) -> None:
    engine.push(int, [engine.new_variable()])
    with pytest.raises(TimeoutError, match="1 operations are not done"):
        engine.wait_pushed(0.01)
    steps.all()
    engine.wait_pushed(0)


def test_a_lane_that_is_closed() -> None:
    executor = ThreadPoolExecutor(1)
    engine = Engine({"threads": Pool(executor)})
    executor.shutdown()
    a = engine.new_variable()
    with pytest.raises(RuntimeError, match="shutdown"):
        engine.push(int, [], [a]).result(LIMIT)
    assert engine.left == 0


def test_higher_priorities_run_first() -> None:
    gate, busy = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        engine = Engine({"threads": Pool(executor)})
        order: list[str] = []

        def block() -> None:
            busy.set()
            gate.wait(LIMIT)

        engine.push(block)
        assert busy.wait(LIMIT)
        pushed = {
            name: engine.push(lambda name=name: order.append(name), priority=priority)
            for name, priority in (("ahead 1", 0), ("ahead 2", 0), ("now", 1), ("ahead 3", 0))
        }
        variable = engine.new_variable()
        engine.push(lambda: order.append("writes"), [], [variable])
        # it waits for a variable still
        reads = engine.push(lambda: order.append("reads"), [variable])
        engine.hasten(pushed["ahead 3"], 2)
        engine.hasten(pushed["now"], 0)
        engine.hasten(reads, 3)
        gate.set()
        engine.wait_all(LIMIT)
        assert order == ["ahead 3", "now", "ahead 1", "ahead 2", "writes", "reads"]
        engine.hasten(reads, 4)
        assert engine.left == 0


@pytest.mark.parametrize("seed", range(10))
def test_priorities_keep_the_order_of_variables(seed: int) -> None:
    """What is hastened while others run has the effect of a sequential run, and runs once."""
    rng = random.Random(seed)
    with ThreadPoolExecutor(3) as executor:
        engine = Engine({"threads": Pool(executor)})
        variables = [engine.new_variable() for _ in range(4)]
        values: list[list[int]] = [[] for _ in variables]
        wanted: list[list[int]] = [[] for _ in variables]
        pushed = []
        for number in range(300):
            place = rng.randrange(4)
            wanted[place].append(number)
            pushed.append(
                engine.push(
                    lambda place=place, number=number: values[place].append(number),
                    mutates=[variables[place]],
                    priority=rng.randrange(3),
                )
            )
            engine.hasten(rng.choice(pushed), rng.randrange(4))
        engine.wait_all(LIMIT)
    assert values == wanted


def test_a_lane_that_is_closed_before_a_function_is_hastened() -> None:
    gate, busy = threading.Event(), threading.Event()
    executor = ThreadPoolExecutor(1)
    engine = Engine({"threads": Pool(executor)})

    def block() -> None:
        busy.set()
        gate.wait(LIMIT)

    engine.push(block)
    assert busy.wait(LIMIT)
    queued = engine.push(int)
    executor.shutdown(wait=False)
    engine.hasten(queued, 1)
    gate.set()
    assert queued.result(LIMIT) == 0
    engine.wait_all(LIMIT)


def test_nothing_can_be_cancelled(engine: Engine, steps: Steps) -> None:
    assert not engine.push(int).cancel()
    steps.all()


@pytest.mark.parametrize("seed", range(20))
def test_concurrent_runs_equal_a_sequential_run(seed: int) -> None:
    """Steps taken in any order that the engine allows."""
    rng = random.Random(seed)
    steps = Steps()
    engine = Engine({"steps": steps})
    names = "abcdef"
    variables = {name: engine.new_variable(name) for name in names}
    values, wanted = dict.fromkeys(names, 1), dict.fromkeys(names, 1)
    versions = dict.fromkeys(names, 0)

    def work(into: dict[str, int], reads: list[str], mutates: list[str], number: int) -> None:
        total = number + sum(into[name] for name in reads)
        for name in mutates:
            into[name] = (3 * into[name] + total) % 1_000_003

    for number in range(200):
        some = rng.sample(names, rng.randint(1, 4))
        cut = rng.randint(0, len(some))
        reads, mutates = some[:cut], some[cut:]
        work(wanted, reads, mutates, number)
        for name in mutates:
            versions[name] += 1
        engine.push(
            lambda args=(reads, mutates, number): work(values, *args),
            [variables[name] for name in reads],
            [variables[name] for name in mutates],
        )
        while steps.ready and rng.random() < 0.5:
            steps.step(rng.randrange(len(steps.ready)))
    while steps.ready:
        steps.step(rng.randrange(len(steps.ready)))
    assert values == wanted
    assert {name: variable.version for name, variable in variables.items()} == versions
    assert engine.left == 0


def test_threads(threads: Engine) -> None:
    """Values that are not atomic stay whole, pushed from several threads at once."""
    variables = [threads.new_variable(number) for number in range(5)]
    values = [[0, 0] for _ in variables]
    torn: list[int] = []

    def add(where: int, source: int) -> None:
        first, second = values[source]
        if first != second:
            torn.append(source)
        values[where][0] += 1
        values[where][1] += 1

    def push(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            where, source = rng.sample(range(5), 2)
            lane = rng.choice(("compute", "copy"))
            threads.push(
                lambda pair=(where, source): add(*pair),
                [variables[source]],
                [variables[where]],
                lane,
            )

    pushing = [threading.Thread(target=push, args=(seed,)) for seed in range(4)]
    for thread in pushing:
        thread.start()
    for thread in pushing:
        thread.join()
    threads.wait_all(LIMIT)
    assert not torn
    assert sum(first for first, _ in values) == 1200
    assert sum(variable.version for variable in variables) == 1200


def test_two_operations_meet(threads: Engine) -> None:
    """Independent functions run at the same time."""
    barrier = threading.Barrier(3)
    shared, *rest = (threads.new_variable() for _ in range(4))
    for variable in rest:
        threads.push(lambda: barrier.wait(LIMIT), [shared], [variable])
    threads.wait_all(LIMIT)
    assert not barrier.broken


def test_repr_of_a_variable() -> None:
    assert repr(Variable("x")) == "<Variable 'x', version 0>"
