"""``explain`` of what ``optimize`` returned shows the plan of what it was given."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from operator import itemgetter

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import returned, templates
from dasktile.explaining import NOT_SIMULATED
from dasktile.recent import recently_used
from dasktile.report.explanation import Explanation
from dasktile.returned import MOST_KEPT
from tests.support import plan_for_workers


@pytest.fixture(autouse=True)
def _no_plans_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = recently_used(MOST_KEPT, returned.MOST_SIZES, itemgetter(1))
    monkeypatch.setattr(returned, "_store", kept)


def centred(seed: int = 0) -> da.Array:
    x = da.random.default_rng(seed).random((3200, 400), chunks=(50, 400))
    return (x - x.mean(axis=0)).T @ x


def alike(plan: Explanation) -> Explanation:
    """An explanation without what differs between a plan to make and one that was made."""
    return replace(plan, changed=True, verdict="", planned=False)


def without_input_run(plan: Explanation) -> Explanation:
    """An explanation as it is where the run of the input is not simulated."""
    return replace(
        plan,
        run_tasks_before=None,
        received_before=None,
        busiest_link_before=None,
        peak_before=None,
        results_before=None,
        unpredicted=NOT_SIMULATED,
    )


@pytest.mark.parametrize("placed", [False, True])
def test_numbers_are_those_of_the_plan(placed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = 4
    if placed:
        plan_for_workers(monkeypatch, workers)
        before = dasktile.explain(centred())
        y = dasktile.optimize(centred())
        after = dasktile.explain(y)
    else:
        before = dasktile.explain(centred(), workers=workers)
        y = dasktile.optimize(centred(), workers=workers)
        after = dasktile.explain(y, workers=workers)
    assert before.changed and before.bytes_after > 0
    assert after.planned and not after.changed
    assert after.bytes_predicted == before.bytes_predicted
    if placed:
        assert alike(after) == without_input_run(before)
        assert (after.run_tasks_after or 0) < (before.run_tasks_before or 0)
    text = " ".join(str(after).split())
    assert text.startswith(
        "optimize returns the input itself: it is the result of optimize already, for as many"
        f" workers; its plan: {workers} workers, moves"
    )
    assert "moved before" in text and "<table" in after._repr_html_()


def test_several_arrays_are_explained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    given = centred(), centred(1) + 1
    y, z = dasktile.optimize(*given)
    assert dasktile.explain(z, y).bytes_predicted == dasktile.explain(*given).bytes_predicted
    # the plan of both is not that of one: nothing is claimed of its run
    alone = dasktile.explain(y)
    assert not alone.planned and alone.run_tasks_before is None
    assert "its plan was made for another cluster, in another process, for more" in str(
        alone
    ).replace("\n ", "")
    assert alone.bytes_predicted > 0


def test_a_plan_that_was_not_simulated_is_simulated_by_explain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch)
    y = dasktile.optimize(centred())
    first = dasktile.explain(y)
    name = frozenset([y.name])
    plan = returned._made(name)
    assert plan is not None
    unknown = replace(plan, runs=(None, None))
    returned._store[name] = (lambda: unknown), plan.weight
    later = dasktile.explain(y)
    assert later.received_after == first.received_after
    assert later.run_tasks_after == first.run_tasks_after
    assert later.run_tasks_before is None
    assert "not simulated when the plan was made" in " ".join(str(later).split())


def test_one_of_several_arrays_is_returned_as_it_is() -> None:
    random = da.random.default_rng(1).random((40, 4), chunks=(20, 4))
    given = centred(), random
    before = dasktile.explain(*given, workers=4)
    first, second = dasktile.optimize(*given, workers=4)
    assert second.name == random.name
    after = dasktile.explain(first, second, workers=4)
    assert after.planned and after.bytes_after == before.bytes_after
    again = dasktile.optimize(first, second, workers=4)
    assert [array.name for array in again] == [first.name, second.name]


def test_few_plans_are_kept_and_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    data = np.ones((3200, 400))
    x = da.from_array(data, chunks=(50, 400))
    there = weakref.ref(data)
    y = dasktile.optimize((x - x.mean(axis=0)).T @ x)
    assert dasktile.explain(y).planned
    plan = returned._made(frozenset([y.name]))
    assert plan is not None
    for number in range(MOST_KEPT):
        returned._store[frozenset([f"array-{number}"])] = (lambda: plan), plan.weight
    assert returned._made(frozenset([y.name])) is None
    assert not dasktile.explain(y).planned
    del x, y, data
    templates.forget()
    gc.collect()
    assert there() is None, gc.get_referrers(there())


def test_a_plan_for_other_workers_is_named() -> None:
    planned = dasktile.optimize(centred(), workers=4)
    text = str(dasktile.explain(planned + 1, workers=8)).replace("\n ", "")
    assert "the input contains results of optimize for 4 workers, which keep their tiles" in text
    assert "contains results" not in str(dasktile.explain(planned, workers=4))
    assert "contains results" not in str(dasktile.explain(centred(), workers=8))
