"""What planning leaves behind."""

from __future__ import annotations

import gc

import dask.array as da
from dask.highlevelgraph import HighLevelGraph

import dasktile
from dasktile.tiling.candidates import Space
from dasktile.tiling.mesh_planner import MeshPlanner


def test_planning_leaves_no_cycles_of_large_objects() -> None:
    x = da.ones((4000, 400), chunks=(500, 100))
    y = x.T @ (x - x.mean(axis=0))
    dasktile.optimize(y, workers=4)
    gc.collect()
    gc.disable()
    try:
        z = dasktile.optimize(y + 1, workers=4)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(each) for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {HighLevelGraph, MeshPlanner, Space}.intersection(left)
    assert z.shape == y.shape
