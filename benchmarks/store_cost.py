"""The processor time of the store's bookkeeping for one task, without a cluster.

    python -m benchmarks.store_cost [--rounds 7]

One thread does what a worker does for the tasks of a loop over tiles: each task reads a tile and
the result of the task before, and stores a result, which the next one deletes.  Memory has room
for everything (``roomy``), so that nothing is decided, or for two thirds of the tiles
(``pressure``), so that tiles are evicted and swapped in.  The time is the processor time of this
thread; that of the threads that copy is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from typing import Any

import numpy as np

from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings

#: Bytes of a tile, tiles, and loops over them.
SIZE, TILES, LOOPS = 20_000, 64, 6

#: Tiles that fit into memory.
MEMORY = {"roomy": 1000, "pressure": 40}


class _Timer:
    """Sums the processor time of this thread in ``with`` blocks."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.thread_time() - self._start


def run(capacity: int) -> float:
    """Processor seconds for one task.

    Parameters
    ----------
    capacity
        Bytes of memory.
    """
    timer = _Timer()
    with tempfile.TemporaryDirectory() as folder:
        store = TileStore([Disk(folder)], ResidencySettings((capacity, None)))
        uses: dict[Any, float] = {("tile", at): float(at) for at in range(TILES)}
        store.next_use = uses.get
        for key in list(uses):
            store[key] = _tile()
        store.wait_all()
        for now in range(LOOPS * TILES):
            following = [("tile", (now + step) % TILES) for step in (1, 2, 3)]
            keys: list[Any] = [("tile", now % TILES)]
            keys += [("result", now - 1)] if now else []
            ready = threading.Event()
            with timer:
                if store.evicted_count:
                    store.set_upcoming(following[:1], following[1:])
                request = store.request(keys, ready.set, SIZE, now)
            ready.wait()
            uses |= {keys[0]: float(now + TILES), ("result", now): float(now + 1)}
            with timer:
                store.expect({keys[0]: uses[keys[0]]})
                for key in keys:
                    store[key]
                store.release(request)
                store["result", now] = _tile()
                if now:
                    del store["result", now - 1]
        store.wait_all()
        store.close()
    return timer.seconds / (LOOPS * TILES)


def _tile() -> np.ndarray[Any, Any]:
    return np.zeros(SIZE, np.uint8)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for name, tiles in MEMORY.items():
        rounds = [run(tiles * SIZE) for _ in range(options.rounds + 1)][1:]
        print(f"{name}: {1e6 * statistics.median(rounds):.1f} us for a task")


if __name__ == "__main__":
    main()
