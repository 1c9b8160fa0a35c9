"""What was decided for computations that were planned before: a loop plans the same repeatedly.

The key is a digest of all that decides: the structure of the graph and of the captured program, the
placements of blocks, the request, the machine and the settings, but no names of keys.  The value is
what was decided, by positions.  To carry out the same for other keys, only the winner is lowered.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import dask.config

from dasktile import config
from dasktile._compat.flox import flox_names
from dasktile.capture.base import Captured
from dasktile.capture.columns import keys_column
from dasktile.capture.culling import Needed
from dasktile.capture.extend import extend
from dasktile.capture.literals import Names
from dasktile.capture.references import flat
from dasktile.capture.rules.sources import InMemory
from dasktile.capture.structure import Structured, structured
from dasktile.cluster.located import blocks_there
from dasktile.ir import Program
from dasktile.lower.bundle import USUAL, BundleForm
from dasktile.needs import Needs
from dasktile.own_graph import graph_again
from dasktile.planning import Candidate, PlannedRequest, capture, lower_plan
from dasktile.predicted import InputRun
from dasktile.prediction import Prediction
from dasktile.recent import recently_used
from dasktile.request import Request
from dasktile.tiling import memo
from dasktile.tiling.memo import named, on_program, unnamed
from dasktile.tiling.plan import TilingPlan

#: Decisions that are kept at most, and their bytes; those used last are kept.
MOST_DECISIONS, MOST_BYTES = 256, 2**25

#: Sections of Dask's configuration that decide.
_SECTIONS = ("dasktile", "optimization", "array")


@dataclass(frozen=True, slots=True)
class _Needs:
    """What is needed, without names; parameters are those of `Needs`."""

    wanted: Mapping[int, Needed]
    needed: Mapping[int, Needed]
    is_whole: bool | None

    @classmethod
    def of(cls, needs: Needs, numbers: Mapping[str, int]) -> _Needs:
        """With the numbers of the arrays in place of their names."""
        wanted = {numbers[name]: blocks for name, blocks in needs.wanted.items()}
        needed = {numbers[name]: blocks for name, blocks in needs.needed.items()}
        return cls(wanted, needed, needs.is_whole)

    def named(self, names: Sequence[str]) -> Needs:
        """With these names of the arrays.  Ranges are left out, as tiles are not chosen again."""
        wanted = {names[number]: blocks for number, blocks in self.wanted.items()}
        needed = {names[number]: blocks for number, blocks in self.needed.items()}
        return Needs(wanted, needed, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What was decided for a request, without names.

    Parameters
    ----------
    plan
        The plan, with the indices of captured nodes as names.
    pinned
        Numbers of the arrays that keep their chunks beside those that do anyway, and the reasons.
    needs
        What is needed, by the numbers of the arrays.
    is_lowered
        Whether a graph was written.
    form
        How tasks are bundled and ordered.
    before, after
        The predictions.
    is_own
        As in `Candidate`.
    """

    plan: TilingPlan
    pinned: tuple[tuple[int, str], ...]
    needs: _Needs
    is_lowered: bool
    form: BundleForm
    before: Prediction | None
    after: Prediction | None
    is_own: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the key of what is decided for it.

    Parameters
    ----------
    request, captured
        The arrays, and their captured program.
    names
        Numbers in place of names.
    key
        The key.
    """

    request: Request
    captured: Captured
    names: Names
    key: bytes


#: Decisions by their keys.
_store = recently_used(
    MOST_DECISIONS,
    MOST_BYTES,
    lambda decision: len(pickle.dumps(decision, pickle.HIGHEST_PROTOCOL)),
)


def forget() -> None:
    """Forget all decisions, and all tilings."""
    _store.clear()
    memo.forget()


def asked(request: Request, captured: Captured, read: Structured | None = None) -> Asked | None:
    """The key of what is decided for a request; None if nothing is kept for it.

    Parameters
    ----------
    request
        The arrays and their graph.
    captured
        The captured program.
    read
        The structure of the request's graph, if that was read.
    """
    if not config.setting("reuse-plans") or captured.errors:
        return None
    data = frozenset(
        node.name
        for node, kernel in zip(captured.program.nodes, captured.kernels, strict=True)
        if node.resident or isinstance(kernel, InMemory)
    )
    if read is None or read.graph is not captured.graph or read.names.data != data:
        read = structured(captured.graph, data)
    if read is None:
        return None
    names = read.names
    parts = read.digest, _program(captured.program, names), request_facts(request, names)
    key = blake2b(repr(parts).encode(), digest_size=32).digest()
    return Asked(request, captured, names, key)


def request_facts(request: Request, names: Names) -> Any:
    """What decides of a request beside its graph, without names.

    Parameters
    ----------
    request
        The arrays, and the machine.
    names
        Numbers in place of names.
    """
    return _arrays(request, names), _context(request)


def _program(program: Program, names: Names) -> Any:
    """A program without the names of its arrays."""
    nodes = [replace(node, name=str(names.number(node.name))) for node in program.nodes]
    return nodes, program.outputs


def _arrays(request: Request, names: Names) -> Any:
    """What is wanted, without names."""
    arrays = [
        (
            names.number(array.name),
            array.dtype.str,
            array.chunks,
            array.name in request.kept,
            array.name in request.fixed,
            array.name in request.gathered,
        )
        for array in request.arrays
    ]
    dims: dict[Any, int] = {}
    groups = [
        [
            (
                names.number(member.name),
                [dims.setdefault(dim, len(dims)) for dim in member.dims],
                member.encoded,
            )
            for member in group
        ]
        for group in request.groups
    ]
    keys = keys_column(names, flat(request.keys))
    return arrays, groups, keys, [names.number(name) for name in request.above]


def _context(request: Request) -> Any:
    """The machine and the settings."""
    machine = request.machine
    return (
        request.method,
        machine.workers,
        machine.threads,
        machine.memory_limit,
        machine.limit_given,
        machine.room,
        machine.hosts,
        machine.calibration,
        machine.who_has is None,
        machine.settings(),
        [dask.config.get(section, default=None) for section in _SECTIONS],
        flox_names() is None,
    )


def recall(given: Asked) -> Candidate | None:
    """The plan that was chosen for the same request with other keys; None if there was none.

    Parameters
    ----------
    given
        The request.
    """
    decision = _store.get(given.key)
    if decision is None:
        return None
    request, captured = given.request, given.captured
    heads = list(given.names.heads)
    pinned = {heads[number]: reason for number, reason in decision.pinned}
    if pinned:
        captured = capture(request, pinned)
    origin = decision.plan.origin
    if origin is None:
        plan = on_program(decision.plan, captured.program)
    else:
        plan = named(decision.plan, [node.name for node in captured.program.nodes])
        captured = extend(captured, plan.program, origin)
    planned = PlannedRequest(
        captured,
        plan,
        decision.needs.named(heads),
        pinned,
    )
    if decision.is_own:
        return _own_graph(request, planned, decision)
    lowered = lower_plan(request, planned, decision.form) if decision.is_lowered else None
    return Candidate(planned, lowered, decision.before, decision.after)


def _own_graph(request: Request, planned: PlannedRequest, decision: _Decision) -> Candidate | None:
    """The input's own graph with workers, if its tasks are known as before."""
    captured = planned.captured
    stock = InputRun(request, Candidate(planned), blocks_there(captured))
    lowered = graph_again(request, captured, stock, decision.form)
    if lowered is None:
        return None
    return Candidate(planned, lowered, decision.before, decision.after, is_own=True)


def remember(given: Asked, chosen: Candidate) -> None:
    """Keep what was decided for a request.

    Parameters
    ----------
    given
        The request.
    chosen
        The plan that was chosen.
    """
    planned, lowered, heads = chosen.planned, chosen.lowered, given.names.heads
    decision = _Decision(
        unnamed(planned.plan),
        tuple((heads[name], reason) for name, reason in planned.pinned.items()),
        _Needs.of(planned.needs, heads),
        lowered is not None,
        USUAL if lowered is None else lowered.bundled.form,
        chosen.before,
        chosen.after,
        chosen.is_own,
    )
    _store[given.key] = decision
