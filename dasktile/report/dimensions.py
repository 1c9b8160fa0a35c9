"""Reasons that name dimensions of xarray instead of axes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from dasktile.ir import Program

#: Names of the dimensions of an array; None where one is unknown.
Dims = tuple[Hashable | None, ...]

#: The group-by of flox in a reason, with its axes: of its own array, which xarray transposes.
_GROUP_BY = re.compile(r"(flox's group-by \w+) over ax[ei]s \d+(?: and \d+)*")

#: The row of a group-by whose result has the dimension of its input.
_SCAN = "groupby_scan"


def with_dimensions(
    program: Program, reasons: Sequence[str], named: Mapping[str, Sequence[Hashable]]
) -> list[str]:
    """The reasons of all nodes, in which group-bys are named by dimensions, where these are known.

    Parameters
    ----------
    program
        The program.
    reasons
        One for each node.
    named
        By the name of an array, the names of its dimensions.
    """
    if not named or not any(map(_GROUP_BY.search, reasons)):
        return list(reasons)
    dims = _propagated(program, named)
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(program.nodes):
        for edge in node.edges:
            readers.setdefault(edge.producer, []).append(index)
    result = list(reasons)
    # the results of a group-by come after its steps
    for index in reversed(range(len(reasons))):
        match = _GROUP_BY.search(reasons[index])
        if match is None:
            continue
        last = dims[index][-1] if dims[index] else None
        if last is not None:
            word = "over" if program.nodes[index].op == _SCAN else "by"
            result[index] = reasons[index].replace(match[0], f"{match[1]} {word} {last}")
            continue
        for reader in readers.get(index, ()):
            if reasons[reader] == reasons[index]:
                result[index] = result[reader]
    return result


def _propagated(program: Program, named: Mapping[str, Sequence[Hashable]]) -> list[Dims]:
    """The dimensions of all nodes: as named, or those of a reader that has them along its axes."""
    dims: list[Dims] = [(None,) * len(node.shape) for node in program.nodes]
    for index in reversed(range(len(program.nodes))):
        node = program.nodes[index]
        given = named.get(node.name, ())
        if len(given) == len(node.shape):
            dims[index] = tuple(given)
        by_label = {
            axis.label: name
            for axis, name in zip(node.out, dims[index], strict=True)
            if axis.identity and axis.label is not None
        }
        for edge in node.edges:
            found = (
                by_label.get(axis.label) if axis.identity and axis.label is not None else None
                for axis in edge.axes
            )
            dims[edge.producer] = tuple(
                known if known is not None else new
                for known, new in zip(dims[edge.producer], found, strict=True)
            )
    return dims
