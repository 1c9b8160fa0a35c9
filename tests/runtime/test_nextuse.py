"""Next uses of results, from priorities and states of tasks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dasktile.runtime.nextuse import ANNOTATION, USES, HintSender, NextUses, number
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.instructions import DYING

MAX_READERS = RuntimeSettings().max_readers


def task(key: Any, order: int, state: str = "waiting", **more: Any) -> Any:
    given = {"annotations": {ANNOTATION: ("client",)}, "who_wants": (), "run_spec": 1}
    given |= {"dependents": (), "dependencies": ()}
    return Task(key=key, priority=(0, 1, order), state=state, **{**given, **more})


class Task(SimpleNamespace):
    """A task of the scheduler or of a worker."""

    __hash__ = object.__hash__


def at(order: int) -> int:
    return number((0, 1, order))


@pytest.mark.parametrize(
    "sooner, later",
    [
        ((0, 1, 5), (0, 1, 6)),
        ((0, 1, 10**9), (0, 2, 0)),
        ((-1, 9, 9), (0, 1, 0)),
        ((-1.5, 9, 9), (-1, 1, 0)),
        ((0, 1.99, 5), (0, 2, 0)),
        ((0, 1, 5, 7), (0, 1, 6, 3)),
    ],
)
def test_numbers_are_in_the_order_of_priorities(
    sooner: tuple[Any, ...], later: tuple[Any, ...]
) -> None:
    assert number(sooner) < number(later)


def hint_sender(tasks: dict[Any, Any]) -> tuple[HintSender, list[Any]]:
    """A hint sender with one scheduler, and the messages that it sends."""
    sent: list[Any] = []
    listens = SimpleNamespace(metrics={"dasktile": {"store": {"hits": 0}}})
    scheduler = SimpleNamespace(
        tasks=tasks,
        workers={"knows": listens},
        stream_comms={"knows", "too"},
        worker_send=lambda address, message: sent.append((address, message)),
    )
    waiting: list[Any] = []
    actual = HintSender(scheduler, waiting.append)

    class Sent(list[Any]):
        def now(self) -> list[Any]:
            """The messages since the last call."""
            while waiting:
                waiting.pop()()
            new = sent[:]
            sent.clear()
            return new

    return actual, Sent()


def test_hints_list_the_readers() -> None:
    readers = [task(name, order) for order, name in enumerate("abc")]
    shared = {"retries": 3}
    one, none = task("x", 9, annotations=shared), task("y", 9, annotations=None)
    one.dependents = readers
    hint_sender({each.key: each for each in (one, none)})[0].graph_added("xy")
    assert one.annotations[ANNOTATION] == ("", (0, 1, 0), (0, 1, 1), (0, 1, 2))
    assert one.annotations["retries"] == 3
    assert shared == {"retries": 3}
    assert none.annotations == {ANNOTATION: ("",)}
    many = task("z", 9)
    many.dependents = [task(order, order) for order in reversed(range(100))]
    hint_sender({"z": many})[0].graph_added("z")
    assert many.annotations[ANNOTATION] == (
        "more",
        *((0, 1, order) for order in range(MAX_READERS)),
    )


def test_hints_for_tasks_on_workers_are_sent_in_a_message() -> None:
    knows = SimpleNamespace(address="knows", metrics={"dasktile": {"store": {"hits": 0}}})
    other = SimpleNamespace(address="other", metrics={"dasktile": {"store": {}}})
    old = SimpleNamespace(address="old", metrics={})
    there = task("there", 0, "memory", who_has=[knows, other, old])
    runs = task("runs", 1, "processing", who_has=[], processing_on=knows)
    lost = task("lost", 2, "released", who_has=[], processing_on=None)
    reads = [there, runs, lost]
    new = [task("new", 5, "released", dependencies=reads), task("next", 6, dependencies=reads)]
    ran = task("ran", 4, "memory", dependencies=reads)
    for read in reads:
        read.dependents = [*new, ran]
    hints, sent = hint_sender({each.key: each for each in (*reads, *new, ran)})
    hints.graph_added(["new", "next"])
    uses = "", (0, 1, 5), (0, 1, 6)
    sent_uses = [(0, 1, 5), (0, 1, 6)], ""
    message = {"op": USES, "uses": [("there", sent_uses), ("runs", sent_uses)], "ran": []}
    assert sent.now() == [("knows", message)]
    assert there.annotations == {ANNOTATION: uses}
    # what is lost is sent with all that will read it when it runs again
    assert lost.annotations == {ANNOTATION: ("client",)}
    for each in new:
        each.state = "waiting"
    hints.graph_added(["lost"])
    assert lost.annotations == {ANNOTATION: uses}
    assert sent.now() == []
    # a result that is lost: its inputs are read once more
    ran.state, ran.waiters, ran.who_wants = "released", set(), {"client"}
    hints.result_lost("ran")
    [(_, message)] = sent.now()
    assert message["uses"][0] == ("there", ([(0, 1, 5), (0, 1, 6), (0, 1, 4)], ""))
    ran.who_wants = set()
    hints.result_lost("ran")
    assert sent.now() == []


def test_tasks_get_hints_when_their_inputs_are_in_memory() -> None:
    knows = Task(address="knows", metrics={"dasktile": {"store": {"hits": 0}}})
    first = task("first", 0, "released", annotations=None)
    middle, late = (
        task(key, order, "released", annotations=None, waiting_on={first}, dependencies=[first])
        for key, order in (("middle", 1), ("late", 2))
    )
    last = task("last", 3, "released", dependencies=[middle, late], annotations=None)
    first.dependents = [middle, late]
    middle.dependents = late.dependents = [last]
    hints, sent = hint_sender({each.key: each for each in (first, middle, late, last)})
    hints.graph_added(["first", "middle", "late", "last"])
    assert first.annotations == {ANNOTATION: ("", (0, 1, 1), (0, 1, 2))}
    assert middle.annotations is late.annotations is last.annotations is None
    middle.state = late.state = last.state = "waiting"
    first.state, first.who_has, middle.waiting_on = "memory", {knows}, set()
    hints.transition("first", "processing", "memory")
    assert middle.annotations == {ANNOTATION: ("", (0, 1, 3))}
    assert late.annotations is None
    # its input is scattered instead: no transition
    late.state, late.who_has, late.processing_on = "processing", (), knows
    hints.transition("late", "waiting", "processing")
    assert late.annotations == {ANNOTATION: ("", (0, 1, 3))}
    sent_late = ("late", ([(0, 1, 3)], ""))
    assert sent.now() == [("knows", {"op": USES, "uses": [sent_late], "ran": []})]
    hints.withdraw()
    last.annotations, last.waiting_on, middle.who_has = None, set(), ()
    hints.transition("middle", "processing", "memory")
    assert last.annotations is None


def test_withdrawn_hints_are_not_sent_with_tasks_any_more() -> None:
    made, other = task("made", 0), task("other", 1, annotations=None)
    reader = task("reader", 2, "released", dependencies=[made, other])
    made.dependents = other.dependents = [reader]
    hints, sent = hint_sender({each.key: each for each in (made, other, reader)})
    hints.graph_added(["made", "reader"])
    sent.now()
    assert made.annotations[ANNOTATION] is not None
    hints.withdraw()
    message = {"op": USES, "uses": [], "ran": [], "withdrawn": True}
    assert sent.now() == [("knows", message)]
    assert (made.annotations, other.annotations) == ({ANNOTATION: None}, None)
    # on a worker that joins now
    made.dependents = []
    assert NextUses({"made": made}).next_use("made") is None


def test_workers_with_a_replica_get_a_message_when_a_reader_has_run() -> None:
    knows, too = (
        Task(address=name, metrics={"dasktile": {"store": {"hits": 0}}})
        for name in ("knows", "too")
    )
    x = task("x", 0, "memory", who_has={knows, too})
    y = task("y", 1, "memory", who_has={too})
    reader = task("r", 7, "memory", dependencies=[x, y], who_has={too})
    x.dependents = y.dependents = [reader]
    hints, sent = hint_sender({"r": reader})
    hints.task_ran("r")
    assert sent.now() == [("knows", {"op": USES, "uses": [], "ran": [("x", (0, 1, 7))]})]
    x.dependents = [reader] * (MAX_READERS + 1)
    hints.task_ran("r")
    assert sent.now() == []


def test_a_new_hint_replaces_the_old_one() -> None:
    x = task("x", 0, "memory")
    uses = NextUses({"x": x})
    assert uses.next_use("x") == math.inf
    hints = [("x", (((0, 2, 3), (0, 2, 1)), "")), ("gone", ((), ""))]
    assert uses.update(hints) == {"x": number((0, 2, 1))}
    assert uses.next_use("x") == number((0, 2, 1))
    for then, use in (("client", math.inf), ("more", None)):
        assert uses.update([("x", ((), then))]) == {"x": use}
    [use] = uses.update([("x", ((), ""))]).values()
    assert use is DYING


def test_the_first_reader_that_has_not_run() -> None:
    x = task("x", 0, "memory", dependents=[task("a", 3, "memory"), task("b", 7), task("c", 5)])
    uses = NextUses({"x": x})
    assert uses.next_use("x") == at(5)
    uses.reader_started(x.dependents[2])
    assert uses.next_use("x") == at(7)
    uses.reader_ended("c")
    assert uses.next_use("x") == at(5)
    assert uses.next_use("nothing") is None
    x.dependents = []
    assert uses.next_use("x") == math.inf
    uses.forget("x")
    x.annotations = None
    assert uses.next_use("x") is None
    # a copy of a result of another worker is needed by tasks here alone
    x.run_spec = None
    assert uses.next_use("x") == math.inf


def test_readers_that_ran_before_the_next_use_was_asked_for_do_not_count() -> None:
    """As while a store is rather empty: it asks for all next uses when it is half full."""
    x = task("x", 0, "memory", annotations={ANNOTATION: ("", (0, 1, 3), (0, 1, 9))})
    reader = task("a", 3, dependencies=[x])
    uses = NextUses({"x": x})
    uses.reader_started(reader)
    uses.reader_ended("a")
    assert uses.next_use("x") == at(9)
    other = NextUses({"x": x})
    assert other.readers_ran([("x", (0, 1, 3))]) == {"x": at(9)}


def test_readers_count_once_each() -> None:
    x = task("x", 0, "memory", annotations={ANNOTATION: ("client", (0, 1, 4), (0, 1, 4))})
    x.dependents = [task("a", 4, "executing"), task("b", 8, "executing")]
    uses = NextUses({"x": x})
    first, second = x.dependents
    first.dependencies = second.dependencies = [x]
    assert uses.next_use("x") == at(4)
    assert uses.includes("x", first)
    assert not uses.includes("x", second)
    uses.reader_started(first)
    # one of another graph has the same number
    assert uses.next_use("x") == at(4)
    uses.readers_ran([("x", (0, 1, 4))])
    assert uses.next_use("x") == at(8)
    uses.reader_started(second)
    assert uses.next_use("x") == math.inf


def test_readers_that_ran_here_may_be_forgotten() -> None:
    x = task("x", 0, "memory", annotations={ANNOTATION: ("client", (0, 1, 4), (0, 1, 8))})
    uses = NextUses({"x": x})
    assert uses.next_use("x") == at(4)
    assert uses.readers_ran([("x", (0, 1, 4)), ("y", (0, 1, 4))]) == {"x": at(8)}
    assert uses.next_use("x") == at(8)
    # until it is lost, and read again
    uses.update([("x", ([(0, 1, 4), (0, 1, 8)], ""))])
    assert uses.next_use("x") == at(4)


def test_results_with_very_many_readers_are_always_needed() -> None:
    readers = [task(order, order) for order in range(MAX_READERS + 1)]
    x = task("x", 0, "memory", dependents=readers)
    uses = NextUses({"x": x})
    assert uses.next_use("x") == -math.inf
    for reader in readers:
        reader.state = "memory"
    assert uses.next_use("x") == math.inf
