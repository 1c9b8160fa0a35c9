"""A dependency engine: a function runs as soon as the variables that it reads and writes are free.

A function is pushed with the variables that it reads and those that it mutates.  The engine
runs it when every earlier write of these variables, and every earlier read of those that it
mutates, is done.  Functions on different variables run concurrently; functions on the same
variable have the effect of a sequential run in the order of their pushes.  This is the engine of
MXNet (Chen et al. 2015, section 3.2), with its rules:

- a variable is a queue: reads at its head run together, a write runs alone;
- an operation waits for one token of each of its variables, plus one for the push itself;
- a completed write increments the variable's version;
- an exception is stored in the variables that the function would have mutated: later operations
  on them are not run but fail with the same exception;
- a variable is deleted by a write that is pushed like any other.

The engine decides when a function runs; *lanes*, one for each kind of work, decide where, so that
copies overlap with computing.  Of the functions that a lane could run, that with the highest
priority is next: a read that a task waits for overtakes one that is made ahead.

Examples
--------
>>> engine = Engine({"compute": inline, "copy": inline})
>>> a, b = engine.new_variable(), engine.new_variable()
>>> values = {}
>>> engine.push(lambda: values.update(a=1), mutates=[a], lane="compute").result()
>>> engine.push(lambda: values.update(b=values["a"] + 1), reads=[a], mutates=[b]).result()
>>> values, b.version
({'a': 1, 'b': 2}, 1)

It does not depend on Dask.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

#: Runs work: called with a function that never raises, which it calls at once or later, in any
#: thread, but not while the caller holds locks that the function takes; and with its priority.
Lane = Callable[[Callable[[], None], int], object]


class _Inline(threading.local):
    """A lane that runs work in the calling thread; work pushed by work is queued after it."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] | None = None

    def __call__(self, run: Callable[[], None], priority: int) -> None:
        if self.waiting is not None:
            self.waiting.append(run)
            return
        self.waiting = deque([run])
        try:
            while self.waiting:
                self.waiting.popleft()()
        finally:
            self.waiting = None


#: A lane that runs work at once, in the thread that pushed it or made it ready; work that is
#: pushed by other work runs after it.
inline: Lane = _Inline()


class Pool:
    """A lane of the threads of an executor: higher priorities first, else in order.

    Parameters
    ----------
    executor
        The executor; the caller shuts it down once the engine has nothing left to run.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []

    def __call__(self, run: Callable[[], None], priority: int) -> None:
        with self._lock:
            # under the lock: a thread that is free must not take other work for this
            self._executor.submit(self._run_first)
            heapq.heappush(self._waiting, (-priority, next(self._numbers), run))

    def _run_first(self) -> None:
        with self._lock:
            _, _, run = heapq.heappop(self._waiting)
        run()


class DeletedVariableError(ValueError):
    """An operation was pushed on a variable after its deletion."""


class Variable:
    """What operations read and mutate; represents a buffer, a file or a random generator.

    Attributes
    ----------
    name
        Any object, for messages.
    version
        Number of completed writes.
    error
        The exception of the first write that failed, None if none has.
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

    @property
    def _is_busy(self) -> bool:
        return self._writing or bool(self._reading) or bool(self._queue)

    def _append(self, operation: _Operation, writes: bool) -> bool:
        """Queue an operation; True if it need not wait for this variable."""
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
        """End an operation; the operations that need not wait for this variable any longer."""
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
    function: Callable[[], Any]
    reads: tuple[Variable, ...]
    mutates: tuple[Variable, ...]
    lane: Lane
    runs_after_failure: bool
    priority: int
    future: Future[Any] = field(default_factory=Future)
    #: Variables that are not free yet, and one for the push itself.
    pending: int = 0
    #: A lane has begun to run it; it may be in the lane more than once.
    started: bool = False


