"""What the names of layers show: operations, the layers whose plans count their bytes, rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from dasktile.schedule.placement import MARK

_HASH = re.compile(r"-[0-9a-f]{32}(?=-|$)")
_TOKEN = re.compile(r"-dasktile-(?:.*-)?([0-9a-f]{32})$")


def short_name(layer: str) -> str:
    """The operation of a layer, as `explain` names it.

    Parameters
    ----------
    layer
        Name of the layer in the graph.
    """
    return _HASH.sub("", layer.partition(MARK)[0]) or layer


def short_names(layers: Iterable[str]) -> dict[str, str]:
    """Readable names of layers: their operations, the second and further ones with a number.

    Parameters
    ----------
    layers
        Names of layers in the graph.

    Returns
    -------
    The readable names by name of the layer; no two are equal.
    """
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    for layer in dict.fromkeys(layers):
        operation = name = short_name(layer)
        counts[operation] += 1
        if counts[operation] > 1:
            name = f"{operation} {counts[operation]}"
        while name in taken:  # a layer that the user has named so
            counts[operation] += 1
            name = f"{operation} {counts[operation]}"
        taken.add(name)
        names[layer] = name
    return names


def owners(predicted: Collection[str], rows: Mapping[str, str]) -> Callable[[str], str]:
    """A function from a layer to the layer whose prediction includes its bytes.

    The prediction of an operation is for all of its intermediate layers together, such as those
    that cut its inputs into tiles, and partial sums, which have its hash in their names.

    Parameters
    ----------
    predicted
        Names of the layers with a prediction.
    rows
        By name of a layer, the layer whose prediction includes its bytes, where that is known.

    Returns
    -------
    The function; a layer without a prediction is mapped to itself.
    """
    tokens = {match[1]: name for name in predicted if (match := _TOKEN.search(name))}

    def owner(layer: str) -> str:
        if layer in rows:
            return rows[layer]
        if layer in predicted:
            return layer
        match = _TOKEN.search(layer)
        return tokens.get(match[1], layer) if match else layer

    return owner


def rows_of_layers(layers: Iterable[str], rows: Mapping[str, str]) -> dict[str, str]:
    """The rows of layers that ran.

    Results that ``compute`` brings to the client in tuples have another hash in their names than
    those that ``optimize`` returns: a layer also belongs to a row of which no layer has run by its
    whole name, and one has by the rest of it.

    Parameters
    ----------
    layers
        Names of the layers that ran.
    rows
        By name of a layer of the explanation, its row.
    """
    found = {layer: rows[layer] for layer in layers if layer in rows}
    have_run = set(found.values())
    left: dict[str, set[str]] = {}
    for layer, row in rows.items():
        if row not in have_run and (match := _TOKEN.search(layer)):
            left.setdefault(layer[: match.start(1)], set()).add(row)
    for layer in layers:
        if layer not in found and (match := _TOKEN.search(layer)):
            candidates = left.get(layer[: match.start(1)], set())
            if len(candidates) == 1:
                (found[layer],) = candidates
    return found
