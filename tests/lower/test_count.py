"""The number of tasks of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import api, choice, needs, request
from dasktile.capture import culling
from dasktile.cluster.target import Machine
from dasktile.lower.count import count_tasks
from dasktile.templates import forget

#: Four workers, where plans are compared by predicted runs.
PLACED = Machine(4, order=tuple("0123"), who_has=lambda blocks: {})


def test_tasks_of_all_layers_that_arrays_depend_on_are_counted() -> None:
    x = da.ones((60, 60), chunks=10)
    y = x + 1
    assert count_tasks(y.dask, [y.name]) == 2 * 36
    assert count_tasks(y.dask, [x.name]) == 36
    # layers that are written when they are needed
    new = y.rechunk((60, 1))
    assert count_tasks(new.dask, [new.name]) == len(dict(new.dask))


def test_a_plan_whose_tiles_are_cut_into_many_pieces_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(4, order=tuple("abcd"), who_has=lambda blocks: {})
    monkeypatch.setattr(api, "machine", lambda *_: machine)
    # Dask rechunks in two steps; every block of the result has pieces of all 480
    x = da.random.default_rng(0).random((480, 72, 144), chunks=(1, 72, 144))
    y = x.rechunk((-1, 18, 24))
    with dask.config.set({"dasktile.bundle": 0}):
        assert dasktile.optimize(y, keep_chunks=True) is y
        explanation = dasktile.explain(y, keep_chunks=True)
        assert not explanation.changed
        assert "many tasks" in explanation.verdict
    # in bundles the pieces for one block are cut and sent together
    (new,) = dask.optimize(dasktile.optimize(y, keep_chunks=True))
    assert len(new.dask) < len(dask.optimize(y)[0].dask)
    np.testing.assert_array_equal(*dask.compute(new, y, scheduler="sync"))
    z = da.from_array(np.ones((48, 72)), chunks=(4, 72)).rechunk((-1, 18))
    assert dasktile.optimize(z, keep_chunks=True).chunks == z.chunks


def stored(name: str, tmp_path: Path) -> da.Array:
    """A vector in a file, in small chunks."""
    zarr = pytest.importorskip("zarr")
    path = str(tmp_path / name)
    made = zarr.open_array(path, mode="w", shape=(200_000,), chunks=(2_000,), dtype="f8")
    made[:] = np.arange(200_000) % 7
    return da.from_zarr(path)


@pytest.mark.parametrize("machine", [None, 4, PLACED])
def test_a_plan_that_saves_no_bytes_has_no_more_tasks_than_dask_runs(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (stored(name, tmp_path) for name in "xy")
    # Dask fuses a comparison with the selection that reads it, but not one in larger tiles
    selected = x[y > 3]
    if isinstance(machine, Machine):
        monkeypatch.setattr(api, "machine", lambda *_: machine)
    workers = machine if isinstance(machine, int) else None
    (ours,) = dask.optimize(dasktile.optimize(selected, workers=workers))
    (theirs,) = dask.optimize(selected)
    assert len(dict(ours.dask)) <= len(dict(theirs.dask))
    np.testing.assert_array_equal(ours.compute(), theirs.compute())


def test_dask_does_not_fuse_a_large_graph_to_count_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (stored(name, tmp_path) for name in "xy")
    selected = x[y > 3]
    expected = selected.compute()
    fused: list[int] = []

    def optimize(graph: Any, keys: Any) -> Any:
        fused.append(len(graph))
        return graph

    monkeypatch.setattr(choice, "optimize", optimize)
    dasktile.optimize(selected)
    assert len(fused) == 2
    forget()
    monkeypatch.setattr(choice, "MOST_FUSED", 100)
    np.testing.assert_array_equal(dasktile.optimize(selected).compute(), expected)
    assert len(fused) == 2


def test_it_is_found_out_once_which_blocks_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(name)
            return getattr(culling, name)(*arguments)

        return called

    monkeypatch.setattr(needs, "needed_blocks", counted("needed_blocks"))
    monkeypatch.setattr(request, "NeededTasks", counted("NeededTasks"))
    x = da.from_array(np.ones((400, 400)), chunks=40).map_blocks(np.cos)
    dasktile.optimize((x[:200] + x[:, :200].T).sum(axis=0), workers=4)
    # for the results, and for all arrays
    assert calls == ["needed_blocks", "NeededTasks"]
