"""Positions of boxes and lines from the program ``dot`` of Graphviz, where it is installed."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

Point = tuple[float, float]

#: Points of an inch, the unit of sizes and positions of ``dot``.
_INCH = 72
#: Seconds after which ``dot`` is ended; a picture of 300 boxes takes less than one.
_LIMIT = 10


class Layout(NamedTuple):
    """Where boxes and lines are drawn, in pixels.

    Parameters
    ----------
    places
        Left upper corner of every box.
    routes
        Points of the Bezier curves of every edge: its start, and three points for each curve.
        Edges are in the order of the boxes that they lead to and of their inputs.
    width, height
        Size of the picture.
    """

    places: list[Point]
    routes: list[list[Point]]
    width: int
    height: int


def is_installed() -> bool:
    """Whether there is a program ``dot``."""
    return shutil.which("dot") is not None


def place(
    sizes: Sequence[tuple[int, int]],
    inputs: Sequence[Sequence[int]],
    gap: int,
    layer_gap: int,
) -> Layout:
    """Let ``dot`` place boxes.

    Parameters
    ----------
    sizes
        Width and height of every box.
    inputs
        Positions of the boxes that each box reads.
    gap, layer_gap
        Between the boxes of a layer, and between layers.

    Raises
    ------
    OSError
        If there is no such program, or it fails.
    """
    program = shutil.which("dot")
    if program is None:
        raise FileNotFoundError(
            'layout="dot" needs the program dot of Graphviz on the PATH; layout="own" needs nothing'
        )
    try:
        done = subprocess.run(
            [program, "-Tplain"],
            input=_document(sizes, inputs, gap, layer_gap),
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT,
        )
        return parse(done.stdout, sizes, inputs)
    except (subprocess.SubprocessError, KeyError, IndexError, ValueError) as error:
        raise OSError(f"{program} could not place {len(sizes)} boxes: {error!r}") from error


def _document(
    sizes: Sequence[tuple[int, int]], inputs: Sequence[Sequence[int]], gap: int, layer_gap: int
) -> str:
    # without limits of the network simplex, 300 boxes of a loop take minutes
    out = [
        f"digraph {{ graph [nodesep={gap / _INCH:.6f} ranksep={layer_gap / _INCH:.6f}"
        " nslimit=1 nslimit1=1]",
        'node [shape=box fixedsize=true label=""]; edge [arrowhead=none]',
    ]
    for box, (width, height) in enumerate(sizes):
        out.append(f"{box} [width={width / _INCH:.6f} height={height / _INCH:.6f}]")
    out += [f"{source} -> {box}" for box, sources in enumerate(inputs) for source in sources]
    return "\n".join([*out, "}", ""])


def parse(text: str, sizes: Sequence[tuple[int, int]], inputs: Sequence[Sequence[int]]) -> Layout:
    """The layout that ``dot -Tplain`` has printed for boxes, whose y axis points upwards.

    Raises
    ------
    KeyError, IndexError, ValueError
        If it is no layout of these boxes.
    """
    width = height = 0.0
    places: dict[int, Point] = {}
    routes: dict[tuple[int, int], list[list[Point]]] = {}
    for kind, *words in filter(None, map(str.split, text.splitlines())):
        if kind == "graph":
            width, height = (_INCH * float(word) for word in words[1:3])
        elif kind == "node":
            box = int(words[0])
            x, y = (_INCH * float(word) for word in words[1:3])
            places[box] = (x - sizes[box][0] / 2, height - y - sizes[box][1] / 2)
        elif kind == "edge":
            numbers = [_INCH * float(word) for word in words[3 : 3 + 2 * int(words[2])]]
            route = [(x, height - y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
            routes.setdefault((int(words[0]), int(words[1])), []).append(route)
    return Layout(
        [places[box] for box in range(len(sizes))],
        [routes[source, box].pop() for box, sources in enumerate(inputs) for source in sources],
        math.ceil(width),
        math.ceil(height),
    )
