"""`SchedulePlan`: an order of tasks as a value that is shown, saved, loaded and applied."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasktile.orders.apply import TaskSet, ordered, unpacked
from dasktile.report import html as page
from dasktile.report.formatting import format_bytes, format_count, format_seconds, wrapped
from dasktile.report.timeline import Timeline, draw

#: Version of the JSON format.
_VERSION = 1


@dataclass(frozen=True, eq=False)
class SchedulePlan:
    """An order of tasks, the bytes that a worker swaps in it, and lower bounds of them.

    Parameters
    ----------
    order
        Keys of the tasks in the order in which they run; for a
        ``dasktile.schedule.taskgraph.TaskGraph``, names of the operations.
    swap_in_bytes, swap_out_bytes
        Bytes copied into memory and out of it.
    makespan
        Seconds that the simulated plan takes.
    lower_bound
        Bytes in both directions together that any eviction policy swaps at least in this
        order and in the memory of `peak`.
    time_bound
        Seconds that any eviction policy takes at least in this order.
    ideal
        Seconds with unlimited memory.
    memory_limit
        Bytes of memory for results that the plan is made for.
    peak
        Most bytes in memory at any time.  A worker exceeds its limit by a result for a short time.
    method
        The rule or search that produced the order.
    before
        Bytes swapped in, bytes swapped out and seconds of Dask's own order, with fetching on
        demand and eviction of the least recently used.

    Notes
    -----
    For collections, bytes and seconds are those of a simulated worker with dasktile's store, which
    decides on evictions by the same rules as a real one.  For a ``TaskGraph``, which no worker
    runs, they are those of planned swaps.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((400, 400), chunks=(50, 400))
    >>> schedule = dasktile.plan(x @ x.T, memory_limit="1 MiB", workers=1)
    >>> schedule.swap_in_bytes <= schedule.before[0]
    True
    >>> y = schedule.apply()
    """

    order: tuple[Hashable, ...]
    swap_in_bytes: int
    swap_out_bytes: int
    makespan: float
    lower_bound: float
    time_bound: float
    ideal: float
    memory_limit: int
    peak: int
    method: str
    before: tuple[int, int, float]
    _collections: tuple[Any, ...] = field(default=(), repr=False)
    _tasks: TaskSet | None = field(default=None, repr=False)
    _draw: Callable[[], Timeline] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<SchedulePlan: {'; '.join(self._lines())}>"

    def __str__(self) -> str:
        return "\n".join(map(wrapped, self._lines()))

    def _lines(self) -> list[str]:
        swaps = self.swap_in_bytes + self.swap_out_bytes
        old_in, old_out, old_seconds = self.before
        bound = format_bytes(self.lower_bound)
        seconds = _change(format_seconds(old_seconds), format_seconds(self.makespan))
        swapped = _change(format_bytes(old_in + old_out), format_bytes(swaps))
        lines = [
            self._first_line(),
            f"takes {seconds} (lower bound {format_seconds(self.time_bound)} for this order,"
            f" {format_seconds(self.ideal)} with unlimited memory)",
        ]
        if swaps or old_in + old_out:
            return [*lines, f"swaps {swapped} (lower bound {bound} for this order)"]
        return [*lines, "swaps nothing, as Dask's own order"]

    def _first_line(self) -> str:
        return (
            f"{format_count(len(self.order), 'task')} ordered by {self.method}, with"
            f" {format_bytes(self.memory_limit)} of memory for results"
        )

    def _repr_html_(self) -> str:
        old_in, old_out, old_seconds = self.before
        rows = [
            ("seconds", format_seconds(old_seconds), format_seconds(self.makespan),
             f"{format_seconds(self.time_bound)}, {format_seconds(self.ideal)} with unlimited"
             " memory"),
            ("swapped in", format_bytes(old_in), format_bytes(self.swap_in_bytes), ""),
            ("swapped out", format_bytes(old_out), format_bytes(self.swap_out_bytes), ""),
            ("swapped", format_bytes(old_in + old_out),
             format_bytes(self.swap_in_bytes + self.swap_out_bytes),
             format_bytes(self.lower_bound)),
        ]  # fmt: skip
        return page.block(
            page.lines([f"{self._first_line()}; at most {format_bytes(self.peak)} are used"]),
            page.table(("", "Dask's order", "plan", "lower bound of this order"), rows),
            page.legend(
                "Dask's order: fetching on demand and eviction of the least recently used. swapped:"
                " bytes between memory and the tier below. Seconds are simulated."
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return {
            "version": _VERSION,
            "order": [_plain(key) for key in self.order],
            "swap_in_bytes": self.swap_in_bytes,
            "swap_out_bytes": self.swap_out_bytes,
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "time_bound": self.time_bound,
            "ideal": self.ideal,
            "memory_limit": self.memory_limit,
            "peak": self.peak,
            "method": self.method,
            "before": list(self.before),
        }

    def save(self, filename: str | Path) -> Path:
        """Write the plan as JSON; :func:`load_plan` reads it.

        Parameters
        ----------
        filename
            With any suffix.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        TypeError
            If a key of a task contains what JSON has no type for.
        OSError
            If the file cannot be written.
        """
        path = Path(filename)
        path.write_text(json.dumps(self.to_dict()), encoding="utf-8")
        return path

    def apply(self, *collections: Any) -> Any:
        """Collections that run in the order of the plan.

        The order becomes task priorities, which distributed follows on any cluster; workers with
        dasktile's store (:func:`dasktile.enable`) evict and prefetch by these priorities.  The
        schedulers of one process (threads, processes, synchronous) ignore priorities.  The
        returned collections are already optimised; operations added to them are not planned.
        Arrays are of a subclass that Dask does not optimise again and :func:`dasktile.optimize`
        returns as it is: call `optimize` first, if both are used.

        Parameters
        ----------
        *collections
            What was planned; needed only if the plan was loaded from a file.

        Returns
        -------
        collections
            One for one, a tuple for several; lists, tuples and dicts for those that were planned.
            Arrays of the package ``dask_array``, whose tasks have no priorities, are returned as
            arrays of ``dask.array``.

        Raises
        ------
        TypeError
            If an argument contains no dask collection.
        ValueError
            If there are no collections, or others than those that were planned.
        """
        given = collections or self._collections
        if not given:
            raise ValueError(
                "a plan loaded from a file has no collections: pass those that were planned"
            )
        found, repack = unpacked(given, "apply takes the dask collections that were planned")
        tasks = self._tasks if given is self._collections and self._tasks else TaskSet.of(found)
        place = {key: position for position, key in enumerate(self.order)}
        missing = len(place.keys() - tasks.nodes.keys())
        if missing or not place.keys() >= tasks.running():
            problem = "these collections have tasks that are not in the plan"
            if missing:
                problem = f"{missing} of the plan's {len(place)} tasks are not in these collections"
            raise ValueError(f"{problem}: a plan applies to the planned expressions only")
        results = repack([ordered(collection, tasks, place) for collection in found])
        return results[0] if len(results) == 1 else results

    def visualize(self, filename: str | Path = "plan.svg") -> Path:
        """Draw the simulated computation, copies and memory over time.

        Parameters
        ----------
        filename
            Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``, in small or capital letters.  Needs
            matplotlib, or bokeh for an HTML page, in which one can then zoom.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        ValueError
            If the name has another suffix, or if the plan was loaded from a file.
        ImportError
            If matplotlib is not installed, nor bokeh for an HTML page.
        OSError
            If the file cannot be written.
        """
        if self._draw is None:
            raise ValueError(
                "a plan loaded from a file has no timeline: call dasktile.plan to draw one"
            )
        return draw(self._draw(), filename)


def _change(old: str, new: str) -> str:
    """The new value, and the old one if it differs."""
    return new if new == old else f"{new} instead of {old}"


def load_plan(filename: str | Path) -> SchedulePlan:
    """Read a plan that :meth:`SchedulePlan.save` has written.

    Parameters
    ----------
    filename
        A file that :meth:`SchedulePlan.save` has written.

    Raises
    ------
    TypeError
        If `filename` is no path.
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file contains no plan, or one of another version.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((400, 400), chunks=(50, 400))
    >>> schedule = dasktile.plan(x @ x.T, memory_limit="1 MiB", workers=1)
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     _ = schedule.save(file.name)
    ...     loaded = dasktile.load_plan(file.name)
    >>> loaded.order == schedule.order
    True
    """
    if not isinstance(filename, (str, os.PathLike)):
        raise TypeError(
            "filename must be a string or a path; got"
            f" {reprlib.repr(filename)} of type {type(filename).__name__}"
        )
    name = os.fspath(filename)
    try:
        fields = json.loads(Path(filename).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{name!r} contains no plan: it is not JSON") from None
    if not isinstance(fields, dict) or "version" not in fields:
        raise ValueError(
            f"{name!r} contains no plan: it must be a file that the method save of a plan wrote"
        )
    version = fields.pop("version")
    if version != _VERSION:
        raise ValueError(
            f"{name!r} contains a plan of version {version!r}; this dasktile reads version"
            f" {_VERSION}. Plan the collections again"
        )
    for field_name, (allowed, valid) in _FIELDS.items():
        if field_name not in fields:
            raise ValueError(f"{name!r} contains no plan: {field_name!r} is missing")
        if not valid(fields[field_name]):
            raise ValueError(
                f"{name!r} contains no plan: {field_name!r} must be {allowed};"
                f" got {reprlib.repr(fields[field_name])}"
            )
    unknown = ", ".join(sorted(map(repr, fields.keys() - _FIELDS)))
    if unknown:
        raise ValueError(f"{name!r} contains no plan: a plan has no {unknown}")
    order = tuple(_key(key) for key in fields.pop("order"))
    return SchedulePlan(order=order, before=tuple(fields.pop("before")), **fields)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: The fields of a plan in a file: what is allowed, and whether a value is.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "order": ("a list", lambda value: isinstance(value, list)),
    "before": (
        "three numbers",
        lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_number, value)),
    ),
    "method": ("a string", lambda value: isinstance(value, str)),
    **dict.fromkeys(
        (
            "swap_in_bytes",
            "swap_out_bytes",
            "makespan",
            "lower_bound",
            "time_bound",
            "ideal",
            "memory_limit",
            "peak",
        ),
        ("a number", _is_number),
    ),
}


def _plain(key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    return list(map(_plain, key)) if isinstance(key, tuple) else key


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key
