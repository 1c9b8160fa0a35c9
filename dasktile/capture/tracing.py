"""What a function of the user reads around each element, found by calling it with symbols.

A function that is passed to ``map_blocks`` may look at its whole block, so that its blocks have to
stay as they are.  Many such functions only call functions of NumPy that work element by element,
or filters that read a known number of neighbours.  Here such a function is called with symbols in
place of its blocks.  Everything that is allowed is listed:

- the instructions of its code: no loops, handlers, inner functions, tests of identity, subscripts,
  assignments to what is not local;
- what it sees: numbers of Python, strings, tuples of these, lists that it has made, NumPy and two
  modules of SciPy, and other functions of the user, which are called in the same way; numbers of
  NumPy, types of elements, arrays and lists only as arguments of these, which it can calculate
  with, but neither compare nor test;
- the functions of these modules, and the attributes of a symbol.

Whatever else a function does raises an error, and nothing is known of it then.
"""

from __future__ import annotations

import dis
import functools
import math
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dasktile.capture.filters import Depths, depths_of, may_filter
from dasktile.capture.symbols import (
    MOST_ELEMENTS,
    NUMBERS,
    Function,
    Module,
    Opaque,
    Symbol,
    Unknown,
    UntraceableError,
    is_array,
    is_condition,
    is_large,
    is_number,
    raw,
)

#: Calls and values in a trace at the most.
_MOST_CALLS = 500

#: Python's function, whatever its name stands for later.
_ABS = abs

#: Modules that a function may use.
MODULES = ("numpy", "scipy", "scipy.ndimage", "scipy.special")

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

#: Types of functions that may be in the tables.
_CALLABLE = (np.ufunc, types.FunctionType, types.BuiltinFunctionType, type(np.clip), type(np.where))


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


def is_module(value: Any) -> bool:
    """Whether a value is one of the modules that traced functions may use.

    Parameters
    ----------
    value
        The value.
    """
    if type(value) is not types.ModuleType or value.__name__ not in MODULES:
        return False
    return sys.modules.get(value.__name__) is value


