"""Graph of operations and the data that they read and write, as arrays.

A datum is a buffer.  One operation makes it, or it is on the host at the start.  Other operations
read it, or update it in place.  Operations may be given in any order, except that operations on
an updated datum keep their given order: a reader of the old values runs before the update, a
reader of the new values after it.

Operations and data are numbered from 0.  Lists of lists are a
:class:`~dasktile.schedule.lists.RaggedArray`.  Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dasktile.report.formatting import format_bytes, format_excess, format_limit
from dasktile.schedule.lists import Bools, Floats, Ints, RaggedArray, topological

__all__ = [
    "AccessTrace",
    "Bools",
    "Builder",
    "Floats",
    "Ints",
    "RaggedArray",
    "TaskGraph",
    "taskgraph",
    "topological",
]


@dataclass(frozen=True, slots=True, eq=False)
class AccessTrace:
    """Accesses to data when operations run in a given order.

    Attributes
    ----------
    touched
        For every position of the order, the data that it reads, updates and writes.
    next
        For every entry of ``touched.index``, the position of the next access to that datum; the
        number of operations if there is none.
    first
        For every datum, the position of its first access; the number of operations if there is
        none.
    """

    touched: RaggedArray
    next: Ints
    first: Ints


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """A program of operations; made by :class:`Builder` or :func:`taskgraph`.

    Attributes
    ----------
    time
        Shape ``(operations,)``: duration of each in seconds.
    size
        Shape ``(data,)``: bytes of each datum.
    reads, updates, writes
        For every operation, the data that it only reads, updates in place, and makes.  No datum
        is in two of these lists.
    present
        Shape ``(data,)``: whether on the host at the start.  No operation makes such a datum.
    kept
        Shape ``(data,)``: whether needed after the last operation, in memory or on the host.
        Other data are dropped after their last use.
    before, after
        For every operation, its direct dependencies and its direct dependents, ascending.
    touched, kinds
        For every operation, the data of `reads`, `updates` and `writes`, in that order; and for
        every entry of ``touched.index`` 0, 1 or 2, respectively.
    maker
        Shape ``(data,)``: the operation that makes each datum, -1 for data that are present.
    op_names, data_names
        Names for messages and plots; None if none were given.
    """

    time: Floats
    size: Ints
    reads: RaggedArray
    updates: RaggedArray
    writes: RaggedArray
    present: Bools
    kept: Bools
    before: RaggedArray
    after: RaggedArray
    touched: RaggedArray
    kinds: Ints
    maker: Ints
    op_names: tuple[Hashable, ...] | None = None
    data_names: tuple[Hashable, ...] | None = None

    def __len__(self) -> int:
        return len(self.time)

    @property
    def data_count(self) -> int:
        """Number of data."""
        return len(self.size)

    def __repr__(self) -> str:
        return (
            f"TaskGraph({len(self)} operations, {self.data_count} data, "
            f"{format_bytes(int(self.size.sum()))}, {float(self.time.sum()):.6g} s)"
        )

    def op_name(self, op: int) -> str:
        """An operation in messages."""
        return f"operation {op}" if self.op_names is None else f"operation {self.op_names[op]!r}"

    def data_name(self, datum: int) -> str:
        """A datum in messages."""
        return f"datum {datum}" if self.data_names is None else f"datum {self.data_names[datum]!r}"

    def working_sets(self) -> Ints:
        """Bytes that must be in memory while each operation runs: the data that it touches."""
        sums = np.concatenate([[0], np.cumsum(self.size[self.touched.index])]).astype(np.int64)
        return sums[self.touched.pointer[1:]] - sums[self.touched.pointer[:-1]]

    def working_set(self, op: int) -> int:
        """Bytes that must be in memory while an operation runs."""
        return int(self.size[self.touched[op]].sum())

    def check_limit(self, limit: int) -> None:
        """Check that every operation alone fits into a memory.

        Raises
        ------
        ValueError
            If an operation needs more than `limit` bytes; it names the one that needs most.
        """
        needs = self.working_sets()
        if len(needs) and int(needs.max()) > limit:
            op = int(needs.argmax())
            raise ValueError(
                f"memory_limit is {format_limit(limit)}, but {self.op_name(op)} alone reads and"
                f" writes {format_excess(int(needs[op]), limit)}, which must be in memory together"
            )

    def check_order(self, order: npt.ArrayLike) -> Ints:
        """An order as an array, if it is valid.

        Raises
        ------
        ValueError
            If an operation is missing, repeated, or before a dependency; it names the operation.
        """
        array = np.asarray(order, dtype=np.int64)
        count = len(self)
        if array.shape != (count,):
            raise ValueError(
                f"an order must have each of {count} operations once, but has shape {array.shape}"
            )
        if count == 0:
            return array
        if int(array.min()) < 0 or int(array.max()) >= count:
            raise ValueError(f"an order must be of numbers from 0 to {count - 1}")
        seen = np.bincount(array, minlength=count)
        if (seen != 1).any():
            op = int((seen != 1).argmax())
            raise ValueError(f"an order has {self.op_name(op)} {int(seen[op])} times, not once")
        position = np.empty(count, dtype=np.int64)
        position[array] = np.arange(count)
        needing = self.before.owners()
        late = position[self.before.index] > position[needing]
        if late.any():
            at = int(late.argmax())
            raise ValueError(
                f"an order has {self.op_name(int(needing[at]))} before "
                f"{self.op_name(int(self.before.index[at]))}, which must run first"
            )
        return array

    def trace(self, order: Ints) -> AccessTrace:
        """The accesses when operations run in an order, and the next access to each datum."""
        touched = self.touched.take(order)
        position = touched.owners()
        by_datum = np.argsort(touched.index, kind="stable")
        data, at = touched.index[by_datum], position[by_datum]
        follows = np.full(len(at), len(order), dtype=np.int64)
        same = data[1:] == data[:-1]
        follows[:-1][same] = at[1:][same]
        following = np.empty(len(at), dtype=np.int64)
        following[by_datum] = follows
        first = np.full(self.data_count, len(order), dtype=np.int64)
        starts = np.concatenate([[True], ~same]) if len(data) else np.zeros(0, np.bool_)
        first[data[starts]] = at[starts]
        return AccessTrace(touched, following, first)


@dataclass(slots=True)
class Builder:
    """A graph that is built of single data and operations, by name.

    Examples
    --------
    >>> build = Builder()
    >>> build.parameter("w", 100)
    >>> build.datum("x", 40)
    >>> build.datum("y", 40, kept=True)
    >>> build.op("load", 1.0, writes=["x"])
    >>> build.op("dense", 2.0, reads=["x", "w"], writes=["y"])
    >>> build.op("step", 0.5, reads=["y"], updates=["w"])
    >>> build.graph()
    TaskGraph(3 operations, 3 data, 180 bytes, 3.5 s)
    """

    _data: dict[Hashable, tuple[int, bool, bool]] = field(default_factory=dict)
    _ops: list[tuple[Any, ...]] = field(default_factory=list)

    def datum(
        self, name: Hashable, size: int, *, present: bool = False, kept: bool = False
    ) -> None:
        """Add a datum.

        Parameters
        ----------
        name
            Unique name.
        size
            Bytes.
        present
            Whether it is on the host at the start; no operation makes it then.
        kept
            Whether it is needed after the last operation.

        Raises
        ------
        ValueError
            If there is a datum of this name.
        """
        if name in self._data:
            raise ValueError(f"there is a datum {name!r} already")
        self._data[name] = (size, present, kept)

    def parameter(self, name: Hashable, size: int) -> None:
        """Add a datum that is on the host at the start and needed at the end, such as weights."""
        self.datum(name, size, present=True, kept=True)

    def op(
        self,
        name: Hashable,
        time: float,
        reads: Iterable[Hashable] = (),
        writes: Iterable[Hashable] = (),
        updates: Iterable[Hashable] = (),
    ) -> None:
        """Add an operation.

        Parameters
        ----------
        name
            Name for messages; need not be unique.
        time
            Seconds.
        reads, writes, updates
            Names of data, which may be added later; see :class:`TaskGraph`.
        """
        self._ops.append((name, time, tuple(reads), tuple(writes), tuple(updates)))

    def graph(self) -> TaskGraph:
        """The graph of all operations added so far.

        Raises
        ------
        ValueError
            As :func:`taskgraph`, and if an operation uses an unknown datum.
        """
        numbers = {name: number for number, name in enumerate(self._data)}
        for name, _, reads, writes, updates in self._ops:
            for datum in (*reads, *writes, *updates):
                if datum not in numbers:
                    raise ValueError(f"operation {name!r} touches {datum!r}, which has no size")
        data = self._data.values()
        return taskgraph(
            [op[1] for op in self._ops],
            [size for size, _, _ in data],
            reads=[[numbers[datum] for datum in op[2]] for op in self._ops],
            writes=[[numbers[datum] for datum in op[3]] for op in self._ops],
            updates=[[numbers[datum] for datum in op[4]] for op in self._ops],
            present=[number for number, entry in enumerate(data) if entry[1]],
            kept=[number for number, entry in enumerate(data) if entry[2]],
            op_names=[op[0] for op in self._ops],
            data_names=list(self._data),
        )


def taskgraph(
    time: Sequence[float],
    size: Sequence[int],
    reads: Sequence[Iterable[int]],
    writes: Sequence[Iterable[int]],
    updates: Sequence[Iterable[int]] | None = None,
    present: Iterable[int] = (),
    kept: Iterable[int] = (),
    op_names: Sequence[Hashable] | None = None,
    data_names: Sequence[Hashable] | None = None,
) -> TaskGraph:
    """A graph of lists.

    Parameters
    ----------
    time
        Seconds of every operation.
    size
        Bytes of every datum.
    reads, writes, updates
        For every operation, the numbers of the data that it reads, makes, and updates in place.
        A datum that is both read and updated counts as updated.
    present, kept
        Numbers of the data that are on the host at the start, and that are needed at the end.
    op_names, data_names
        Names for messages.

    Raises
    ------
    ValueError
        If lengths differ, a size or time is negative or not a number, an operation uses an
        unknown datum or reads one that no operation makes, two operations make the same datum,
        or there is a cyclic dependency.  The message names the operation.
    """
    ops, count = len(time), len(size)
    empty: list[list[int]] = [[] for _ in range(ops)]
    updates = empty if updates is None else updates
    for name, given, expected in (
        ("reads", reads, ops),
        ("writes", writes, ops),
        ("updates", updates, ops),
        ("op_names", op_names, ops),
        ("data_names", data_names, count),
    ):
        if given is not None and len(given) != expected:
            raise ValueError(f"{name} has {len(given)} entries, but must have {expected}")

    def op_name(op: int) -> str:
        return f"operation {op}" if op_names is None else f"operation {op_names[op]!r}"

    def data_name(datum: int) -> str:
        return f"datum {datum}" if data_names is None else f"datum {data_names[datum]!r}"

    for op, seconds in enumerate(time):
        if not 0 <= seconds < np.inf:
            raise ValueError(f"{op_name(op)} takes {seconds!r} seconds; it must be at least 0")
    for datum, bytes_ in enumerate(size):
        # also refuses NaN and None
        if bytes_ is None or not 0 <= bytes_ < 2**62:
            raise ValueError(f"{data_name(datum)} has {bytes_!r} bytes; it must be at least 0")
    there = np.zeros(count, dtype=np.bool_)
    wanted_last = np.zeros(count, dtype=np.bool_)
    for mask, numbers in ((there, present), (wanted_last, kept)):
        for datum in numbers:
            if not 0 <= datum < count:
                raise ValueError(f"there is no datum {datum}; there are {count}")
            mask[datum] = True

    maker = np.full(count, -1, dtype=np.int64)
    clean: tuple[list[list[int]], ...] = ([], [], [])
    for op in range(ops):
        makes, changes = list(dict.fromkeys(writes[op])), list(dict.fromkeys(updates[op]))
        only = [datum for datum in dict.fromkeys(reads[op]) if datum not in changes]
        for datum in (*only, *changes, *makes):
            if not 0 <= datum < count:
                raise ValueError(f"{op_name(op)} touches datum {datum}, which has no size")
        for datum in makes:
            if datum in only or datum in changes:
                raise ValueError(f"{op_name(op)} makes {data_name(datum)} and reads it too")
            if there[datum]:
                raise ValueError(f"{op_name(op)} makes {data_name(datum)}, which is present")
            if maker[datum] >= 0:
                first = op_name(int(maker[datum]))
                raise ValueError(f"{op_name(op)} makes {data_name(datum)}, and so does {first}")
            maker[datum] = op
        for into, numbers in zip(clean, (only, changes, makes), strict=True):
            into.append(numbers)
    only_reads, changed, made = (RaggedArray.pack(lists) for lists in clean)
    for lists in (only_reads, changed):
        nowhere = (maker[lists.index] < 0) & ~there[lists.index]
        if nowhere.any():
            at = int(nowhere.argmax())
            op, datum = int(lists.owners()[at]), int(lists.index[at])
            raise ValueError(f"{op_name(op)} reads {data_name(datum)}, which no operation makes")
    lost = wanted_last & ~there & (maker < 0)
    if lost.any():
        raise ValueError(f"{data_name(int(lost.argmax()))} is kept, but no operation makes it")

    before, after = _dependencies(only_reads, changed, maker)
    order = topological(before, after)
    if len(order) < ops:
        names = " needs ".join(op_name(op) for op in _cycle(before, order))
        raise ValueError(f"cyclic dependency: {names}")
    return TaskGraph(
        np.asarray(time, dtype=np.float64),
        np.asarray(size, dtype=np.int64),
        only_reads,
        changed,
        made,
        there,
        wanted_last,
        before,
        after,
        RaggedArray.pack([*a, *b, *c] for a, b, c in zip(*clean, strict=True)),
        RaggedArray.pack(
            [0] * len(a) + [1] * len(b) + [2] * len(c) for a, b, c in zip(*clean, strict=True)
        ).index,
        maker,
        None if op_names is None else tuple(op_names),
        None if data_names is None else tuple(data_names),
    )


def _dependencies(
    reads: RaggedArray, updates: RaggedArray, maker: Ints
) -> tuple[RaggedArray, RaggedArray]:
    """Direct dependencies and direct dependents of every operation."""
    ops = len(reads)
    earlier, later = [], []
    for lists in (reads, updates):
        makes = maker[lists.index]
        earlier.append(makes[makes >= 0])
        later.append(lists.owners()[makes >= 0])
    changed = set(updates.index.tolist())
    # an update runs after the readers of the old values, and before those of the new ones
    last: dict[int, int] = {}
    since: dict[int, list[int]] = {datum: [] for datum in sorted(changed)}
    pairs: list[tuple[int, int]] = []
    for op in range(ops) if changed else ():
        for datum in reads[op].tolist():
            if datum in changed:
                if datum in last:
                    pairs.append((last[datum], op))
                since[datum].append(op)
        for datum in updates[op].tolist():
            pairs.extend((reader, op) for reader in since[datum])
            if datum in last:
                pairs.append((last[datum], op))
            last[datum], since[datum] = op, []
    more = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    first = np.concatenate([*earlier, more[:, 0]])
    second = np.concatenate([*later, more[:, 1]])
    both = np.unique(np.stack([second, first], axis=1), axis=0)
    before = RaggedArray.group(both[:, 0], both[:, 1], ops)
    return before, RaggedArray.group(both[:, 1], both[:, 0], ops)


def _cycle(before: RaggedArray, order: Ints) -> list[int]:
    """Operations on a cycle: each needs the next, and the last is the first."""
    ran = set(order.tolist())
    op = next(op for op in range(len(before)) if op not in ran)
    path: dict[int, int] = {}
    while op not in path:
        path[op] = len(path)
        op = next(needed for needed in before[op].tolist() if needed not in ran)
    return [*list(path)[path[op] :], op]
