"""What a function of the user reads around each element, found by calling it with a symbol.

A function that is passed to ``map_blocks`` may look at its whole block, so that its blocks have to
stay as they are.  Many such functions only call functions of NumPy that work element by element,
or filters that read a known number of neighbours.  Here such a function is called with a symbol in
place of its block.  A symbol has no values, no shape and no dtype.  The function sees no globals
but numbers, small arrays, the modules of NumPy and SciPy with the functions that are known here,
and other functions of the user, which are traced with it.  Whatever else it does raises an error,
which it cannot catch, and nothing is known of it then.  It can call nothing that has side effects,
and its loops are not run.
"""

from __future__ import annotations

import dis
import functools
import importlib
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dasktile.capture.filters import Depths, depths_of
from dasktile.capture.user_kernels import KernelUse

#: Whether a function, called with some keyword arguments and a number of arrays, is known to work
#: element by element.
IsPointwise = Callable[[Any, Mapping[str, Any], int], bool]

#: Calls in a trace, and elements of an array of numbers in it, at the most.
_MOST_CALLS, _MOST_ELEMENTS = 200, 4096

#: Packages whose modules a function may use, and packages whose functions are not traced.
_KNOWN, _OTHERS = ("numpy", "scipy"), ("dask", "distributed", "flox")

_NUMBERS = (bool, int, float, complex, np.generic)

#: Functions that make arrays of numbers.
_MAKERS = (np.array, np.asarray, np.eye, np.full, np.ones, np.zeros)

#: Functions that return the elements of their argument; the first two may return a new array.
_COPIES = (np.array, np.copy, np.asarray, np.ascontiguousarray)

#: Functions that return equal elements, as many as their argument has.
_LIKE: Mapping[Any, int] = {np.full_like: 2, np.ones_like: 1, np.zeros_like: 1}

_CONDITIONS = frozenset(
    (
        *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
        *(np.isnan, np.isfinite, np.isinf, np.isnat, np.signbit),
        *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not),
    )
)

#: Builtins that a function may call; those of numbers fail for symbols.
_BUILTINS: Mapping[str, Any] = {
    function.__name__: function for function in (abs, bool, complex, float, int, len, max, min)
}