class Engine:
    """Runs functions in the order that their variables require.

    Parameters
    ----------
    lanes
        Lanes by name.  The first is the default of operations.

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
        #: Operations that are not done.
        self._left: dict[Future[Any], _Operation] = {}

    @property
    def left(self) -> int:
        """Number of operations that were pushed and are not done."""
        return len(self._left)

    def new_variable(self, name: object = None) -> Variable:
        """A new variable without operations.

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
        priority: int = 0,
    ) -> Future[Any]:
        """Run a function once its variables are free.

        Parameters
        ----------
        function
            Called without arguments.
        reads, mutates
            Variables that it reads and that it mutates; each at most once in both together.
        lane
            Name of the lane that runs it.
        priority
            Of the functions that the lane could run, those with higher numbers are first.

        Returns
        -------
        A future of the function's result or exception.  It cannot be cancelled.  It is done
        after all variables are free again.

        Raises
        ------
        ValueError
            If a variable is named more than once, or the engine has no such lane.
        DeletedVariableError
            If a variable was deleted before.
        """
        checked = self._check(reads, mutates, lane)
        return self._push(_Operation(function, *checked, False, priority))

    def hasten(self, future: Future[Any], priority: int) -> None:
        """Raise the priority of a function that has not started.

        Parameters
        ----------
        future
            What :meth:`push` has returned.
        priority
            The new priority; a lower one than the present changes nothing.
        """
        with self._lock:
            operation = self._left.get(future)
            if operation is None or operation.started or priority <= operation.priority:
                return
            operation.priority = priority
            ready = not operation.pending
        if ready:
            # its earlier place in the lane, which a closed one keeps, runs nothing then
            with suppress(RuntimeError):
                operation.lane(partial(self._run, operation), priority)

    def delete(
        self,
        variable: Variable,
        function: Callable[[], Any] | None = None,
        lane: str | None = None,
        priority: int = 0,
    ) -> Future[Any]:
        """Delete a variable once everything that was pushed on it is done.

        Parameters
        ----------
        variable
            The variable; no operation can be pushed on it from now on.
        function
            Frees what the variable represents.  It runs even if a write of it has failed.
        lane, priority
            As for :meth:`push`.

        Raises
        ------
        ValueError, DeletedVariableError
            As :meth:`push`.
        """
        free = function if function is not None else _nothing
        operation = _Operation(free, *self._check((), (variable,), lane), True, priority)
        return self._push(operation, deletes=variable)

    def delete_idle(self, variable: Variable) -> bool:
        """Delete a variable at once if nothing that was pushed on it is left; whether it was.

        Parameters
        ----------
        variable
            The variable; its version stays.

        Raises
        ------
        DeletedVariableError
            If it was deleted before.
        """
        with self._lock:
            if variable._deleted:
                raise DeletedVariableError(f"{variable!r} was deleted")
            if variable._is_busy:
                return False
            variable._deleted = True
            return True

    def wait(self, variable: Variable, timeout: float | None = None) -> None:
        """Wait until all operations pushed on a variable so far are done.

        Parameters
        ----------
        variable
            One that is not deleted.
        timeout
            Seconds to wait, None for no limit.

        Raises
        ------
        TimeoutError
            If they are not done by then.
        Exception
            The exception of a write of the variable.
        """
        operation = _Operation(_nothing, (variable,), (), inline, False, 0)
        self._push(operation).result(timeout)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait until all operations are done; does not raise their exceptions.

        Parameters
        ----------
        timeout
            Seconds to wait, None for no limit.

        Raises
        ------
        TimeoutError
            If an operation is not done by then.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: not self._left, timeout):
                raise TimeoutError(f"{len(self._left)} operations are not done after {timeout} s")

    def wait_pushed(self, timeout: float | None = None) -> None:
        """Wait until all operations pushed so far are done; does not raise their exceptions.

        Others may be pushed meanwhile, without end.

        Parameters
        ----------
        timeout
            Seconds to wait, None for no limit.

        Raises
        ------
        TimeoutError
            If an operation is not done by then.
        """
        with self._lock:
            pushed = list(self._left)
        left = wait(pushed, timeout).not_done
        if left:
            raise TimeoutError(f"{len(left)} operations are not done after {timeout} s")

    def _check(
        self, reads: Iterable[Variable], mutates: Iterable[Variable], lane: str | None
    ) -> tuple[tuple[Variable, ...], tuple[Variable, ...], Lane]:
        reads, mutates = tuple(reads), tuple(mutates)
        both = (*reads, *mutates)
        if len(set(both)) < len(both):
            repeated = next(variable for variable in both if both.count(variable) > 1)
            raise ValueError(
                f"{repeated!r} is named more than once; a variable is either read or mutated, "
                "and named once"
            )
        if lane is None:
            return reads, mutates, next(iter(self._lanes.values()))
        if lane not in self._lanes:
            raise ValueError(f"lane must be one of {', '.join(self._lanes)}, not {lane!r}")
        return reads, mutates, self._lanes[lane]

    def _push(self, operation: _Operation, deletes: Variable | None = None) -> Future[Any]:
        # a running future cannot be cancelled: later operations depend on it
        operation.future.set_running_or_notify_cancel()
        with self._lock:
            for variable in (*operation.reads, *operation.mutates):
                if variable._deleted:
                    raise DeletedVariableError(f"{variable!r} was deleted")
            self._left[operation.future] = operation
            operation.pending = len(operation.reads) + len(operation.mutates) + 1
            for variables, writes in ((operation.reads, False), (operation.mutates, True)):
                for variable in variables:
                    operation.pending -= variable._append(operation, writes)
            if deletes is not None:
                deletes._deleted = True
            operation.pending -= 1
            ready = not operation.pending
        if ready:
            self._start([operation])
        return operation.future

    def _start(self, ready: list[_Operation]) -> None:
        for operation in ready:
            try:
                operation.lane(partial(self._run, operation), operation.priority)
            except BaseException as error:
                # a pool that was shut down
                if self._takes(operation):
                    self._end(operation, None, error)

    def _takes(self, operation: _Operation) -> bool:
        """Start an operation unless it has started."""
        with self._lock:
            started, operation.started = operation.started, True
        return not started

    def _run(self, operation: _Operation) -> None:
        if not self._takes(operation):
            return
        failed = None
        if not operation.runs_after_failure:
            both = (*operation.reads, *operation.mutates)
            failed = next((each.error for each in both if each.error is not None), None)
        if failed is not None:
            self._end(operation, None, failed)
            return
        try:
            value = operation.function()
        except BaseException as error:
            self._end(operation, None, error)
            return
        self._end(operation, value, None)

    def _end(self, operation: _Operation, value: Any, error: BaseException | None) -> None:
        # before the future is done: by then the objects that the function holds must be free
        operation.function = _nothing
        ready = []
        with self._lock:
            for variables, writes in ((operation.reads, False), (operation.mutates, True)):
                for variable in variables:
                    if writes and error is not None and variable.error is None:
                        variable.error = error
                    for released in variable._end(writes):
                        released.pending -= 1
                        if not released.pending:
                            ready.append(released)
        self._start(ready)
        if error is None:
            operation.future.set_result(value)
        else:
            operation.future.set_exception(error)
        with self._idle:
            del self._left[operation.future]
            if not self._left:
                self._idle.notify_all()


def _nothing() -> None:
    pass
