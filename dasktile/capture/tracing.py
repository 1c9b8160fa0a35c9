"""What a function of the user reads around each element, found by calling it with symbols.

A function that is passed to ``map_blocks`` may look at its whole block, so that its blocks have to
stay as they are.  Many such functions only call functions of NumPy that work element by element,
or filters that read a known number of neighbours.  Here such a function is called with symbols in
place of its blocks.  Everything that is allowed is listed:

- the instructions of its code: no loops, handlers, inner functions, tests of identity, subscripts,
  assignments to what is not local;
- what it sees: numbers of Python, strings, tuples of these, lists that it has made, NumPy and two
  modules of SciPy, and
  other functions of the user, which are called in the same way; numbers of NumPy, types of
  elements, arrays and lists only as arguments of these, which it can calculate with, but neither
  compare nor test;
- the functions of these modules, and the attributes of a symbol.

A symbol has no values, no shape and no type.  Whatever else a function does raises an error, and
nothing is known of it then.
"""

from __future__ import annotations

import dis
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dasktile.capture.filters import Depths, depths_of, may_filter

#: Calls and values in a trace, and elements along an axis of an array made in it, at the most.
_MOST_CALLS, _MOST_ELEMENTS = 500, 100

#: Modules that a function may use.
_MODULES = ("numpy", "scipy", "scipy.ndimage", "scipy.special")

#: Packages whose own functions are not traced: recognisers know them.
_NOT_TRACED = ("dask", "distributed", "flox")

#: Instructions that a function may have, of Python 3.11 to 3.14.  Jumps are forward; tests for
#: None are not among them, since a symbol may stand for an argument that is None.
_INSTRUCTIONS = frozenset(
    (
        *("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME"),
        *("COPY", "POP_TOP", "PUSH_NULL", "SWAP", "RETURN_CONST", "RETURN_VALUE"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_DEREF", "LOAD_GLOBAL", "BUILD_TUPLE"),
        *("BUILD_LIST", "LIST_EXTEND"),
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "STORE_FAST"),
        *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        *("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
        *("LOAD_ATTR", "LOAD_METHOD", "CALL", "CALL_KW", "KW_NAMES", "PRECALL"),
        *("IMPORT_FROM", "IMPORT_NAME", "RAISE_VARARGS", "STORE_SUBSCR", "TO_BOOL"),
        *("BINARY_OP", "COMPARE_OP", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT"),
        *("JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"),
        *("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE"),
        *("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"),
    )
)

#: Functions that work element by element and return a new array: the least and the most positional
#: arguments, and names of others.
_NEW: Mapping[Any, tuple[int, int, tuple[str, ...]]] = {
    np.angle: (1, 2, ("deg",)),
    np.clip: (1, 3, ("a_min", "a_max", "min", "max")),
    np.copy: (1, 1, ()),
    np.digitize: (1, 1, ("bins", "right")),
    np.fix: (1, 1, ()),
    np.full_like: (2, 2, ()),
    np.i0: (1, 1, ()),
    np.iscomplex: (1, 1, ()),
    np.isclose: (2, 4, ("rtol", "atol", "equal_nan")),
    np.isneginf: (1, 1, ()),
    np.isposinf: (1, 1, ()),
    np.isreal: (1, 1, ()),
    np.nan_to_num: (1, 1, ("nan", "posinf", "neginf")),
    np.ones_like: (1, 1, ()),
    np.sinc: (1, 1, ()),
    np.where: (3, 3, ()),
    np.zeros_like: (1, 1, ()),
}

#: The same of functions that may return their argument, or a view of it.
_VIEWS: Mapping[Any, tuple[int, int, tuple[str, ...]]] = {
    np.around: (1, 2, ("decimals",)),
    np.asarray: (1, 1, ()),
    np.ascontiguousarray: (1, 1, ()),
    np.imag: (1, 1, ()),
    np.real: (1, 1, ()),
    np.round: (1, 2, ("decimals",)),
}

_ELEMENTWISE = {**_NEW, **_VIEWS}

#: Functions that make arrays of equal numbers.
_MAKERS = (np.full, np.ones, np.zeros)

#: Functions whose results are booleans, and those whose are if their arguments are.
_CONDITIONS = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.isnan, np.isfinite, np.isinf, np.isnat, np.signbit, np.isclose),
    *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not),
)
_COMBINATIONS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert)

#: Functions that make an array of numbers that are written out.
_LITERALS = (np.array, np.asarray)

