"""What an installation without extras must be able to do; ``ci/package`` runs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import Client

import dasktile

#: Optional packages, which the wheel must not need.
OPTIONAL = ("bokeh", "cupy", "graphviz", "matplotlib", "numba", "xarray", "zarr")

#: Seconds after which a process counts as stuck.
LIMIT = 120


def product() -> tuple[da.Array, np.ndarray]:
    a = np.random.default_rng(0).random((200, 300))
    x = da.from_array(a, chunks=(20, 300))
    return x.T @ x, a.T @ a


def check_preload(folder: Path) -> None:
    """Start ``dask scheduler --preload dasktile.preload`` with a worker, and compute with both."""
    file = folder / "scheduler.json"
    options = ("--scheduler-file", str(file), "--preload", "dasktile.preload", "--no-dashboard")
    server = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0"]
    worker = [sys.executable, "-m", "dask", "worker", "--no-nanny", "--nthreads", "1"]
    processes = [subprocess.Popen([*server, *options], stderr=subprocess.DEVNULL)]
    try:
        deadline = time.monotonic() + LIMIT
        while not file.exists():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.1)
        processes += [
            subprocess.Popen([*worker, *options], stderr=subprocess.DEVNULL) for _ in range(2)
        ]
        with Client(scheduler_file=str(file), timeout=LIMIT) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            dasktile.metrics(client)  # an error if the plugins are missing
            y, expected = product()
            z = dasktile.optimize(y, workers=client)
            np.testing.assert_allclose(client.compute(z).result(timeout=LIMIT), expected)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(LIMIT)


def main() -> None:
    found = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    assert not found, f"installed although optional: {found}"
    assert dasktile.__version__ == importlib.metadata.version("dasktile")
    assert "site-packages" in Path(dasktile.__file__).parts, dasktile.__file__
    assert (Path(dasktile.__file__).parent / "py.typed").exists()
    # without the programs of other packages
    os.environ["PATH"] = os.path.dirname(sys.executable)
    assert shutil.which("dot") is None and shutil.which("cc") is None
    y, expected = product()
    print(dasktile.explain(y, workers=4))
    np.testing.assert_allclose(dasktile.optimize(y, workers=4).compute(), expected)
    check_preload(Path.cwd())
    print(f"dasktile {dasktile.__version__} with Python {sys.version.split()[0]}: all is well")


if __name__ == "__main__":
    main()