#: Instructions of loops, and of assignments that outlive the call.
_REJECTED = ("JUMP_BACKWARD", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")

#: Flags of the code of generators and coroutines.
_GENERATORS = 0x20 | 0x80 | 0x100 | 0x200


class UntraceableError(Exception):
    """A function does something of which nothing is known."""


def traced_use(
    function: Any,
    arguments: int,
    kwargs: Mapping[str, Any],
    ndim: int,
    is_pointwise: IsPointwise,
) -> KernelUse | None:
    """How a function uses the axes of its blocks.

    Parameters
    ----------
    function
        A function that is applied to blocks.
    arguments
        Number of its positional arguments, all of them blocks, which broadcast.
    kwargs
        Its keyword arguments, the same for all blocks.
    ndim
        Number of axes of its result.
    is_pointwise
        See `IsPointwise`.

    Returns
    -------
    The use: elementwise, or the neighbours that each element of the result depends on.  None if
    that cannot be told.
    """
    if not isinstance(function, types.FunctionType) or _package(function) in _OTHERS:
        return None
    trace = _Trace(is_pointwise, arguments)
    blocks = frozenset(range(arguments))
    symbols = [Symbol(trace, blocks=frozenset({number})) for number in blocks]
    try:
        named = {name: trace.known(value) for name, value in kwargs.items()}
        result = trace.known(function)(*symbols, **named)
    except Exception:
        # of the trace, or of the function, which may check its arguments
        return None
    # the blocks of the result have the shape of all arguments together
    if not isinstance(result, Symbol) or result.blocks != blocks:
        return None
    depths = result.depths
    if any(axis is not None and axis < -ndim for axis in depths):
        return None
    everywhere = depths.get(None, 0)
    by_axis = {axis: everywhere + depths.get(axis - ndim, 0) for axis in range(ndim)}
    halo = {axis: depth for axis, depth in by_axis.items() if depth}
    return KernelUse(halo=halo) if halo else KernelUse(elementwise=True)


class Symbol:
    """A block, or what a traced function has computed of blocks.

    Parameters
    ----------
    trace
        The trace that it is part of.
    depths
        Neighbours that each element depends on, by axis counted from the last; those of None
        are added to those of all axes.
    blocks
        Numbers of the arguments that it is computed from.
    is_condition
        Whether its elements are booleans.
    is_new
        Whether it is an array of its own, which the function may change.
    """

    __slots__ = ("blocks", "depths", "is_condition", "is_new", "trace")

    #: Arrays and numbers of NumPy leave operators to the symbol.
    __array_ufunc__ = None

    def __init__(
        self,
        trace: _Trace,
        depths: Depths | None = None,
        blocks: frozenset[int] = frozenset(),
        is_condition: bool = False,
        is_new: bool = False,
    ) -> None:
        self.trace = trace
        self.depths: Depths = depths or {}
        self.blocks = blocks
        self.is_condition = is_condition
        self.is_new = is_new

    def joined(self, others: Sequence[Any], is_condition: bool = False) -> Symbol:
        """Elements computed of those of this symbol, of others, and of numbers."""
        depths, blocks = self.depths, self.blocks
        for other in others:
            if isinstance(other, Symbol):
                depths, blocks = _deepest(depths, other.depths), blocks | other.blocks
            elif not _is_number(other):
                raise UntraceableError
        self.trace.count()
        return Symbol(self.trace, depths, blocks, is_condition, is_new=True)

    def filtered(self, depths: Depths) -> Symbol:
        """The result of a filter that reads some neighbours."""
        total = {
            axis: self.depths.get(axis, 0) + depths.get(axis, 0)
            for axis in self.depths.keys() | depths.keys()
        }
        return Symbol(self.trace, total, self.blocks, is_new=True)

    def __setitem__(self, index: Any, value: Any) -> None:
        # with one block, all symbols have its shape
        is_mask = isinstance(index, Symbol) and index.is_condition and self.trace.arguments == 1
        if not is_mask or not self.is_new or not _is_number(value):
            raise UntraceableError
        self.depths = self.joined([index]).depths

    def __bool__(self) -> bool:
        raise UntraceableError

    @property
    def real(self) -> Symbol:
        return self._view()

    @property
    def imag(self) -> Symbol:
        return self._view()

    def _view(self) -> Symbol:
        # not new: changes of one of both arrays may change the other
        self.is_new = False
        return Symbol(self.trace, self.depths, self.blocks)

    def copy(self, order: str = "C") -> Symbol:
        return self.joined([], self.is_condition)

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        return self.joined([]) if copy else self._view()

    def clip(self, *limits: Any, **named: Any) -> Symbol:
        if named.keys() - {"min", "max"}:
            raise UntraceableError
        return self.joined([*limits, *named.values()])

    def round(self, decimals: int = 0) -> Symbol:
        return self.joined([decimals])

    def conj(self) -> Symbol:
        # of real numbers, it is the array itself
        return self._view()

    conjugate = conj


def _operator(name: str) -> Callable[..., Any]:
    compares = name in ("eq", "ne", "lt", "le", "gt", "ge")
    combines = name.removeprefix("r") in ("and", "or", "xor", "invert")

    def operate(self: Symbol, *others: Any) -> Symbol:
        conditions = combines and self.is_condition and all(map(_is_condition, others))
        return self.joined(others, compares or conditions)

    return operate


def _operator_in_place(self: Symbol, other: Any) -> Symbol:
    if not self.is_new:
        raise UntraceableError
    self.depths = self.joined([other]).depths
    return self


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Symbol, f"__{_name}__", _operator(_name))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
):
    setattr(Symbol, f"__{_name}__", _operator(_name))
    setattr(Symbol, f"__r{_name}__", _operator(f"r{_name}"))
    setattr(Symbol, f"__i{_name}__", _operator_in_place)


