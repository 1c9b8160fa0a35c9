"""What a traced function sees: symbols in place of its blocks, and values that it can only pass on.

A symbol has no values, no shape and no type: whatever it would need these for raises an error.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from dasktile.capture.filters import Depths

#: Elements along an axis of an array that is made in a trace, at the most.
MOST_ELEMENTS = 100

#: Types of Python's numbers.
NUMBERS = (bool, int, float, complex)


class Trace(Protocol):
    """A call of a traced function."""

    #: Number of positional arguments of the function.
    arguments: int

    def count(self) -> None:
        """Count a call; an error if there are too many."""

    def known(self, value: Any) -> Any:
        """What the function sees of a value."""


class UntraceableError(Exception):
    """A function does something of which nothing is known; the message says what, if it helps."""


class Hidden:
    """What a function can only pass on: tests, comparisons and its text raise errors."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _raise(self, *_: Any) -> Any:
        raise UntraceableError

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __format__ = __repr__ = __str__ = _raise


class Symbol(Hidden):
    """A block, or what a traced function has computed of blocks.

    Traced code sees its operators and its attributes without an underscore.

    Parameters
    ----------
    trace
        The trace that it is part of.
    depths
        As `traced_depths` returns them.
    blocks
        Numbers of the arguments that it is computed from.
    is_condition
        Whether its elements are booleans.
    is_new
        Whether it is an array of its own, which the function may change.
    """

    __slots__ = ("_blocks", "_depths", "_is_condition", "_is_new", "_trace")

    #: Numbers of NumPy leave operators to the symbol.
    __array_ufunc__ = None

    def __init__(
        self,
        trace: Trace,
        depths: Depths | None = None,
        blocks: frozenset[int] = frozenset(),
        is_condition: bool = False,
        is_new: bool = False,
    ) -> None:
        self._trace = trace
        self._depths: Depths = depths or {}
        self._blocks = blocks
        self._is_condition = is_condition
        self._is_new = is_new

    def _joined(self, others: Iterable[Any], is_condition: bool = False) -> Symbol:
        """A new array, of elements at the same places of this one, of others, and of numbers."""
        depths, blocks = self._depths, self._blocks
        for other in others:
            if isinstance(other, Symbol):
                depths, blocks = _deepest(depths, other._depths), blocks | other._blocks
            elif not is_number(other):
                raise UntraceableError
        self._trace.count()
        return Symbol(self._trace, depths, blocks, is_condition, is_new=True)

    def _filtered(self, depths: Depths) -> Symbol:
        """The result of a filter that reads some neighbours."""
        total = {
            axis: self._depths.get(axis, 0) + depths.get(axis, 0)
            for axis in self._depths.keys() | depths.keys()
        }
        return Symbol(self._trace, total, self._blocks, is_new=True)

    def _view(self) -> Symbol:
        """The array itself, or a view of it: a change of one may change the other."""
        self._is_new = False
        return Symbol(self._trace, self._depths, self._blocks)

    def _changed(self, other: Any) -> Symbol:
        """The array after a change in place; blocks that broadcast would have to be noted."""
        if not self._is_new or self._trace.arguments > 1:
            raise UntraceableError
        self._depths = self._joined([other])._depths
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, Symbol) or not index._is_condition or not is_number(value):
            raise UntraceableError
        self._changed(index)

    @property
    def real(self) -> Symbol:
        return self._view()

    @property
    def imag(self) -> Symbol:
        return self._view()

    def conj(self) -> Symbol:
        return self._view()

    conjugate = conj

    def round(self, decimals: int = 0) -> Symbol:
        return self._view()

    def copy(self) -> Symbol:
        return self._joined([], self._is_condition)

    def astype(self, dtype: Any) -> Symbol:
        return self._joined([])

    def clip(self, min: Any = None, max: Any = None) -> Symbol:  # noqa: A002
        return self._joined([min, max])


def _operator(name: str) -> Callable[..., Any]:
    compares = name in ("eq", "ne", "lt", "le", "gt", "ge")
    combines = name.removeprefix("r") in ("and", "or", "xor", "invert")

    def operate(self: Symbol, *others: Any) -> Symbol:
        conditions = combines and self._is_condition and all(map(is_condition, others))
        return self._joined(others, compares or conditions)

    return operate


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Symbol, f"__{_name}__", _operator(_name))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    setattr(Symbol, f"__{_name}__", _operator(_name))
    setattr(Symbol, f"__r{_name}__", _operator(f"r{_name}"))
    setattr(Symbol, f"__i{_name}__", Symbol._changed)


