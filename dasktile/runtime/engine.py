"""A dependency engine: functions run as soon as what they read and write is free.

Whoever pushes a function says which variables it reads and which it mutates, and the engine
runs it when every earlier write of those, and every earlier read of what it mutates, is done.
Functions that touch different variables run at once; those that touch the same one run as if
one by one, in the order they were pushed.  This is the engine of MXNet (Chen et al. 2015,
section 3.2), by its own rules:

- a variable is a queue: reads at its head run together, a write runs alone;
- an operation waits for one token of each of its variables, plus one for the push itself;
- a write that is done counts the variable's version up;
- an exception stays with the variables that the function would have mutated: later operations
  on them are not run but fail alike, until whoever waits sees it;
- a variable is deleted by a write that is pushed like any other.

What a function must wait for, and where it then runs, are apart: the first is decided here,
the second by *lanes*, one for each kind of work, so that copies overlap with computing.

Examples
--------
>>> engine = Engine({"compute": inline, "copy": inline})
>>> a, b = engine.new_variable(), engine.new_variable()
>>> values = {}
>>> engine.push(lambda: values.update(a=1), mutates=[a], lane="compute").result()
>>> engine.push(lambda: values.update(b=values["a"] + 1), reads=[a], mutates=[b]).result()
>>> values, b.version
({'a': 1, 'b': 2}, 1)

It needs nothing of Dask and can be used on its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

#: Where work runs: called with something to run, which never raises.  Must not run it while
#: the caller holds locks that the work takes; may run it at once, or later, in any thread.
Lane = Callable[[Callable[[], None]], object]

#: Ends an operation that goes on after its function has returned.
Done = Callable[[], None]


class _Inline(threading.local):
    """Work of one thread; what becomes ready meanwhile comes after it, however much it is."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] | None = None

    def __call__(self, run: Callable[[], None]) -> None:
        if self.waiting is not None:
            self.waiting.append(run)
            return
        self.waiting = deque([run])
        try:
            while self.waiting:
                self.waiting.popleft()()
        finally:
            self.waiting = None


#: A lane that runs work at once, where it was pushed or where it became ready; work that is
#: pushed by other work runs after it.
inline: Lane = _Inline()


def pool(executor: Executor) -> Lane:
    """A lane of the threads of an executor.

    Parameters
    ----------
    executor
        Stays the caller's, who shuts it down once the engine has nothing left to run.
    """
    return executor.submit


class DeletedVariableError(ValueError):
    """An operation was pushed on a variable after its deletion."""


class Variable:
    """What operations read and mutate; stands for a buffer, a file, a random generator.

    Attributes
    ----------
    name
        Anything, for messages.
    version
        How many writes of it are done.
    error
        The exception of the first write that failed, None as long as none has.
    """

    __slots__ = ("_deleted", "_queue", "_reading", "_writing", "error", "name", "version")

    def __init__(self, name: object = None) -> None:
        self.name = name
        self.version = 0
        self.error: BaseException | None = None
        self._reading = 0
        self._writing = False
        # (operation, whether it writes) that still wait for this variable
        self._queue: deque[tuple[_Operation, bool]] = deque()
        self._deleted = False

    def __repr__(self) -> str:
        return f"<Variable {self.name!r}, version {self.version}>"

    # All of the following is called with the engine's lock held.

    def _append(self, operation: _Operation, writes: bool) -> bool:
        """True if the operation need not wait for this variable."""
        if self._queue or self._writing or (writes and self._reading):
            self._queue.append((operation, writes))
            return False
        self._start(writes)
        return True

    def _start(self, writes: bool) -> None:
        if writes:
            self._writing = True
        else:
            self._reading += 1

    def _end(self, writes: bool) -> list[_Operation]:
        """Operations that need no longer wait for this variable."""
        if writes:
            self._writing = False
            self.version += 1
        else:
            self._reading -= 1
        released = []
        while self._queue and not self._writing:
            operation, writes = self._queue[0]
            if writes and self._reading:
                break
            self._queue.popleft()
            self._start(writes)
            released.append(operation)
        return released