def is_read(function: Any) -> bool:
    """Whether tracing reads the code of a function, and with it what the function sees.

    Others have instructions that are not allowed, or are known as those of NumPy and SciPy.

    Parameters
    ----------
    function
        The function.
    """
    if type(function) is not types.FunctionType or package_of(function) in MODULES:
        return False
    return _is_allowed(function.__code__)


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
    while type(function) is functools.partial:
        function = function.func
    return type(function) is types.FunctionType and package_of(function) not in _NOT_TRACED


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
        self._functions: dict[int, Function] = {}

    def count(self) -> None:
        """Count a call."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise UntraceableError(f"it makes more than {_MOST_CALLS} calls")

    def known(self, value: Any) -> Any:
        """What a function sees of a global, a constant or a keyword argument."""
        self.count()
        kind = type(value)
        if value is None or kind is str or kind in NUMBERS:
            return value
        if kind is tuple:
            return tuple(map(self.known, value))
        if kind is list:
            return Opaque([raw(self.known(each)) for each in value])
        if issubclass(kind, np.dtype):
            return Opaque(value)
        if kind is np.ndarray:
            # what is calculated with objects is code of their classes
            if value.dtype.hasobject:
                raise UntraceableError
            return Opaque(value)
        if (
            issubclass(kind, np.generic)
            and kind.__module__ == "numpy"
            and value.dtype.kind in "biufc"
        ):
            return Opaque(value)
        if issubclass(kind, type):
            if any(value is each for each in NUMBERS) or value.__module__ == "numpy":
                return Opaque(value)
        elif kind is types.ModuleType:
            if is_module(value):
                return Module(self, value)
        elif kind is functools.partial:
            named = {name: self.known(each) for name, each in value.keywords.items()}
            bound = functools.partial(self.known(value.func), *map(self.known, value.args), **named)
            return Function(self, bound)
        elif kind is types.FunctionType and package_of(value) not in MODULES:
            return self._restricted(value)
        elif kind in _CALLABLE:
            return Function(self, functools.partial(self._apply, value))
        raise UntraceableError

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of NumPy or SciPy."""
        symbols = [value for value in args if isinstance(value, Symbol)]
        if not symbols:
            return self._apply_to_numbers(function, args, kwargs)
        first, *others = args
        depths = None
        if first is symbols[0] and len(symbols) == 1:
            options = {name: raw(value) for name, value in kwargs.items()}
            depths = depths_of(function, [None, *map(raw, others)], options)
        if depths is not None:
            return first._filtered(depths)
        if type(function) is np.ufunc:
            _check_ufunc(function, args, kwargs)
        else:
            least, most, names = _found(function, _ELEMENTWISE)
            if not least <= len(args) <= most or kwargs.keys() - set(names):
                raise UntraceableError
            for name, value in kwargs.items():
                if not is_number(value) and not (name == "bins" and is_array(value)):
                    raise UntraceableError
        is_boolean = _is_one_of(function, _CONDITIONS) or (
            _is_one_of(function, _COMBINATIONS) and all(map(is_condition, args))
        )
        result = symbols[0]._joined(args, is_boolean)
        if _is_one_of(function, _VIEWS):
            for symbol in (*symbols, result):
                symbol._is_new = False
        return result

    def _apply_to_numbers(self, function: Any, args: Any, kwargs: Any) -> Any:
        if _is_one_of(function, _LITERALS) and len(args) == 1 and not kwargs:
            array = np.array(raw(args[0]))
            if array.dtype.kind not in "biufc" or is_large(array):
                raise UntraceableError
            return Opaque(array)
        if _is_one_of(function, _MAKERS) and args and not kwargs:
            shape, *values = args
            sizes = shape if type(shape) is tuple else (shape,)
            if len(sizes) > 4 or not all(map(is_number, values)):
                raise UntraceableError
            if not all(type(size) is int and 0 <= size <= MOST_ELEMENTS for size in sizes):
                raise UntraceableError
            if math.prod(sizes) > MOST_ELEMENTS**2:
                raise UntraceableError
            array = function(sizes, *map(raw, values))
            if array.dtype.hasobject:
                raise UntraceableError
            return Opaque(array)
        if type(function) is not np.ufunc or not all(map(is_number, args)) or None in args:
            raise UntraceableError
        _check_ufunc(function, args, kwargs)
        with np.errstate(all="ignore"):
            return Opaque(function(*map(raw, args)))

    def _restricted(self, function: types.FunctionType) -> Function:
        """A function of the user, with globals and closures of which it sees what is known."""
        if id(function) in self._functions:
            return self._functions[id(function)]
        names = set(_allowed_names(function.__code__))
        visible: dict[str, Any] = {"__builtins__": {"__import__": self._import}}
        builtins = getattr(function, "__builtins__", {})
        if builtins.get("abs") is _ABS:
            visible["__builtins__"]["abs"] = _ABS
        for number in NUMBERS:
            if builtins.get(number.__name__) is number:
                visible["__builtins__"][number.__name__] = Opaque(number)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(function.__code__, visible, function.__name__, closure=cells)
        # before its globals, which may be functions that call it
        self._functions[id(function)] = restricted = Function(self, copy)
        for name in names & function.__globals__.keys():
            # an error where it is used
            visible[name] = Unknown(name)
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
    ) -> Module:
        """What an import statement in a function returns; nothing is imported."""
        found = name if names else name.partition(".")[0]
        if name not in MODULES or name not in sys.modules or level:
            raise UntraceableError
        return Module(self, sys.modules[found])


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


@functools.lru_cache(maxsize=1024)
def _is_allowed(code: types.CodeType) -> bool:
    try:
        _allowed_names(code)
    except UntraceableError:
        return False
    return True


def _found(function: Any, table: Mapping[Any, Any]) -> Any:
    """The entry of a function; functions of the user need not have hashes."""
    for known, entry in table.items():
        if known is function:
            return entry
    form = " in a form that is not supported" if may_filter(function) else ""
    raise UntraceableError(f"it calls {getattr(function, '__name__', 'a function')}{form}")


def _is_one_of(function: Any, functions: Iterable[Any]) -> bool:
    return any(function is each for each in functions)


def _check_ufunc(function: Any, args: Any, kwargs: Any) -> None:
    """Raise an error unless a ufunc computes one array, element by element, without user code."""
    objects = all(set(kind) <= set("O->") for kind in function.types)
    if objects or kwargs or function.signature is not None or function.nout != 1:
        raise UntraceableError
    if len(args) != function.nin:
        raise UntraceableError


def package_of(function: types.FunctionType) -> str:
    """The package in whose name a function is, which may be that of one that it wraps."""
    module = function.__module__
    return module.partition(".")[0] if type(module) is str else ""
