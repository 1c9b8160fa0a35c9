"""The inputs of the corpus: random arrays as published, or the same numbers read from files."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import dask
import dask.array as da
import numpy as np

#: Where inputs come from: blocks of random numbers, which cannot be cut otherwise, or Zarr files.
KINDS = ("random", "zarr")


_Function = TypeVar("_Function", bound=Callable[..., list[Any]])


class Source(Protocol):
    """Creates the inputs of a workload."""

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        dtype: str = "f8",
        law: str = "uniform",
    ) -> da.Array:
        """An input.

        Parameters
        ----------
        name
            Inputs of different names have different numbers, the same in every run.
        shape, chunks, dtype
            As for the functions of dask.array.
        law
            ``uniform`` in [0, 1), ``normal``, ``bytes``: integers from 0 to 255, or ``zeros``.
        """
        ...


def random(
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str = "f8",
    law: str = "uniform",
) -> da.Array:
    """An input that is generated in its blocks; see `Source`."""
    rng = da.random.default_rng(zlib.crc32(name.encode()))
    # longer chunks than the array are allowed, so that short arrays have one block
    cut = tuple(min(chunk, max(1, length)) for chunk, length in zip(chunks, shape, strict=True))
    if law == "zeros":
        return da.zeros(shape, chunks=cut, dtype=dtype)
    if law == "uniform":
        return rng.random(shape, chunks=cut, dtype=np.dtype(dtype))
    if law == "normal":
        return rng.normal(size=shape, chunks=cut)
    if law == "bytes":
        return rng.integers(0, 256, size=shape, chunks=cut, dtype=dtype)
    raise ValueError(f"law must be uniform, normal, bytes or zeros; got {law!r}")


class Stored:
    """Inputs that are read from Zarr files, which are written when they are asked for first.

    Parameters
    ----------
    folder
        The folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        dtype: str = "f8",
        law: str = "uniform",
    ) -> da.Array:
        """The numbers of :func:`random`; see `Source`."""
        sizes = "x".join(map(str, shape)) + "-" + "x".join(map(str, chunks))
        path = self.folder / f"{name}-{sizes}-{dtype}-{law}"
        if not path.exists():
            # not on the cluster that is measured
            with dask.config.set(scheduler="threads"):
                da.to_zarr(random(name, shape, chunks, dtype, law), str(path))
        return da.from_zarr(str(path))


def source_of(kind: str, folder: Path) -> Source:
    """The source of a kind of `KINDS`, whose files are in `folder`."""
    return random if kind == "random" else Stored(folder)


def keeps_chunks(function: _Function) -> _Function:
    """Mark a workload whose results were published to be stored in their chunks."""
    function.keep_chunks = True  # type: ignore[attr-defined]
    return function


def scaled(count: float, size: float, axes: int = 1, least: int = 2) -> int:
    """A number of blocks or elements along one axis.

    Parameters
    ----------
    count
        The number at size 1.
    size
        Factor of the bytes of the workload.
    axes
        Number of axes that grow with the size.
    least
        The number is at least this.
    """
    return max(least, round(count * size ** (1 / axes)))
