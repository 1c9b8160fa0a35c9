"""The expressions of `benchmarks.workloads` on inputs of any size, which are stored in files."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks import workloads as expressions


@dataclass(frozen=True, slots=True)
class Input:
    """The shape of a stored array, and the chunks of the file."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 8 * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Sized:
    """An expression and its inputs.

    Parameters
    ----------
    name
        Name of the function in `benchmarks.workloads`.
    inputs
        The inputs, by name.
    function
        Builds the results.
    """

    name: str
    inputs: Mapping[str, Input]
    function: Callable[..., Sequence[Any]]

    def build(self, arrays: Mapping[str, Any], xp: Any) -> list[Any]:
        """The results, as lazy arrays of the module `xp`."""

        def source(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
            return arrays[name]

        takes_module = "xp" in inspect.signature(self.function).parameters
        return list(self.function(source, **({"xp": xp} if takes_module else {})))


def sized(size: float = 0.5) -> dict[str, Sized]:
    """All workloads, by name.

    Parameters
    ----------
    size
        Scales the number of rows of tall matrices, and both sides of the others.
    """

    def n(length: int, multiple: int = 16) -> int:
        return max(1, round(length * size / multiple)) * multiple

    def squares(side: int) -> Input:
        return Input((side, side), (side // 4, side // 4))

    def by_rows(side: int) -> Input:
        return Input((side, side), (side // 16, side))

    s = n(4000, 40)
    t = s // 10
    skewed = {"a": (s, t), "b": (t, s), "c": (s, t), "d": (t, 10 * s), "e": (10 * s, s)}
    grams, samples, points = n(640_000, 320), n(800_000, 320), n(1_600_000, 320)
    tall, wide = n(40_000), n(4000)
    days, cells, targets = n(6400), n(12_000), n(2400)
    tokens = n(1024)
    side = n(6144)
    inputs: dict[str, dict[str, Input]] = {
        "matmul": dict.fromkeys("ab", squares(n(6000))),
        "chain": dict.fromkeys("abcde", squares(n(4000))),
        "skewed_chain": {name: Input(shape, (t, t)) for name, shape in skewed.items()},
        "gram_rows": {"x": Input((grams, 256), (grams // 32, 256))},
        "row_product": dict.fromkeys("ab", by_rows(n(6000))),
        "logistic_regression": {
            "x": Input((samples, 64), (samples // 20, 64)),
            "y": Input((samples,), (samples // 20,)),
            "w": Input((64,), (64,)),
        },
        "mlp": dict.fromkeys(("x", "w0", "w1", "w2"), squares(n(3072))),
        "two_axes": {
            "a": Input((tall, wide), (tall // 8, wide)),
            "m": Input((wide, 32), (wide, 32)),
        },
        "climatology": {
            "field": Input((days, cells), (days // 16, cells)),
            "weights": Input((cells, targets), (cells // 4, targets // 4)),
        },
        "attention": dict.fromkeys("qkv", Input((8, 8, tokens, 64), (2, 8, tokens // 4, 64))),
        "kmeans": {
            "x": Input((points, 32), (points // 20, 8)),
            "centres": Input((16, 32), (16, 32)),
        },
        "fft2": {"x": Input((side, side), (side // 8, side))},
        "transposed_add": dict.fromkeys("ab", by_rows(n(8000))),
    }
    return {
        name: Sized(name, chosen, getattr(expressions, name)) for name, chosen in inputs.items()
    }


def crossed(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks along the other axes: the numbers of blocks per axis in reverse order.

    Where these are the same, as for square matrices, the last axis is cut into all blocks.
    """
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    turned = counts[::-1]
    if turned == counts:
        turned = [1] * (len(counts) - 1) + [math.prod(counts)]
    return tuple(-(-length // count) for length, count in zip(shape, turned, strict=True))


def write(workload: Sized, folder: Path) -> None:
    """Write the inputs, random numbers of fixed seeds, as Zarr arrays with the inputs' names."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, array) in enumerate(workload.inputs.items()):
        values = np.random.default_rng(seed).random(array.shape)
        values -= 0.5
        file = zarr.create_array(
            str(folder / name), shape=array.shape, chunks=array.chunks, dtype="f8", compressors=None
        )
        file[...] = values


def opened(workload: Sized, folder: Path, xp: Any) -> dict[str, Any]:
    """The files of :func:`write`, as lazy arrays of the module `xp`."""
    return {name: xp.from_zarr(str(folder / name)) for name in workload.inputs}
