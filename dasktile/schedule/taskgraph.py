"""Operations and what they read and write, as arrays: what a planner needs to know of a program.

A datum is a buffer.  One operation makes it, or it is on the host from the start; others read
it, and others again may update it in place.  Operations may be given in any order, but those
that touch a datum that is updated keep the order in which they are given (a reader of the old
values runs before the update, one of the new values after it).

Everything is a number: operations and data are counted from 0, lists of lists are one array
of pointers and one of numbers (the entries of ``i`` are ``index[pointer[i]:pointer[i + 1]]``).
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

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
    """What is touched in what order, when operations run in a given one.

    Attributes
    ----------
    touched
        For every position of the order, the data touched there: read, updated, written.
    next
        For every entry of ``touched.index``, the position at which that datum is touched
        next; the number of operations where it is not touched again.
    first
        For every datum, the position at which it is touched first, else the number of
        operations.
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
        Shape ``(operations,)``: seconds that each takes.
    size
        Shape ``(data,)``: bytes of each.
    reads, updates, writes
        For every operation, the data that it only reads, changes in place, and makes.  No
        datum is in two of them.
    present
        Shape ``(data,)``: on the host when the first operation starts.  No operation makes it.
    kept
        Shape ``(data,)``: still wanted after the last operation, in memory or on the host.
        What is not is dropped after its last use.
    before, after
        For every operation, those that must run before it, and those that must run after it:
        direct dependencies, ascending.
    touched, kinds
        For every operation, the data of `reads`, `updates` and `writes`, in that order; and
        for every number there 0, 1 or 2 for which of them it is of.
    maker
        Shape ``(data,)``: the operation that makes each, -1 for data that are present.
    op_names, data_names
        For messages and pictures; None where nobody gave any.
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
            f"{int(self.size.sum())} bytes, {float(self.time.sum()):.6g} s)"
        )

    def op_name(self, op: int) -> str:
        """What an operation is called in messages."""
        return f"operation {op}" if self.op_names is None else f"operation {self.op_names[op]!r}"

    def data_name(self, datum: int) -> str:
        """What a datum is called in messages."""
        return f"datum {datum}" if self.data_names is None else f"datum {self.data_names[datum]!r}"

    def working_sets(self) -> Ints:
        """Bytes that must be in memory while each operation runs: all that it touches."""
        sums = np.concatenate([[0], np.cumsum(self.size[self.touched.index])]).astype(np.int64)
        return sums[self.touched.pointer[1:]] - sums[self.touched.pointer[:-1]]

    def working_set(self, op: int) -> int:
        """Bytes that must be in memory while an operation runs."""
        return int(self.size[self.touched[op]].sum())

    def check_limit(self, limit: int) -> None:
        """See that every operation fits into a memory on its own.

        Raises
        ------
        ValueError
            Naming the operation that needs most, if it needs more than `limit` bytes.
        """
        needs = self.working_sets()
        if len(needs) and int(needs.max()) > limit:
            op = int(needs.argmax())
            raise ValueError(
                f"memory_limit is {limit} bytes, but {self.op_name(op)} alone reads and writes "
                f"{int(needs[op])} bytes, which must be in memory together"
            )

    def check_order(self, order: npt.ArrayLike) -> Ints:
        """An order as an array, if the operations may run in it.

        Raises
        ------
        ValueError
            Naming an operation that is missing, there twice, or before one that it needs.
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
        """What is touched when operations run in an order, and when each datum is touched next."""
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
    """A graph written down one datum and one operation at a time, by name.

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
        """Say what there is.

        Parameters
        ----------
        name
            Unlike those of all others.
        size
            Bytes.
        present
            It is on the host at the start, and no operation makes it.
        kept
            It is still wanted at the end.

        Raises
        ------
        ValueError
            If there is such a datum.
        """
        if name in self._data:
            raise ValueError(f"there is a datum {name!r} already")
        self._data[name] = (size, present, kept)

    def parameter(self, name: Hashable, size: int) -> None:
        """A datum that is on the host at the start and wanted at the end, like weights."""
        self.datum(name, size, present=True, kept=True)

    def op(
        self,
        name: Hashable,
        time: float,
        reads: Iterable[Hashable] = (),
        writes: Iterable[Hashable] = (),
        updates: Iterable[Hashable] = (),
    ) -> None:
        """Say what is done.

        Parameters
        ----------
        name
            For messages; need not be unlike others.
        time
            Seconds.
        reads, writes, updates
            Names of data, which may be told of later; see :class:`TaskGraph`.
        """
        self._ops.append((name, time, tuple(reads), tuple(writes), tuple(updates)))

    def graph(self) -> TaskGraph:
        """The graph of all that was said.

        Raises
        ------
        ValueError
            As :func:`taskgraph`, and if an operation touches a datum of no size.
        """
        numbers = {name: number for number, name in enumerate(self._data)}
        for name, _, reads, writes, updates in self._ops:
            for what in (*reads, *writes, *updates):
                if what not in numbers:
                    raise ValueError(f"operation {name!r} touches {what!r}, which has no size")
        data = self._data.values()
        return taskgraph(
            [op[1] for op in self._ops],
            [size for size, _, _ in data],
            reads=[[numbers[what] for what in op[2]] for op in self._ops],
            writes=[[numbers[what] for what in op[3]] for op in self._ops],
            updates=[[numbers[what] for what in op[4]] for op in self._ops],
            present=[number for number, one in enumerate(data) if one[1]],
            kept=[number for number, one in enumerate(data) if one[2]],
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
    """A graph from lists.

    Parameters
    ----------
    time
        Seconds of every operation.
    size
        Bytes of every datum.
    reads, writes, updates
        For every operation, the numbers of the data that it reads, makes, and changes in
        place.  One that is read and updated counts as updated.
    present, kept
        Numbers of data that are on the host at the start, and that are wanted at the end.
    op_names, data_names
        For messages.

    Raises
    ------
    ValueError
        If lengths differ, a size or time is negative or not a number, an operation touches
        what has no size or reads what nothing makes, a datum is made twice, or operations
        need each other in a circle.  The message names the operation.
    """
    ops, count = len(time), len(size)
    empty: list[list[int]] = [[] for _ in range(ops)]
    updates = empty if updates is None else updates
    for what, given, wanted in (
        ("reads", reads, ops),
        ("writes", writes, ops),
        ("updates", updates, ops),
        ("op_names", op_names, ops),
        ("data_names", data_names, count),
    ):
        if given is not None and len(given) != wanted:
            raise ValueError(f"{what} has {len(given)} entries, but must have {wanted}")

    def op_name(op: int) -> str:
        return f"operation {op}" if op_names is None else f"operation {op_names[op]!r}"

    def data_name(datum: int) -> str:
        return f"datum {datum}" if data_names is None else f"datum {data_names[datum]!r}"

    for op, seconds in enumerate(time):
        if not 0 <= seconds < np.inf:
            raise ValueError(f"{op_name(op)} takes {seconds!r} seconds; it must be at least 0")
    for datum, bytes_ in enumerate(size):
        # NaN and None too
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
            raise ValueError(f"{op_name(op)} reads {data_name(datum)}, which nothing makes")
    lost = wanted_last & ~there & (maker < 0)
    if lost.any():
        raise ValueError(f"{data_name(int(lost.argmax()))} is kept, but nothing makes it")

    before, after = _dependencies(only_reads, changed, maker)
    order = topological(before, after)
    if len(order) < ops:
        circle = _circle(before, order)
        names = " needs ".join(op_name(op) for op in circle)
        raise ValueError(f"operations need each other in a circle: {names}")
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
    """Which operations run before which, and after which."""
    ops = len(reads)
    earlier, later = [], []
    for lists in (reads, updates):
        makes = maker[lists.index]
        earlier.append(makes[makes >= 0])
        later.append(lists.owners()[makes >= 0])
    changed = set(updates.index.tolist())
    # An update runs after those that read what was there, and before those that read it after.
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


def _circle(before: RaggedArray, order: Ints) -> list[int]:
    """Operations of which each needs the next, and the last is the first."""
    ran = set(order.tolist())
    op = next(op for op in range(len(before)) if op not in ran)
    path: dict[int, int] = {}
    while op not in path:
        path[op] = len(path)
        op = next(one for one in before[op].tolist() if one not in ran)
    return [*list(path)[path[op] :], op]
