"""Graphs that were written before, for the same computation with other keys, as in a loop.

The key is a digest of everything that the graph depends on: the structure of the input's graph, the
constants in it, where its persisted blocks are, the request, the machine and the settings.  Graphs
of equal keys differ in the names of their keys only, and in what is handed on: futures, and states
of random numbers.  A template is the graph that was written with gaps for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from operator import attrgetter

from dask.highlevelgraph import HighLevelGraph

from dasktile import config, decisions
from dasktile.capture.structure import Structured, layers_of_data, structured
from dasktile.cluster.located import positions_of_data
from dasktile.collections.unpack import Rewritten
from dasktile.errors import ContradictedKernelWarning, warn_user
from dasktile.guard import or_none
from dasktile.ir import Chunks
from dasktile.lower.gaps import Gapped, NoGapsError, Source, with_gaps
from dasktile.lower.names import Origin, noted_origins
from dasktile.recent import recently_used
from dasktile.request import Request
from dasktile.returned import ReturnedPlan, remember_later

#: Templates that are kept at most, and their bytes.
MOST_TEMPLATES, MOST_BYTES = 64, 2**25

#: Tasks of a graph up to which a template is made of it (chosen: more take tens of megabytes).
MOST_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class Written:
    """What was written for a request.

    Parameters
    ----------
    rewritten
        The graph, and its arrays; None if the input's own graph is kept.
    returned
        What is known of the plan; None if it is not kept.
    warnings
        What the user is warned of.
    """

    rewritten: Rewritten | None = None
    returned: ReturnedPlan | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Template:
    """What was written for a request, with gaps.

    Parameters
    ----------
    graph
        The layers and their dependencies, and the names of the arrays; None if the input's own
        graph is kept.
    chunks
        The chunks of the arrays.
    returned
        What is known of the plan, and its weight; None if that was not kept.
    warnings
        What the user is warned of.
    is_refused
        True in place of a template that cannot be made.
    """

    graph: Gapped | None
    chunks: tuple[Chunks, ...] = ()
    returned: tuple[Gapped, int] | None = None
    warnings: tuple[str, ...] = ()
    is_refused: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept, about."""
        parts = [self.graph, self.returned[0] if self.returned else None]
        return 1000 + sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The key of the template of a request.

    Parameters
    ----------
    read
        The structure of the graph.
    key
        The key; None if no template can be made.
    source
        What gaps are filled from.
    """

    read: Structured
    key: bytes | None = None
    source: Source = field(default_factory=lambda: Source((), {}, ()))


#: Templates by their keys.
_store = recently_used(MOST_TEMPLATES, MOST_BYTES, attrgetter("nbytes"))


def forget() -> None:
    """Forget all templates, and all that was decided."""
    _store.clear()
    decisions.forget()


def written_again(
    request: Request, write: Callable[[Structured | None], Written]
) -> Rewritten | None:
    """The graph for a request: a template, if there is one, else one that is written.

    Parameters
    ----------
    request
        The arrays, and their graph.
    write
        Writes the graph, given the structure of the request's, if that was read.

    Returns
    -------
    The graph, and its arrays; None if the input is unchanged.
    """
    asked = or_none(partial(_asked, request))
    if asked is None or asked.key is None:
        written = write(None if asked is None else asked.read)
        _warn(written.warnings)
        return written.rewritten
    template = _store.get(asked.key)
    if template is not None and not template.is_refused:
        filled = or_none(partial(_filled, template, asked, request))
        if filled is not None:
            _warn(template.warnings)
            return filled[0]
    with noted_origins() as origins:
        written = write(asked.read)
    _warn(written.warnings)
    if template is None:
        made = or_none(partial(_made, written, asked, request, origins))
        _store[asked.key] = made or _Template(None, is_refused=True)
    return written.rewritten


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        warn_user(warning, ContradictedKernelWarning)


def _asked(request: Request) -> _Asked | None:
    """The key of the template of a request; None if its graph has no structure."""
    if not config.setting("reuse-plans"):
        return None
    layers = request.graph.layers
    read = structured(request.graph, layers_of_data(request.graph))
    if read is None:
        return None
    names, constants = read.names, read.names.constants.digest()
    if constants is None:
        return _Asked(read)
    data = {name: layers[name] for name in sorted(names.data, key=names.number)}
    machine = request.machine
    positions = positions_of_data(data, machine)
    if positions is None:
        return _Asked(read)
    facts = decisions.request_facts(request, names)
    parts = read.digest, constants, facts, positions, machine.memory, machine.scheduler_workers
    source = Source(
        tuple(names.heads),
        data,
        tuple(names.constants.objects),
        tuple(names.constants.texts),
    )
    return _Asked(read, blake2b(repr(parts).encode(), digest_size=32).digest(), source)


def _filled(template: _Template, asked: _Asked, request: Request) -> tuple[Rewritten | None] | None:
    """The graph of a template with the names of a request; None if these do not fit."""
    if template.graph is None:
        return (None,)
    try:
        layers, dependencies, names = template.graph.filled(asked.source)
    except NoGapsError:
        return None
    if template.returned is not None:
        returned, weight = template.returned
        # it is kept, but no data of the graph
        remember_later(frozenset(names), partial(returned.filled, asked.source.names()), weight)
    rewritten = Rewritten(
        HighLevelGraph(layers, dependencies),
        dict(zip(request.names, names, strict=True)),
        dict(zip(request.names, template.chunks, strict=True)),
    )
    return (rewritten,)


def _made(
    written: Written, asked: _Asked, request: Request, origins: Mapping[str, Origin]
) -> _Template | None:
    """The template of what was written for a request, given what its tokens were made of.

    None for a graph of very many tasks, and where names cannot be left open.
    """
    rewritten, returned = written.rewritten, written.returned
    if rewritten is None:
        return _Template(None, warnings=written.warnings)
    if sum(map(len, rewritten.graph.layers.values())) > MOST_TASKS:
        return None
    names = tuple(rewritten.names[name] for name in request.names)
    graph = dict(rewritten.graph.layers), dict(rewritten.graph.dependencies), names
    chunks = tuple(rewritten.chunks[name] for name in request.names)
    kept = None
    try:
        gapped = with_gaps(graph, asked.source, origins)
        if returned is not None:
            plan = with_gaps(returned, asked.source.names(), origins, returned.positioned())
            kept = plan, returned.weight
    except NoGapsError:
        return None
    return _Template(gapped, chunks, kept, written.warnings)
