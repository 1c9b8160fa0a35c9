"""Many rounds of enabling, spilling and disabling leave nothing behind."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, wait

import dasktile
from tests.support import BY_TARGET

SIZE = 200_000
TILES, ROUNDS = 8, 200
#: Rounds after which pools and caches of Python, Dask and NumPy are filled.
FIRST = 60


@dataclass(frozen=True)
class Usage:
    """What the process has: bytes of memory, open files, and threads; files in a directory."""

    memory: int
    descriptors: int
    threads: int
    files: int
    #: Objects of this package's classes.
    objects: int

    @classmethod
    def now(cls, directory: Path) -> Usage:
        gc.collect()
        process = psutil.Process()
        descriptors = getattr(process, "num_fds", None) or process.num_handles
        files = sum(path.is_file() for path in directory.rglob("*") if "dask" not in path.suffix)
        objects = sum("dasktile." in str(type(each)) for each in gc.get_objects())
        return cls(process.memory_info().rss, descriptors(), process.num_threads(), files, objects)


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


@pytest.mark.slow
@pytest.mark.parametrize("kept", (False, True), ids=("released", "kept"))
def test_many_rounds(kept: bool, tmp_path: Path) -> None:
    with (
        dask.config.set(BY_TARGET),
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=None,
            memory_limit=int(3 * SIZE / 0.6),
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        [worker] = cluster.workers.values()
        own = worker.data
        tiles = client.map(tile, range(TILES), pure=False)
        first: Usage | None = None
        for number in range(ROUNDS):
            dasktile.enable(client)
            if not kept or not tiles:
                tiles = client.map(tile, range(TILES), pure=False)
            wait(tiles)
            sums = client.gather(client.map(np.sum, tiles, pure=False))
            assert sums == [each * SIZE / 8 for each in range(TILES)]
            store = worker.data
            assert store.report()["spilled"]["disk"] > 0 or kept
            dasktile.disable(client)
            assert worker.data is own
            if number == FIRST:
                first = Usage.now(tmp_path)
        last = Usage.now(tmp_path)
        print(first, last)
        assert first is not None
        assert last.descriptors <= first.descriptors + 2
        assert last.threads <= first.threads + 2
        assert last.files <= first.files + TILES
        assert last.objects <= first.objects + 20
        # distributed alone takes 8 MB more: it logs events of tasks
        assert last.memory - first.memory < 20e6