@dataclass(slots=True, eq=False)
class _Operation:
    function: Callable[..., Any]
    reads: tuple[Variable, ...]
    mutates: tuple[Variable, ...]
    lane: Lane
    goes_on: bool
    even_failed: bool
    future: Future[Any] = field(default_factory=Future)
    #: Variables that are not free yet, and one for the push itself.
    waits: int = 0


class Engine:
    """Runs functions in the order that their variables ask for.

    Parameters
    ----------
    lanes
        Where work runs, by the name of its kind.  The first is the one for operations that
        name none.

    Raises
    ------
    ValueError
        If there is no lane.
    """

    def __init__(self, lanes: Mapping[str, Lane]) -> None:
        if not lanes:
            raise ValueError("lanes must name at least one lane, but it is empty")
        self._lanes = dict(lanes)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._left = 0

    @property
    def left(self) -> int:
        """How many operations were pushed and are not done."""
        return self._left

    def new_variable(self, name: object = None) -> Variable:
        """A variable that nothing waits for.

        Parameters
        ----------
        name
            Anything, for messages.
        """
        return Variable(name)

    def push(
        self,
        function: Callable[[], Any],
        reads: Iterable[Variable] = (),
        mutates: Iterable[Variable] = (),
        lane: str | None = None,
    ) -> Future[Any]:
        """Run a function once its variables are free.

        Parameters
        ----------
        function
            Called without arguments.
        reads, mutates
            Variables that it reads and that it mutates; each at most once in both together.
        lane
            Where it runs.

        Returns
        -------
        A future of what the function returns or raises.  It cannot be cancelled.  It is done
        after all variables were given free.

        Raises
        ------
        ValueError
            If a variable is named twice, or the lane is none of the engine's.
        DeletedVariableError
            If a variable was deleted before.
        """
        return self._push(_Operation(function, *self._checked(reads, mutates, lane), False, False))

    def push_async(
        self,
        function: Callable[[Done], Any],
        reads: Iterable[Variable] = (),
        mutates: Iterable[Variable] = (),
        lane: str | None = None,
    ) -> Future[Any]:
        """The same for work that goes on after the function has returned.

        Parameters
        ----------
        function
            Called with a function to call, from any thread, when the work is done.  If it
            raises instead, the work has failed.
        reads, mutates, lane
            As for :meth:`push`.

        Returns
        -------
        A future of what the function returned.

        Raises
        ------
        ValueError, DeletedVariableError
            As :meth:`push`.
        """
        return self._push(_Operation(function, *self._checked(reads, mutates, lane), True, False))

    def delete(
        self, variable: Variable, function: Callable[[], Any] | None = None, lane: str | None = None
    ) -> Future[Any]:
        """Delete a variable once everything that was pushed on it is done.

        Parameters
        ----------
        variable
            Nothing can be pushed on it from now on.
        function
            Frees what the variable stands for.  It runs even if a write of it has failed.
        lane
            Where the function runs.

        Raises
        ------
        ValueError, DeletedVariableError
            As :meth:`push`.
        """
        free = function if function is not None else _nothing
        operation = _Operation(free, *self._checked((), (variable,), lane), False, True)
        return self._push(operation, deletes=variable)

    def wait(self, variable: Variable, timeout: float | None = None) -> None:
        """Wait until what was pushed on a variable up to now is done.

        Parameters
        ----------
        variable
            One that is not deleted.
        timeout
            Seconds to wait, None for as long as it takes.

        Raises
        ------
        TimeoutError
            If it is not done by then.
        Exception
            What a write of the variable has raised.
        """
        operation = _Operation(_nothing, (variable,), (), inline, False, False)
        self._push(operation).result(timeout)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait until nothing is left to run; raises nothing of what was run.

        Parameters
        ----------
        timeout
            Seconds to wait, None for as long as it takes.

        Raises
        ------
        TimeoutError
            If there is something left by then.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: not self._left, timeout):
                raise TimeoutError(f"{self._left} operations are not done after {timeout} s")

    def _checked(
        self, reads: Iterable[Variable], mutates: Iterable[Variable], lane: str | None
    ) -> tuple[tuple[Variable, ...], tuple[Variable, ...], Lane]:
        reads, mutates = tuple(reads), tuple(mutates)
        both = (*reads, *mutates)
        if len(set(both)) < len(both):
            twice = next(one for one in both if both.count(one) > 1)
            raise ValueError(
                f"{twice!r} is named more than once; a variable is either read or mutated, "
                "and named once"
            )
        if lane is None:
            return reads, mutates, next(iter(self._lanes.values()))
        if lane not in self._lanes:
            raise ValueError(f"lane must be one of {', '.join(self._lanes)}, not {lane!r}")
        return reads, mutates, self._lanes[lane]

    def _push(self, operation: _Operation, deletes: Variable | None = None) -> Future[Any]:
        # a future that runs cannot be cancelled: others may wait for what it stands for
        operation.future.set_running_or_notify_cancel()
        with self._lock:
            for variable in (*operation.reads, *operation.mutates):
                if variable._deleted:
                    raise DeletedVariableError(f"{variable!r} was deleted")
            self._left += 1
            operation.waits = len(operation.reads) + len(operation.mutates) + 1
            for variables, writes in ((operation.reads, False), (operation.mutates, True)):
                for variable in variables:
                    operation.waits -= variable._append(operation, writes)
            if deletes is not None:
                deletes._deleted = True
            operation.waits -= 1
            ready = not operation.waits
        if ready:
            self._start([operation])
        return operation.future

    def _start(self, ready: list[_Operation]) -> None:
        for operation in ready:
            try:
                operation.lane(partial(self._run, operation))
            except BaseException as error:
                # a pool that was shut down
                self._end(operation, None, error)

    def _run(self, operation: _Operation) -> None:
        failed = None
        if not operation.even_failed:
            both = (*operation.reads, *operation.mutates)
            failed = next((one.error for one in both if one.error is not None), None)
        if failed is not None:
            self._end(operation, None, failed)
            return
        end = _End(self, operation)
        try:
            end.value = operation.function(*([end] if operation.goes_on else []))
        except BaseException as error:
            end.failed(error)
            return
        end.returned()

    def _end(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        # whoever waits for it may ask at once whether what it held is free
        operation.function = _nothing
        ready = []
        with self._lock:
            for variables, writes in ((operation.reads, False), (operation.mutates, True)):
                for variable in variables:
                    if writes and error is not None and variable.error is None:
                        variable.error = error
                    for released in variable._end(writes):
                        released.waits -= 1
                        if not released.waits:
                            ready.append(released)
        self._start(ready)
        if error is None:
            operation.future.set_result(value)
        else:
            operation.future.set_exception(error)
        with self._idle:
            self._left -= 1
            if not self._left:
                self._idle.notify_all()


class _End:
    """The end of an operation: when its function has returned and its work is done."""

    __slots__ = ("_engine", "_lock", "_operation", "_parts", "value")

    def __init__(self, engine: Engine, operation: _Operation) -> None:
        self.value: Any = None
        self._engine = engine
        self._operation = operation
        self._lock = threading.Lock()
        self._parts = {"return", "work"} if operation.goes_on else {"return"}

    def __call__(self) -> None:
        """The work is done; to say so twice does nothing."""
        self._without("work")

    def returned(self) -> None:
        self._without("return")

    def failed(self, error: BaseException) -> None:
        with self._lock:
            self._parts.clear()
        self._engine._end(self._operation, None, error)

    def _without(self, part: str) -> None:
        with self._lock:
            if part not in self._parts:
                return
            self._parts.remove(part)
            ended = not self._parts
        if ended:
            self._engine._end(self._operation, self.value, None)


def _nothing() -> None:
    pass