#: Instructions that a function must not have, in words; others of these words do not help.
_OBSTACLES = {
    "FOR_ITER": "it has a loop",
    "GET_ITER": "it has a loop",
    "JUMP_BACKWARD": "it has a loop",
    "BINARY_SLICE": "it takes parts of arrays",
    "BUILD_SLICE": "it takes parts of arrays",
    "BINARY_SUBSCR": "it takes parts of arrays",
    "MAKE_FUNCTION": "it has an inner function",
    "STORE_ATTR": "it changes an object",
    "STORE_GLOBAL": "it changes a global variable",
}

#: Types of Python's numbers, and of functions that may be in the tables.
_NUMBERS = (bool, int, float, complex)
_CALLABLE = (np.ufunc, types.FunctionType, types.BuiltinFunctionType, type(np.clip), type(np.where))


class UntraceableError(Exception):
    """A function does something of which nothing is known; the message says what, if it helps."""


def traced_depths(function: Any, kwargs: Mapping[str, Any], arguments: int) -> Depths | None:
    """The neighbours that each element of a function's result depends on.

    Parameters
    ----------
    function
        A function that is applied to blocks.
    kwargs
        Its keyword arguments, the same for all blocks.
    arguments
        Number of its positional arguments: blocks, which broadcast, or the same for all of them.

    Returns
    -------
    By axis counted from the last, the most neighbours on either side; those of None are added to
    those of all axes.  Empty, or zeros, if it works element by element; None if that is unknown.
    """
    try:
        return _traced(function, kwargs, arguments)
    except Exception:
        # of the trace, or of the function, which may check its arguments
        return None


def obstacle(function: Any, kwargs: Mapping[str, Any], arguments: int) -> str:
    """What keeps a function from being read, as ``it calls median``; empty if that is unknown.

    Parameters
    ----------
    function, kwargs, arguments
        As for `traced_depths`.
    """
    try:
        _traced(function, kwargs, arguments)
    except UntraceableError as error:
        return str(error)
    except AttributeError as error:
        return f"it uses .{error.name}" if isinstance(error.obj, Symbol) else ""
    except NameError as error:
        return f"it uses {error.name}" if error.name else ""
    except Exception:
        return ""
    return ""


def _traced(function: Any, kwargs: Mapping[str, Any], arguments: int) -> Depths:
    if not _is_traceable(function):
        raise UntraceableError
    trace = _Trace(arguments)
    blocks = frozenset(range(arguments))
    symbols = [Symbol(trace, blocks=frozenset((number,))) for number in blocks]
    named = {name: trace.known(value) for name, value in kwargs.items()}
    result = trace.known(function)(*symbols, **named)
    # the blocks of the result have the shape of all arguments together
    if not isinstance(result, Symbol) or result._blocks != blocks:
        raise UntraceableError
    return result._depths


def _is_traceable(function: Any) -> bool:
    return type(function) is types.FunctionType and _package(function) not in _NOT_TRACED


class _Hidden:
    """What a function can only pass on: tests, comparisons and its text raise errors."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def _raise(self, *_: Any) -> Any:
        raise UntraceableError

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _raise
    __format__ = __repr__ = __str__ = _raise


class Symbol(_Hidden):
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
        trace: _Trace,
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
            elif not _is_number(other):
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
        if not isinstance(index, Symbol) or not index._is_condition or not _is_number(value):
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
        conditions = combines and self._is_condition and all(map(_is_condition, others))
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


class _Opaque(_Hidden):
    """A number of NumPy, an array, a type of elements or a list: an argument of functions."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def sum(self) -> _Opaque:
        if not isinstance(self._value, (np.ndarray, np.generic)) or _is_large(self._value):
            raise UntraceableError
        return _Opaque(self._value.sum())


def _calculated(operation: Callable[[Any, Any], Any], *values: Any) -> Any:
    """The result of an operation on numbers and arrays, one of which is of NumPy."""
    if any(isinstance(value, Symbol) for value in values):
        # blocks decide themselves
        return NotImplemented
    if not all(_is_number(value) or _is_array(value) for value in values):
        raise UntraceableError
    operands = tuple(map(_raw, values))
    if not any(isinstance(operand, (np.ndarray, np.generic)) for operand in operands):
        raise UntraceableError
    if math.prod(np.broadcast_shapes(*map(np.shape, operands))) > _MOST_ELEMENTS**2:
        raise UntraceableError
    with np.errstate(all="ignore"):
        return _Opaque(operation(*operands))


def _define(operation: Callable[[Any, Any], Any]) -> None:
    name = operation.__name__
    setattr(_Opaque, f"__{name}__", lambda left, right: _calculated(operation, left, right))
    setattr(_Opaque, f"__r{name}__", lambda right, left: _calculated(operation, left, right))
    # the array may be a global one
    setattr(_Opaque, f"__i{name}__", _Hidden._raise)


for _operation in (operator.add, operator.sub, operator.mul, operator.truediv):
    _define(_operation)