class _Trace:
    """What a traced function may see and call.

    Parameters
    ----------
    is_pointwise
        See `IsPointwise`.
    arguments
        Number of blocks that the function gets.
    """

    def __init__(self, is_pointwise: IsPointwise, arguments: int) -> None:
        self.is_pointwise = is_pointwise
        self.arguments = arguments
        self._calls = 0
        #: Copies of functions, by the identities of the originals, which outlive the trace.
        self._copies: dict[int, Any] = {}

    def count(self) -> None:
        """Count a call."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise UntraceableError

    def known(self, value: Any) -> Any:
        """What the function sees of a global, a constant or a keyword argument."""
        if value is None or isinstance(value, (*_NUMBERS, str, np.dtype)):
            return value
        if isinstance(value, type) and issubclass(value, _NUMBERS):
            return value
        if type(value) in (tuple, list):
            # not a list: the function cannot keep anything in it
            return tuple(map(self.known, value))
        if type(value) is np.ndarray:
            return self._constant(value)
        if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] in _KNOWN:
            return _Module(self, value)
        if isinstance(value, types.FunctionType) and _package(value) not in _KNOWN:
            return self._copy(value)
        if callable(value):
            return functools.partial(self._apply, value)
        raise UntraceableError

    def _constant(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array that the function cannot change."""
        if value.size > _MOST_ELEMENTS or value.dtype.hasobject:
            raise UntraceableError
        view = value.view()
        view.flags.writeable = False
        return view

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of NumPy or SciPy."""
        self.count()
        symbols = [value for value in args if isinstance(value, Symbol)]
        if any(isinstance(value, Symbol) for value in kwargs.values()):
            raise UntraceableError
        if not symbols:
            return self._apply_to_numbers(function, args, kwargs)
        first = symbols[0]
        depths = depths_of(function, args, kwargs)
        if depths is not None:
            if len(symbols) > 1 or first is not args[0]:
                raise UntraceableError
            return first.filtered(depths)
        if _in(function, _COPIES):
            if len(args) > 1 or set(kwargs) - {"dtype", "order", "copy"}:
                raise UntraceableError
            is_copy = _in(function, _COPIES[:2]) and "copy" not in kwargs
            return first.joined([], first.is_condition and not kwargs) if is_copy else first._view()
        if _in(function, _LIKE):
            if first is not args[0] or len(args) != _LIKE[function] or set(kwargs) - {"dtype"}:
                raise UntraceableError
            return first.joined(args[1:])
        if not self.is_pointwise(function, kwargs, len(args)):
            raise UntraceableError
        combines = _in(function, (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert))
        conditions = combines and all(map(_is_condition, args))
        is_condition = conditions or _in(function, _CONDITIONS)
        others = [value for value in args if value is not first]
        return first.joined(others, is_condition and not kwargs)

    def _apply_to_numbers(self, function: Any, args: Any, kwargs: Any) -> Any:
        is_maker = _in(function, _MAKERS)
        if not is_maker and not self.is_pointwise(function, kwargs, len(args)):
            raise UntraceableError
        if is_maker and not _in(function, (np.array, np.asarray)):
            sizes = args[:2] if function is np.eye else np.ravel(kwargs.get("shape", args[:1]))
            if math.prod(map(int, sizes)) > _MOST_ELEMENTS or "N" in kwargs or "M" in kwargs:
                raise UntraceableError
        return self.known(function(*args, **kwargs))

    def _copy(self, function: types.FunctionType) -> Any:
        """The function, with globals of which it sees only what is known."""
        if id(function) in self._copies:
            return self._copies[id(function)]
        code = function.__code__
        names = set(_names(code))
        visible: dict[str, Any] = {"__builtins__": {**_BUILTINS, "__import__": self._import}}
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(code, visible, function.__name__, closure=cells)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return copy(*args, **kwargs)

        # before its globals, which may be functions that call it
        self._copies[id(function)] = counted
        for name in names & function.__globals__.keys():
            # other names are not defined: an error where they are needed
            with suppress(UntraceableError):
                visible[name] = self.known(function.__globals__[name])
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.known(original.cell_contents)
        copy.__defaults__ = self.known(function.__defaults__)
        named = function.__kwdefaults__ or {}
        copy.__kwdefaults__ = {name: self.known(value) for name, value in named.items()}
        return counted

    def _import(
        self, name: str, _globals: Any = None, _locals: Any = None, names: Any = (), level: int = 0
    ) -> _Module:
        """What an import statement in the function returns."""
        root = name.split(".")[0]
        if root not in _KNOWN or level:
            raise UntraceableError
        module = importlib.import_module(name)
        return _Module(self, module if names else importlib.import_module(root))


class _Module:
    """A module of NumPy or SciPy, with what is known of it."""

    def __init__(self, trace: _Trace, module: types.ModuleType) -> None:
        self._trace, self._module = trace, module
        # the statement that imports a part of a module by another name looks it up by this
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        return self._trace.known(getattr(self._module, name))


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code uses, with that of the functions in it; it has no loops and handlers."""
    if code.co_flags & _GENERATORS or code.co_exceptiontable:
        raise UntraceableError
    for instruction in dis.get_instructions(code):
        if any(rejected in instruction.opname for rejected in _REJECTED):
            raise UntraceableError
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


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


def _is_number(value: Any) -> bool:
    """Whether a value is the same for all elements."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return value is None or isinstance(value, (*_NUMBERS, str, np.dtype, type))


def _is_condition(value: Any) -> bool:
    return value.is_condition if isinstance(value, Symbol) else isinstance(value, (bool, np.bool_))


def _in(function: Any, functions: Iterable[Any]) -> bool:
    """Whether a function is one of some; functions need not have hashes."""
    return any(function is each for each in functions)


def _package(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
