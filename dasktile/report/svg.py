"""The picture of an expression: boxes in layers, drawn without any library.

Boxes and lines are where the program ``dot`` places them, if it is installed: lines are shorter
and cross less often.  Without it, boxes are put into layers by their distance from the inputs,
ordered within a layer by where their neighbours are, and joined by curves.  An edge that crosses
layers gets a place of its own in each, so that it does not run through boxes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from dasktile.ir import Chunks
from dasktile.report.formatting import shortened
from dasktile.report.graphviz import Layout, Point, is_installed, place
from dasktile.report.html import outline
from dasktile.report.page import suffix_of
from dasktile.report.palette import PALETTE

#: Suffixes of the files that can be written.
_FORMATS = (".svg", ".dot", ".gv", ".png", ".pdf")

#: Ways to place boxes.
_LAYOUTS = ("auto", "dot", "own")

_WIDTH, _GAP, _LAYER_GAP, _MARGIN = 250, 30, 64, 24
_LINE, _GRID, _LANE = 16, 44, 14
#: Width of a letter, about.
_LETTER = 7
#: Letters of a line of the caption, at least.
_CAPTION = 100
#: Width of the line to the box for which most bytes move.
_WIDEST = 9.0
#: Width of a colour and its number in the legend.
_KEY = 40
_WIDTHS = "lines: the wider, the more bytes workers receive"


@dataclass(frozen=True, slots=True)
class Box:
    """One array: what is written into its box, and what it is made of.

    Parameters
    ----------
    title, lines
        Text, the title first.
    shape, before, after
        The array's shape and its chunks in the input and in the plan.
    inputs
        Positions of the boxes it reads.
    edge
        Label at the point where the inputs enter the box.
    moved
        Bytes that workers receive for it, with the plan.
    homes
        For every axis and tile of `after`, a number; their sum is the number of a tile's worker.
        Empty where that is not known.
    hint
        Tooltip.
    kept
        True if the array keeps its chunks.
    positions
        If not 0, sums of `homes` are numbers of so many positions, which the workers share.
    """

    title: str
    lines: tuple[str, ...]
    shape: tuple[int, ...]
    before: Chunks
    after: Chunks
    inputs: tuple[int, ...]
    edge: str
    moved: int
    homes: tuple[tuple[int, ...], ...]
    hint: str
    kept: bool
    positions: int = 0


def write(
    path: Path,
    boxes: Sequence[Box],
    caption: Sequence[str],
    workers: int,
    layout: str = "auto",
) -> Path:
    """Draw boxes into a file, in the format given by the suffix of its name.

    Parameters
    ----------
    path
        The file, which ends in ``.svg``, ``.dot``, ``.gv``, ``.png`` or ``.pdf``.
    boxes
        The arrays.
    caption
        Lines of text above the picture.
    workers
        Number of workers, for the legend of colours.
    layout
        ``"dot"``, ``"own"``, or ``"auto"`` for ``"dot"`` where that program is installed.

    Raises
    ------
    ValueError
        If the name has another suffix, or there is no such layout.
    ImportError
        If ``cairosvg`` is needed and not installed.
    OSError
        If the file cannot be written, or ``dot`` is needed and missing or failing.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f'layout must be "auto", "dot" or "own"; got {layout!r}')
    suffix = suffix_of(path, _FORMATS)
    if suffix == ".svg":
        path.write_text(svg(boxes, caption, workers, layout), encoding="utf-8")
    elif suffix in (".dot", ".gv"):
        path.write_text(dot(boxes, caption), encoding="utf-8")
    else:
        picture = svg(boxes, caption, workers, layout)
        path.write_bytes(_converter(suffix)(bytestring=picture.encode()))
    return path


def _converter(suffix: str) -> Callable[..., bytes]:
    try:
        import cairosvg
    except ImportError as error:
        raise ImportError(
            f"writing {suffix} needs the package cairosvg (pip install cairosvg);"
            " .svg and .dot need nothing"
        ) from error
    converter: Callable[..., bytes] = cairosvg.svg2png if suffix == ".png" else cairosvg.svg2pdf
    return converter