class _Unknown(_Hidden):
    """A global of which nothing but its name is known."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UntraceableError(f"it calls {self._name}")

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError(f"it uses {self._name}.{name}")


class _Module(_Hidden):
    """A module, with what is known of it."""

    __slots__ = ("__name__", "_module", "_trace")

    def __init__(self, trace: _Trace, module: types.ModuleType) -> None:
        self._trace, self._module = trace, module
        # the statement that imports a part of a module looks it up by this
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        try:
            return self._trace.known(getattr(self._module, name))
        except UntraceableError as error:
            raise UntraceableError(f"it uses {self.__name__}.{name}") from error


class _Function(_Hidden):
    """A function, which can only be called."""

    __slots__ = ("_call", "_trace")

    def __init__(self, trace: _Trace, call: Callable[..., Any]) -> None:
        self._trace, self._call = trace, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._trace.count()
        return self._call(*args, **kwargs)


class _Trace:
    """What traced functions may see and call.

    Parameters
    ----------
    arguments
        Number of positional arguments of the function whose depths are wanted.
    """

    def __init__(self, arguments: int) -> None:
        self.arguments = arguments
        self._calls = 0
        #: By the identity of a function of the user, which outlives the trace.
        self._functions: dict[int, _Function] = {}

    def count(self) -> None:
        """Count a call."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise UntraceableError

    def known(self, value: Any) -> Any:
        """What a function sees of a global, a constant or a keyword argument."""
        self.count()
        kind = type(value)
        if value is None or kind is str or kind in _NUMBERS:
            return value
        if kind is tuple:
            return tuple(map(self.known, value))
        if kind is list:
            return _Opaque([_raw(self.known(each)) for each in value])
        if issubclass(kind, np.dtype):
            return _Opaque(value)
        if kind is np.ndarray:
            # what is calculated with objects is code of their classes
            if value.dtype.hasobject:
                raise UntraceableError
            return _Opaque(value)
        if (
            issubclass(kind, np.generic)
            and kind.__module__ == "numpy"
            and value.dtype.kind in "biufc"
        ):
            return _Opaque(value)
        if issubclass(kind, type):
            if any(value is each for each in _NUMBERS) or value.__module__ == "numpy":
                return _Opaque(value)
        elif kind is types.ModuleType:
            if value.__name__ in _MODULES:
                return _Module(self, value)
        elif kind is functools.partial:
            named = {name: self.known(each) for name, each in value.keywords.items()}
            bound = functools.partial(self.known(value.func), *map(self.known, value.args), **named)
            return _Function(self, bound)
        elif kind is types.FunctionType and _package(value) not in _MODULES:
            return self._restricted(value)
        elif kind in _CALLABLE:
            return _Function(self, functools.partial(self._apply, value))
        raise UntraceableError

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of NumPy or SciPy."""
        symbols = [value for value in args if isinstance(value, Symbol)]
        if not symbols:
            return self._apply_to_numbers(function, args, kwargs)
        first, *others = args
        depths = None
        if first is symbols[0] and len(symbols) == 1:
            options = {name: _raw(value) for name, value in kwargs.items()}
            depths = depths_of(function, [None, *map(_raw, others)], options)
        if depths is not None:
            return first._filtered(depths)
        if type(function) is np.ufunc:
            _check_ufunc(function, args, kwargs)
        else:
            least, most, names = _found(function, _ELEMENTWISE)
            if not least <= len(args) <= most or kwargs.keys() - set(names):
                raise UntraceableError
            for name, value in kwargs.items():
                if not _is_number(value) and not (name == "bins" and _is_array(value)):
                    raise UntraceableError
        is_condition = _is_one_of(function, _CONDITIONS) or (
            _is_one_of(function, _COMBINATIONS) and all(map(_is_condition, args))
        )
        result = symbols[0]._joined(args, is_condition)
        if _is_one_of(function, _VIEWS):
            for symbol in (*symbols, result):
                symbol._is_new = False
        return result

    def _apply_to_numbers(self, function: Any, args: Any, kwargs: Any) -> Any:
        if _is_one_of(function, _LITERALS) and len(args) == 1 and not kwargs:
            array = np.array(_raw(args[0]))
            if array.dtype.kind not in "biufc" or _is_large(array):
                raise UntraceableError
            return _Opaque(array)
        if _is_one_of(function, _MAKERS) and args and not kwargs:
            shape, *values = args
            sizes = shape if type(shape) is tuple else (shape,)
            if len(sizes) > 4 or not all(map(_is_number, values)):
                raise UntraceableError
            if not all(type(size) is int and 0 <= size <= _MOST_ELEMENTS for size in sizes):
                raise UntraceableError
            if math.prod(sizes) > _MOST_ELEMENTS**2:
                raise UntraceableError
            array = function(sizes, *map(_raw, values))
            if array.dtype.hasobject:
                raise UntraceableError
            return _Opaque(array)
        if type(function) is not np.ufunc or not all(map(_is_number, args)) or None in args:
            raise UntraceableError
        _check_ufunc(function, args, kwargs)
        with np.errstate(all="ignore"):
            return _Opaque(function(*map(_raw, args)))

    def _restricted(self, function: types.FunctionType) -> _Function:
        """A function of the user, with globals and closures of which it sees what is known."""
        if id(function) in self._functions:
            return self._functions[id(function)]
        names = set(_allowed_names(function.__code__))
        visible: dict[str, Any] = {"__builtins__": {"__import__": self._import}}
        builtins = getattr(function, "__builtins__", {})
        if builtins.get("abs") is abs:
            visible["__builtins__"]["abs"] = abs
        for number in _NUMBERS:
            if builtins.get(number.__name__) is number:
                visible["__builtins__"][number.__name__] = _Opaque(number)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(function.__code__, visible, function.__name__, closure=cells)
        # before its globals, which may be functions that call it
        self._functions[id(function)] = restricted = _Function(self, copy)
        for name in names & function.__globals__.keys():
            # an error where it is used
            visible[name] = _Unknown(name)
            with suppress(UntraceableError):
                visible[name] = self.known(function.__globals__[name])
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.known(original.cell_contents)
        copy.__defaults__ = self.known(function.__defaults__)
        named = function.__kwdefaults__ or {}
        copy.__kwdefaults__ = {name: self.known(value) for name, value in named.items()}
        return restricted

    def _import(
        self, name: str, _globals: Any = None, _locals: Any = None, names: Any = (), level: int = 0
    ) -> _Module:
        """What an import statement in a function returns; nothing is imported."""
        found = name if names else name.partition(".")[0]
        if name not in _MODULES or name not in sys.modules or level:
            raise UntraceableError
        return _Module(self, sys.modules[found])


def _allowed_names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code uses; an error if one of its instructions is not allowed."""
    if code.co_exceptiontable or code.co_cellvars:
        raise UntraceableError
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name not in _INSTRUCTIONS:
            raise UntraceableError(_OBSTACLES.get(name, ""))
        is_attribute = name in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
        if is_attribute and str(instruction.argval).startswith("_"):
            raise UntraceableError
    if any(name.startswith("__") for name in code.co_names):
        raise UntraceableError
    return code.co_names


