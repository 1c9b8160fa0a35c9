"""Climatology and regridding of a field stored in a Zarr store, map by map.

    python examples/regrid_from_zarr.py [--workers 4] [--months 240]

A field chunked along time is turned into anomalies (its mean over time is subtracted)
and every map is then multiplied by a dense regridding matrix.  Stock Dask cuts both into
a grid of all their chunks and multiplies block by block with ``np.einsum``; dasktile reads
every stored chunk once and multiplies with BLAS; ``explain`` shows this before the computation.
"""

from __future__ import annotations

import argparse
import tempfile

import dask.array as da
import numpy as np

import dasktile


def field(path: str, months: int) -> da.Array:
    """Write maps of temperatures and open them again."""
    rng = np.random.default_rng(0)
    season = np.cos(np.arange(months) * np.pi / 6)[:, None, None]
    maps = 15 + 10 * season + rng.normal(size=(months, 45, 90))
    da.from_array(maps, chunks=(12, 45, 90)).to_zarr(path)
    return da.from_zarr(path)


def regridding_matrix(cells: int) -> da.Array:
    """Weights of every old cell in every new one; rows sum to one."""
    rng = np.random.default_rng(1)
    weights = rng.random((cells, 45, 90))
    weights /= weights.sum(axis=(1, 2), keepdims=True)
    return da.from_array(weights, chunks=(cells // 4, 15, 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--months", type=int, default=240)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        maps = field(f"{folder}/field.zarr", arguments.months)
        anomalies = maps - maps.mean(axis=0)
        coarse = da.einsum("tyx,kyx->tk", anomalies, regridding_matrix(400))
        print(dasktile.explain(coarse, workers=arguments.workers))
        tiled = dasktile.optimize(coarse, workers=arguments.workers).compute()
        print("same values:", np.allclose(tiled, coarse.compute()))


if __name__ == "__main__":
    main()
