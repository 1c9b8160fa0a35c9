"""Writes to Zarr arrays whose chunks the tiles cross: each stored chunk is written by one task."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dasktile
import dasktile.planning
from dasktile import pipeline
from tests.agreement import EAGER
from tests.support import accept_all_plans

zarr = pytest.importorskip("zarr", minversion="3")

RNG = np.random.default_rng(0)
A, B = RNG.random((48, 20)), RNG.random((20, 40))

#: Chunks of the Zarr array; no boundary is one of the tiles.
STORED = (7, 9)

#: The part of a larger Zarr array that is written: its ends are within stored chunks.
REGION = (slice(5, 53), slice(4, 44))


# zarr has no types for the type checker here
class Recorded(zarr.Array):  # type: ignore[misc]
    """A Zarr array that notes the places of its writes in a file, also those of other processes."""

    def __setitem__(self, selection: Any, value: Any) -> None:
        places = [
            part.indices(length)[:2] for part, length in zip(selection, self.shape, strict=True)
        ]
        with open(f"{self.store.root}.writes", "a") as file:
            # one call of write, so that lines of processes are not mixed
            file.write(json.dumps(places) + "\n")
        super().__setitem__(selection, value)

    def writers(self) -> Counter[tuple[int, ...]]:
        """Number of writes to each stored chunk."""
        counts: Counter[tuple[int, ...]] = Counter()
        for line in Path(f"{self.store.root}.writes").read_text().splitlines():
            touched = (
                range(start // size, -(-stop // size))
                for (start, stop), size in zip(json.loads(line), self.chunks, strict=True)
            )
            counts.update(itertools.product(*touched))
        return counts


@pytest.fixture(scope="module", params=["threads", "cluster"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads of this process, or a cluster whose workers get the tiles of the plan."""
    if request.param == "threads":
        with dask.config.set(scheduler="threads"):
            yield
        return
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        yield


@pytest.fixture(autouse=True)
def layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Plans are carried out at any price, and Dask writes one stored chunk with each task.

    Returns the names of the layers of all graphs that dasktile writes.
    """
    names: list[str] = []
    rewrite = pipeline.rewrite

    def recorded(*arguments: Any) -> Any:
        result = rewrite(*arguments)
        names.extend(result.graph.layers)
        return result

    monkeypatch.setattr(pipeline, "rewrite", recorded)
    accept_all_plans(monkeypatch)
    monkeypatch.setattr(dasktile.planning, "_moves_more", lambda *_: False)
    size = int(np.prod(STORED)) * A.itemsize
    with dask.config.set({**EAGER, "array.chunk-size": size}):
        yield names


def product() -> da.Array:
    return da.from_array(A, chunks=(8, 20)) @ da.from_array(B, chunks=(20, 5))


def target(folder: Path, shape: tuple[int, ...]) -> Recorded:
    stored = zarr.create_array(
        str(folder / "x.zarr"), shape=shape, chunks=STORED, dtype="f8", fill_value=-1.0
    )
    return Recorded(stored.async_array)


def crosses(chunks: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a boundary of chunks is within a stored chunk, along each axis."""
    return all(
        any(end % size for end in np.cumsum(sizes)[:-1])
        for sizes, size in zip(chunks, STORED, strict=True)
    )


def optimized(stored: Recorded, **options: Any) -> None:
    planned = dasktile.optimize(product())
    # these tiles would be written to stored chunks by several tasks at once
    assert planned.chunks != product().chunks and crosses(planned.chunks)
    planned.to_zarr(stored, **options)


def optimized_write(stored: Recorded, **options: Any) -> None:
    """What is optimised contains the tasks that write."""
    dasktile.optimize(product().to_zarr(stored, compute=False, **options)).compute()


def hooked(stored: Recorded, **options: Any) -> None:
    with dask.config.set(array_optimize=dasktile.array_optimize):
        product().to_zarr(stored, **options)


def hooked_after_optimize(stored: Recorded, **options: Any) -> None:
    with dask.config.set(array_optimize=dasktile.array_optimize):
        optimized(stored, **options)


WRITES = [optimized, optimized_write, hooked, hooked_after_optimize]


@pytest.mark.parametrize("region", [None, REGION], ids=["whole", "region"])
@pytest.mark.parametrize("write", WRITES)
def test_each_stored_chunk_is_written_once(
    write: Callable[..., None], region: Any, scheduler: None, layers: list[str], tmp_path: Path
) -> None:
    expected = A @ B
    if region is not None:
        expected = np.pad(A @ B, ((5, 9), (4, 12)), constant_values=-1.0)
    stored = target(tmp_path, expected.shape)
    write(stored, region=region)
    np.testing.assert_allclose(stored[:], expected)
    assert set(stored.writers().values()) == {1}
    assert any("-dasktile-" in name for name in layers)


def test_the_hook_makes_tiles_that_cross_stored_chunks() -> None:
    nodes = dasktile.explain(product().rechunk(STORED), keep_chunks=True).nodes
    assert any(
        node.chunks_after != node.chunks_before and crosses(node.chunks_after) for node in nodes
    )


def test_tiles_would_be_written_by_several_tasks_at_once(tmp_path: Path) -> None:
    """What `to_zarr` prevents: `store` writes the tiles themselves, so that it needs its lock."""
    stored = target(tmp_path, (48, 40))
    dasktile.optimize(product()).store(stored, lock=True, scheduler="sync")
    assert max(stored.writers().values()) > 1


def test_chunks_of_the_store_need_no_lock(tmp_path: Path) -> None:
    stored = target(tmp_path, (48, 40))
    planned = dasktile.optimize(product(), chunks=(2 * STORED[0], STORED[1]))
    planned.store(stored, lock=False, scheduler="threads")
    np.testing.assert_allclose(stored[:], A @ B)
    assert set(stored.writers().values()) == {1}