def dot(boxes: Sequence[Box], caption: Sequence[str]) -> str:
    """The expression as a Graphviz document."""

    def quoted(*lines: str) -> str:
        text = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
        return f'"{text}"'

    out = ["digraph dasktile {", f"  label={quoted(*caption)}; node [shape=box];"]
    for index, box in enumerate(boxes):
        style = ' style="dashed"' if box.kept else ""
        out.append(f"  n{index} [label={quoted(box.title, *box.lines)}{style}];")
        for position, producer in enumerate(box.inputs):
            label = f" [label={quoted(box.edge)}]" if position == 0 else ""
            out.append(f"  n{producer} -> n{index}{label};")
    return "\n".join([*out, "}", ""])


def svg(
    boxes: Sequence[Box], caption: Sequence[str], workers: int = 0, layout: str = "auto"
) -> str:
    """The expression as an SVG document."""
    places, routes, width, height = _placed(boxes, layout)
    room = max(_CAPTION, width // _LETTER)
    caption = [part for line in caption for part in textwrap.wrap(line, room) or [""]]
    key = _legend(workers) if any(box.homes for box in boxes) else []
    top = _MARGIN + _LINE * len(caption) + 12 + (_LINE + 8 if key else 0)
    body: list[str] = []
    for row, line in enumerate(caption):
        body.append(_text(_MARGIN, _MARGIN + _LINE * row + 6, line, "caption"))
    if key:
        body.append(f'<g transform="translate({_MARGIN} {top - _LINE - 12})">{"".join(key)}</g>')
    body.append(f'<g transform="translate({_MARGIN} {top})">')
    most = max((box.moved for box in boxes), default=0)
    readers = [number for number, box in enumerate(boxes) for _ in box.inputs]
    for route, reader in zip(routes, readers, strict=True):
        wide = 1.2 + (_WIDEST - 1.2) * boxes[reader].moved / most if most else 1.2
        body.append(f'<path class="edge" stroke-width="{wide:.3g}" d="{_curve(route)}"/>')
    for box, (x, y) in zip(boxes, places, strict=True):
        body.extend(_draw(box, x, y, workers))
    body.append("</g>")
    widest = max(_LETTER * max(map(len, caption), default=0), _legend_width(workers) if key else 0)
    full = max(width, widest) + 2 * _MARGIN
    tall = height + top + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" height="{tall}"'
            f' viewBox="0 0 {full} {tall}">',
            _STYLE,
            '<rect class="page" width="100%" height="100%"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _legend(workers: int) -> list[str]:
    """The colours of workers, and what the width of lines is."""
    out = [_text(0, _LINE - 3, "tiles on worker")]
    x = 16 * _LETTER
    for worker in range(min(workers, len(PALETTE))):
        out.append(
            f'<rect class="cell" x="{x}" y="2" width="14" height="14" fill="{PALETTE[worker]}"/>'
        )
        label = str(worker) if workers <= len(PALETTE) else f"{worker}, ..."
        out.append(_text(x + 18, _LINE - 3, label))
        x += _KEY + (2 * _LETTER if workers > len(PALETTE) else 0)
    out.append(_text(x + 10, _LINE - 3, _WIDTHS))
    return out


def _legend_width(workers: int) -> int:
    colours = min(workers, len(PALETTE))
    each = _KEY + (2 * _LETTER if workers > len(PALETTE) else 0)
    return 16 * _LETTER + colours * each + _LETTER * len(_WIDTHS)


#: Light and dark, as the reader's browser prefers; programs that know no media queries draw light.
_STYLE = """<style>
.page { fill: white; }
text { font: 12px sans-serif; fill: #222; }
.caption { font-size: 13px; }
.title { font-weight: bold; }
.moved { fill: #a33; }
.halo { stroke: white; stroke-width: 8px; stroke-linejoin: round; fill: none; }
.box { fill: #f7f9fc; stroke: #567; }
.kept { fill: #f4f4f4; stroke: #999; stroke-dasharray: 4 3; }
.edge { fill: none; stroke: #89a; }
.grid { fill: white; stroke: #567; stroke-width: 0.8; }
.lines { fill: none; stroke: #567; stroke-width: 0.8; }
.cell { stroke: #f7f9fc; stroke-width: 0.6; }
.many { fill: #ccd; }
@media (prefers-color-scheme: dark) {
  .page { fill: #14181e; }
  text { fill: #e6e6e6; }
  .moved { fill: #ff9d8a; }
  .halo { stroke: #14181e; }
  .box { fill: #232a34; stroke: #8fa3b8; }
  .kept { fill: #26292e; stroke: #8a8a8a; }
  .edge { stroke: #74879b; }
  .grid { fill: #14181e; stroke: #9fb3c8; }
  .lines { stroke: #9fb3c8; }
  .cell { stroke: #232a34; }
  .many { fill: #3d4857; }
}
</style>"""


def _draw(box: Box, x: float, y: float, workers: int) -> list[str]:
    out = [f"<g><title>{escape(box.hint)}</title>"] if box.hint else ["<g>"]
    style = "kept" if box.kept else "box"
    out.append(
        f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{_WIDTH}"'
        f' height="{_height(box)}" rx="5"/>'
    )
    changed = box.before != box.after
    room = _WIDTH - 20 - (len(box.shape) > 0) * (_GRID + 8) * (1 + changed)
    out.append(_text(x + 10, y + 18, shortened(box.title, room // _LETTER), "title"))
    for row, line in enumerate(box.lines, start=1):
        out.append(_text(x + 10, y + 18 + _LINE * row, line))
    if box.shape:
        right = x + _WIDTH - 10 - _GRID
        if changed:
            out.append(_grid(box.shape, box.before, right - _GRID - 8, y + 8))
        share = workers / box.positions if box.positions else 1.0
        out.append(_grid(box.shape, box.after, right, y + 8, box.homes, share))
    if box.inputs:
        for style in ("halo", "moved"):
            out.append(_text(x + _WIDTH / 2 + 6, y - 8, box.edge, style))
    return [*out, "</g>"]


def _grid(
    shape: tuple[int, ...],
    chunks: Chunks,
    x: float,
    y: float,
    homes: tuple[tuple[int, ...], ...] = (),
    share: float = 1.0,
) -> str:
    """The last two axes of an array and how they are cut, to scale as far as can be seen.

    `share` is the number of workers for each position in `homes`.
    """
    drawn = outline(shape, chunks, _GRID, 8.0)
    wide, tall, row_ends, column_ends = drawn
    frame = f'x="{x:g}" y="{y:g}" width="{wide:.4g}" height="{tall:.4g}"'
    if drawn.is_dense:
        return f'<rect class="grid many" {frame}/>'
    row_ends = [y + at for at in row_ends]
    column_ends = [x + at for at in column_ends]
    if homes:
        # of the axes before the last two, the first tiles are drawn
        first = sum(axis[0] for axis in homes[:-2])

        def colour(position: int) -> str:
            return PALETTE[int(position * share) % len(PALETTE)]

        down, across = ((0,), *homes)[-2:]
        return "".join(
            f'<rect class="cell" x="{left:.5g}" y="{up:.5g}" width="{right - left:.4g}"'
            f' height="{low - up:.4g}" fill="{colour(first + i + j)}"/>'
            for i, (up, low) in zip(down, pairwise(row_ends), strict=True)
            for j, (left, right) in zip(across, pairwise(column_ends), strict=True)
        )
    lines = [f"M{x:g} {at:.4g}h{wide:.4g}" for at in row_ends[1:-1]]
    lines += [f"M{at:.5g} {y:g}v{tall:.4g}" for at in column_ends[1:-1]]
    path = f'<path class="lines" d="{"".join(lines)}"/>' if lines else ""
    return f'<rect class="grid" {frame}/>{path}'


def _text(x: float, y: float, line: str, style: str = "") -> str:
    attribute = f' class="{style}"' if style else ""
    return f'<text{attribute} x="{x:g}" y="{y:g}">{escape(line)}</text>'


def _height(box: Box) -> int:
    return max(18 + _LINE * len(box.lines) + 10, _GRID + 16)


# Layout -----------------------------------------------------------------------------


def _placed(boxes: Sequence[Box], layout: str) -> Layout:
    if layout == "own" or not boxes or (layout == "auto" and not is_installed()):
        return _layers(boxes)
    sizes = [(_WIDTH, _height(box)) for box in boxes]
    try:
        return place(sizes, [box.inputs for box in boxes], _GAP, _LAYER_GAP)
    except OSError:
        if layout == "dot":
            raise
        return _layers(boxes)


def _layers(boxes: Sequence[Box]) -> Layout:
    """Places in layers, without a library."""
    depth: list[int] = []
    for box in boxes:
        depth.append(1 + max((depth[producer] for producer in box.inputs), default=-1))
    # A source belongs just above its first reader, not at the very top.
    readers: list[list[int]] = [[] for _ in boxes]
    for index, box in enumerate(boxes):
        for producer in box.inputs:
            readers[producer].append(index)
    for index, box in enumerate(boxes):
        if not box.inputs and readers[index]:
            depth[index] = min(depth[reader] for reader in readers[index]) - 1

    # Members of a layer: a box, or the lane of an edge that passes through it.
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for index, level in enumerate(depth):
        layers[level].append(index)
    neighbours: dict[int, list[int]] = {index: [] for index in range(len(boxes))}
    chains: list[list[int]] = []
    lane = len(boxes)
    for index, box in enumerate(boxes):
        for producer in box.inputs:
            chain = [producer]
            for level in range(depth[producer] + 1, depth[index]):
                layers[level].append(lane)
                neighbours[lane] = []
                chain.append(lane)
                lane += 1
            chain.append(index)
            chains.append(chain)
            for upper, lower in pairwise(chain):
                neighbours[upper].append(lower)
                neighbours[lower].append(upper)

    wide = [float(_WIDTH)] * len(boxes) + [float(_LANE)] * (lane - len(boxes))
    middle = _order(layers, neighbours, wide)
    tops, heights = [], []
    y = 0
    for members in layers:
        tallest = max(
            (_height(boxes[member]) for member in members if member < len(boxes)), default=0
        )
        tops.append(y)
        heights.append(tallest)
        y += tallest + _LAYER_GAP
    places = [
        (middle[index] - _WIDTH / 2, float(tops[depth[index]])) for index in range(len(boxes))
    ]

    routes: list[list[Point]] = []
    for chain in chains:
        first, last = chain[0], chain[-1]
        route = [(middle[first], float(tops[depth[first]] + _height(boxes[first])))]
        for step, member in enumerate(chain[1:-1], start=depth[first] + 1):
            route.append((middle[member], float(tops[step])))
            route.append((middle[member], float(tops[step] + heights[step])))
        route.append((middle[last], float(tops[depth[last]])))
        routes.append(_bent(route))
    width = max((middle[index] + wide[index] / 2 for index in range(len(wide))), default=0.0)
    return Layout(places, routes, math.ceil(width), max(0, y - _LAYER_GAP))


def _order(
    layers: list[list[int]], neighbours: dict[int, list[int]], wide: list[float]
) -> list[float]:
    """Middle of every member: layers swept down and up, members drawn to their neighbours."""
    middle = [0.0] * len(wide)
    for members in layers:
        _spread(members, middle, wide)
    for sweep in range(6):
        for members in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = {
                member: sum(middle[other] for other in neighbours[member]) / len(neighbours[member])
                if neighbours[member]
                else middle[member]
                for member in members
            }
            members.sort(key=lambda member: (wanted[member], member))
            _spread(members, middle, wide, wanted)
    left = min((middle[index] - wide[index] / 2 for index in range(len(wide))), default=0.0)
    return [at - left for at in middle]


def _spread(
    members: list[int],
    middle: list[float],
    wide: list[float],
    wanted: dict[int, float] | None = None,
) -> None:
    """Place members side by side without overlap, near the positions `wanted`."""
    at = -math.inf
    for member in members:
        want = wanted[member] if wanted else 0.0
        middle[member] = max(want, at + wide[member] / 2)
        at = middle[member] + wide[member] / 2 + _GAP
    if wanted and members:
        # Pushing only to the right has moved the layer; move it back as a whole.
        drift = sum(middle[member] - wanted[member] for member in members) / len(members)
        for member in members:
            middle[member] -= drift


def _bent(route: list[Point]) -> list[Point]:
    """Points of Bezier curves through all points of a route, which leave and reach them upright."""
    out = route[:1]
    for (x, y), (nx, ny) in pairwise(route):
        bend = (ny - y) / 2
        out += [(x, y + bend), (nx, ny - bend), (nx, ny)]
    return out


def _curve(points: list[Point]) -> str:
    """The path of Bezier curves."""
    start, *others = (f"{x:.1f} {y:.1f}" for x, y in points)
    curves = (" ".join(others[at : at + 3]) for at in range(0, len(others), 3))
    return f"M{start}" + "".join(f"C{curve}" for curve in curves)
