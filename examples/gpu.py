"""A job that needs more memory than a GPU may use, with arrays of CuPy.

    python examples/gpu.py [--limit "512 MiB"] [--times 2]

Results are copied to the memory of the host by next use, and back before the tasks that read them.
It needs CuPy and dask-cuda.
"""

from __future__ import annotations

import argparse

import cupy
import dask.array as da
from dask.utils import format_bytes, parse_bytes
from dask_cuda import LocalCUDACluster
from distributed import Client, wait

import dasktile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="512 MiB", help="device memory for results")
    parser.add_argument("--times", type=float, default=2.0, help="bytes of the array over them")
    arguments = parser.parse_args()
    rows = int(parse_bytes(arguments.limit) * arguments.times) // (4096 * 8)
    data = dasktile.worker_data("8 GiB", device_memory_limit=arguments.limit)
    with LocalCUDACluster(n_workers=1, data=data) as cluster, Client(cluster) as client:
        dasktile.enable(client)
        random = da.random.default_rng(cupy.random.default_rng())
        x = client.persist(random.random((rows, 4096), chunks=(rows // 16, 4096)))
        wait(x)
        deviations = (x - x.mean(axis=0)).std(axis=0)
        mean = float(deviations.mean().compute())
        print(f"{format_bytes(x.nbytes)} on a device with {arguments.limit} for results")
        print(f"mean standard deviation {mean:.4f}, expected {(1 / 12) ** 0.5:.4f}")
        assert abs(mean - (1 / 12) ** 0.5) < 1e-3
        for metrics in dasktile.metrics(client).workers.values():
            spilled, read = metrics.spilled["host"], metrics.read_back["host"]
            print(f"copied to the host {format_bytes(spilled)}, and back {format_bytes(read)}")


if __name__ == "__main__":
    main()