def _found(function: Any, table: Mapping[Any, Any]) -> Any:
    """The entry of a function; functions of the user need not have hashes."""
    for known, entry in table.items():
        if known is function:
            return entry
    form = " in a form that is not supported" if may_filter(function) else ""
    raise UntraceableError(f"it calls {getattr(function, '__name__', 'a function')}{form}")


def _is_large(values: Any) -> bool:
    """Whether an array has more elements than a trace calculates with."""
    return bool(np.size(values) > _MOST_ELEMENTS**2)


def _is_one_of(function: Any, functions: Iterable[Any]) -> bool:
    return any(function is each for each in functions)


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


def _check_ufunc(function: Any, args: Any, kwargs: Any) -> None:
    """Raise an error unless a ufunc computes one array, element by element, without user code."""
    objects = all(set(kind) <= set("O->") for kind in function.types)
    if objects or kwargs or function.signature is not None or function.nout != 1:
        raise UntraceableError
    if len(args) != function.nin:
        raise UntraceableError


def _package(function: types.FunctionType) -> str:
    module = function.__module__
    return module.partition(".")[0] if type(module) is str else ""


def _raw(value: Any) -> Any:
    """An argument as a known function gets it."""
    if type(value) in (tuple, list):
        if len(value) > _MOST_ELEMENTS**2:
            raise UntraceableError
        return type(value)(map(_raw, value))
    if type(value) is _Opaque:
        return value._value
    if value is None or type(value) is str or type(value) in _NUMBERS:
        return value
    raise UntraceableError


def _is_number(value: Any) -> bool:
    """Whether a value is the same for all elements."""
    if type(value) is _Opaque:
        return issubclass(type(value._value), (np.generic, np.dtype, type))
    return value is None or type(value) in _NUMBERS


def _is_array(value: Any) -> bool:
    """Whether a value has numbers that are the same for all elements."""
    if type(value) is _Opaque:
        return type(value._value) in (np.ndarray, list)
    return type(value) in (tuple, list) and all(map(_is_number, value))


def _is_condition(value: Any) -> bool:
    if type(value) is _Opaque:
        return type(value._value) is np.bool_
    return value._is_condition if type(value) is Symbol else type(value) is bool
