"""What the meter of `diagnose` counts, driven by the state machine of a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    ExecuteSuccessEvent,
    FreeKeysEvent,
    GatherDepSuccessEvent,
    SecedeEvent,
    WorkerState,
)

from dasktile.runtime import meter

OTHER = "tcp://127.0.0.1:2"


class Machine:
    """The state machine of a worker of one thread, its meter, and a clock that is set."""

    def __init__(self) -> None:
        self.time = 0.0
        self.state = WorkerState(nthreads=1, address="tcp://127.0.0.1:1", validate=True)
        self.meter = self.another()

    def another(self) -> Any:
        """One more meter, that begins now."""
        new: Any = meter._meter()
        new.setup(SimpleNamespace(state=self.state, data={}))
        new.clock = lambda: self.time
        new.last = self.time
        new.started = dict.fromkeys(new.started, self.time)
        self.state.plugins[f"meter-{len(self.state.plugins)}"] = new
        return new

    def compute(self, key: str, **arguments: Any) -> None:
        self.state.handle_stimulus(ComputeTaskEvent.dummy(key, stimulus_id="compute", **arguments))

    def free(self, key: str) -> None:
        self.state.handle_stimulus(FreeKeysEvent(keys=[key], stimulus_id="free"))

    def secede(self, key: str) -> None:
        self.state.handle_stimulus(SecedeEvent(key=key, compute_duration=1.0, stimulus_id="secede"))

    def succeed(self, key: str) -> None:
        event = ExecuteSuccessEvent.dummy(key, run_id=0, nbytes=8, stimulus_id="done")
        self.state.handle_stimulus(event)

    def receive(self, key: str) -> None:
        event = GatherDepSuccessEvent(
            worker=OTHER, data={key: 1}, total_nbytes=8, stimulus_id="received"
        )
        self.state.handle_stimulus(event)

    def times(self) -> tuple[float, float, float]:
        report = self.meter.report()
        return sum(report["computing"].values()), report["waiting"], report["idle"]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_task_occupies_a_thread_until_it_has_run(machine: Machine) -> None:
    machine.time = 1
    machine.compute("x-1")
    machine.time = 3
    assert machine.times() == (2, 0, 1)
    machine.succeed("x-1")
    machine.time = 4
    assert machine.times() == (2, 0, 2)
    assert machine.meter.report()["tasks"] == {"x": 1}
    assert machine.meter.report()["results"] > 0


def test_a_seceded_task_leaves_its_thread(machine: Machine) -> None:
    machine.compute("x-1")
    machine.time = 1
    machine.secede("x-1")
    machine.time = 3
    assert machine.times() == (1, 0, 2)
    machine.compute("y-1")
    machine.time = 4
    machine.succeed("y-1")
    machine.succeed("x-1")
    assert machine.times() == (2, 0, 2)
    assert machine.meter.report()["tasks"] == {"x": 1, "y": 1}


def test_a_cancelled_task_occupies_its_thread_while_it_runs(machine: Machine) -> None:
    machine.compute("x-1")
    machine.time = 1
    machine.free("x-1")
    machine.time = 3
    assert machine.state.tasks["x-1"].state == "cancelled"
    assert machine.times() == (3, 0, 0)
    machine.succeed("x-1")
    machine.time = 4
    assert machine.times() == (3, 0, 1)
    # its result was not kept
    report = machine.meter.report()
    assert report["tasks"] == {} and report["results"] == 0


def test_a_cancelled_task_that_is_wanted_again_goes_on(machine: Machine) -> None:
    machine.compute("x-1")
    machine.free("x-1")
    machine.time = 1
    machine.compute("x-1")
    assert machine.state.tasks["x-1"].state == "executing"
    machine.time = 2
    machine.succeed("x-1")
    assert machine.times() == (2, 0, 0)
    assert machine.meter.report()["tasks"] == {"x": 1}


def test_a_cancelled_task_may_secede(machine: Machine) -> None:
    machine.compute("x-1")
    machine.free("x-1")
    machine.time = 1
    machine.secede("x-1")
    machine.time = 2
    assert machine.times() == (1, 0, 1)
    machine.succeed("x-1")
    assert machine.times() == (1, 0, 1)


def test_a_resumed_task_occupies_its_thread_and_counts_as_run(machine: Machine) -> None:
    machine.compute("x-1")
    machine.free("x-1")
    # wanted from another worker, while it still runs here
    machine.compute("y-1", who_has={"x-1": [OTHER]}, nbytes={"x-1": 8})
    assert machine.state.tasks["x-1"].state == "resumed"
    machine.time = 2
    assert machine.times() == (2, 0, 0)
    machine.succeed("x-1")
    report = machine.meter.report()
    assert report["tasks"] == {"x": 1} and report["received"] == {}


def test_a_cancelled_transfer_is_still_on_its_way(machine: Machine) -> None:
    machine.compute("y-1", who_has={"x-1": [OTHER]}, nbytes={"x-1": 8})
    machine.time = 1
    machine.free("y-1")
    machine.free("x-1")
    assert machine.state.tasks["x-1"].state == "cancelled"
    machine.time = 2
    assert machine.times() == (0, 2, 0)
    machine.receive("x-1")
    machine.time = 3
    assert machine.times() == (0, 2, 1)
    assert machine.meter.report()["received"] == {}


def test_received_bytes_end_the_wait(machine: Machine) -> None:
    machine.compute("y-1", who_has={"x-1": [OTHER]}, nbytes={"x-1": 8})
    machine.time = 2
    machine.receive("x-1")
    machine.time = 3
    assert machine.times() == (1, 2, 0)
    assert machine.meter.report()["received"].keys() == {"x"}


@pytest.mark.parametrize("seceded", [False, True])
def test_tasks_that_were_cancelled_before_are_counted(machine: Machine, seceded: bool) -> None:
    machine.compute("x-1")
    if seceded:
        machine.secede("x-1")
    machine.free("x-1")
    machine.time = 1
    machine.meter = machine.another()
    machine.time = 2
    assert machine.times() == ((0, 0, 1) if seceded else (1, 0, 0))