class Opaque(Hidden):
    """A number of NumPy, an array, a type of elements or a list: an argument of functions."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def sum(self) -> Opaque:
        if not isinstance(self._value, (np.ndarray, np.generic)) or is_large(self._value):
            raise UntraceableError
        return Opaque(self._value.sum())


def _calculated(operation: Callable[[Any, Any], Any], *values: Any) -> Any:
    """The result of an operation on numbers and arrays, one of which is of NumPy."""
    if any(isinstance(value, Symbol) for value in values):
        # blocks decide themselves
        return NotImplemented
    if not all(is_number(value) or is_array(value) for value in values):
        raise UntraceableError
    operands = tuple(map(raw, values))
    if not any(isinstance(operand, (np.ndarray, np.generic)) for operand in operands):
        raise UntraceableError
    if math.prod(np.broadcast_shapes(*map(np.shape, operands))) > MOST_ELEMENTS**2:
        raise UntraceableError
    with np.errstate(all="ignore"):
        return Opaque(operation(*operands))


def _define(operation: Callable[[Any, Any], Any]) -> None:
    name = operation.__name__
    setattr(Opaque, f"__{name}__", lambda left, right: _calculated(operation, left, right))
    setattr(Opaque, f"__r{name}__", lambda right, left: _calculated(operation, left, right))
    # the array may be a global one
    setattr(Opaque, f"__i{name}__", Hidden._raise)


for _operation in (operator.add, operator.sub, operator.mul, operator.truediv):
    _define(_operation)


class Unknown(Hidden):
    """A global of which nothing but its name is known."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UntraceableError(f"it calls {self._name}")

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError(f"it uses {self._name}.{name}")


class Module(Hidden):
    """A module, with what is known of it."""

    __slots__ = ("__name__", "_module", "_trace")

    def __init__(self, trace: Trace, module: types.ModuleType) -> None:
        self._trace, self._module = trace, module
        # the statement that imports a part of a module looks it up by this
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        try:
            return self._trace.known(getattr(self._module, name))
        except UntraceableError as error:
            raise UntraceableError(str(error) or f"it uses {self.__name__}.{name}") from error


class Function(Hidden):
    """A function, which can only be called."""

    __slots__ = ("_call", "_trace")

    def __init__(self, trace: Trace, call: Callable[..., Any]) -> None:
        self._trace, self._call = trace, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._trace.count()
        return self._call(*args, **kwargs)


def raw(value: Any) -> Any:
    """An argument as a known function gets it."""
    if type(value) in (tuple, list):
        if len(value) > MOST_ELEMENTS**2:
            raise UntraceableError
        return type(value)(map(raw, value))
    if type(value) is Opaque:
        return value._value
    if value is None or type(value) is str or type(value) in NUMBERS:
        return value
    raise UntraceableError


def is_number(value: Any) -> bool:
    """Whether a value is the same for all elements."""
    if type(value) is Opaque:
        return issubclass(type(value._value), (np.generic, np.dtype, type))
    return value is None or type(value) in NUMBERS


def is_array(value: Any) -> bool:
    """Whether a value has numbers that are the same for all elements."""
    if type(value) is Opaque:
        return type(value._value) in (np.ndarray, list)
    return type(value) in (tuple, list) and all(map(is_number, value))


def is_condition(value: Any) -> bool:
    if type(value) is Opaque:
        return type(value._value) is np.bool_
    return value._is_condition if type(value) is Symbol else type(value) is bool


def is_large(values: Any) -> bool:
    """Whether an array has more elements than a trace calculates with."""
    return bool(np.size(values) > MOST_ELEMENTS**2)


def _deepest(depths: Depths, others: Depths) -> Depths:
    """Depths that cover both."""
    if depths == others:
        return depths
    everywhere = max(depths.get(None, 0), others.get(None, 0))
    result: dict[int | None, int] = {None: everywhere}
    for axis in depths.keys() | others.keys():
        if axis is not None:
            deepest = max(each.get(None, 0) + each.get(axis, 0) for each in (depths, others))
            result[axis] = max(0, deepest - everywhere)
    return result
