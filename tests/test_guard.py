"""Guards around planning."""

from __future__ import annotations

import gc

import dask.array as da
import pytest

import dasktile
from dasktile.guard import without_collections


@pytest.mark.parametrize("frozen", [0, 7])
def test_new_objects_become_old_at_once_unless_others_are_frozen(
    frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    with pytest.raises(ZeroDivisionError), without_collections():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    assert calls == ([] if frozen else ["freeze", "unfreeze"])


def test_collections_that_are_off_stay_off() -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_planning_leaves_hardly_any_garbage() -> None:
    x = da.ones((4000, 400), chunks=(500, 100))
    y = x.T @ (x - x.mean(axis=0))
    dasktile.optimize(y, workers=4)
    gc.collect()
    gc.disable()
    try:
        z = dasktile.optimize(y + 1, workers=4)
        # of thousands of objects
        assert gc.collect() < 50
    finally:
        gc.enable()
    assert z.shape == y.shape
