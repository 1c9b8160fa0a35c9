"""The values of a store, and the units of memory that they consist of.

A unit is what is copied and dropped together.  Usually it is one value.  Values that are views of
the same memory are one unit, and a tuple consists of a unit for each of its large parts: so a
tuple and a task's pick from it take their memory once, and a part that is not needed soon is
spilled alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktile.runtime.engine import Variable
from dasktile.runtime.tiers import Held
from dasktile.runtime.worker.buffers import View
from dasktile.schedule.tracking import first_use


@dataclass(slots=True, eq=False)
class Part:
    """A part of a value that is in a unit.

    Parameters
    ----------
    unit
        The unit.
    size
        Bytes, as the scheduler counts them.
    view
        Layout of the part in the unit's memory; None if it is the unit's content itself.
    """

    unit: Unit
    size: int
    view: View | None = None

    def content(self) -> Any:
        """The part; its unit must be on its home tier."""
        content = self.unit.held[self.unit.home].content
        return content if self.view is None else self.view.on(content)


@dataclass(slots=True, eq=False)
class Entry:
    """The value of a key, from its insertion to its deletion.

    Parameters
    ----------
    next_use
        When the value is needed next, as for ``TileStore.expect``.

    Attributes
    ----------
    layout
        Nested tuples of parts and of small values; for other values than tuples, their part.
    parts
        The parts in the layout.
    units
        The units of the value, each once.
    """

    next_use: float | None
    layout: Any = None
    parts: tuple[Part, ...] = ()
    units: tuple[Unit, ...] = ()

    def lay_out(self, layout: Any, parts: Sequence[Part]) -> None:
        """Set the parts of the value, and their layout."""
        self.layout, self.parts = layout, tuple(parts)
        self.units = tuple(dict.fromkeys(part.unit for part in parts))

    @property
    def is_home(self) -> bool:
        """Whether all units are on the tiers on which tasks read them."""
        return all(unit.home in unit.held for unit in self.units)

    def value(self) -> Any:
        """The value; all units must be on their home tiers."""
        return _filled(self.layout)


def _filled(layout: Any) -> Any:
    if type(layout) is tuple:
        return tuple(map(_filled, layout))
    return layout.content() if type(layout) is Part else layout


@dataclass(slots=True, eq=False)
class Unit:
    """What is copied and dropped together: a value, a part of a tuple, or views of one memory.

    Parameters
    ----------
    name
        The first key, for messages.
    size
        Bytes of the content.
    home
        Number of the tier on which tasks read it.
    keys
        The values that consist of it, by key.
    error
        The exception of the last attempt to read it back.
    logged
        Whether it was logged that it cannot be spilled.
    held
        What each tier has of it, by number of the tier.
    variables
        The engine's variables, by number of the tier.
    """

    name: Hashable
    size: int
    home: int
    keys: dict[Hashable, Entry] = field(default_factory=dict)
    error: BaseException | None = None
    logged: bool = False
    held: dict[int, Held] = field(default_factory=dict)
    variables: dict[int, Variable] = field(default_factory=dict)

    def next_use(self) -> float | None:
        """When the first of its values is needed next."""
        if len(self.keys) == 1:
            (entry,) = self.keys.values()
            return entry.next_use
        return first_use(entry.next_use for entry in self.keys.values())

    def nbytes(self) -> int:
        """Bytes of its values, as the scheduler counts them."""
        return sum(
            part.size for entry in self.keys.values() for part in entry.parts if part.unit is self
        )


def leaves(value: Any, most: int) -> list[Any]:
    """The parts of nested tuples; the value itself if it is no tuple, or has too many parts."""
    found: list[Any] = []
    stack = [value]
    while stack:
        part = stack.pop()
        if type(part) is tuple and part:
            stack.extend(reversed(part))
        else:
            found.append(part)
        if len(found) + len(stack) > most:
            return [value]
    return found


def laid_out(value: Any, placed: Callable[[Any], Any]) -> Any:
    """Nested tuples with a function's results in place of their parts."""
    if type(value) is tuple and value:
        return tuple(laid_out(part, placed) for part in value)
    return placed(value)
