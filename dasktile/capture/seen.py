"""What decides of functions, and of the values that they see, compared by value.

Functions of the user are compared by their code and by all that this refers to.  Those of Python
and of installed packages do not change, and are compared by name; but variables of their modules
may, and tracing (:mod:`dasktile.capture.tracing`) reads these.
"""

from __future__ import annotations

import dis
import marshal
import operator
import os
import sys
import sysconfig
import types
from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from dask.tokenize import TokenizationError, tokenize

from dasktile.capture.symbols import NUMBERS
from dasktile.capture.tracing import MODULES, is_module, is_read, package_of
from dasktile.capture.user_kernels import lookup

#: Bytes of arrays in a graph, bytes of an object, and values that functions see, beyond which its
#: constants are not compared: to read them takes longer than a plan may.
MOST_BYTES, MOST_OBJECT_BYTES, MOST_VALUES = 2**25, 2**20, 2_000

#: Folders of modules that do not change: those of Python, and of installed packages.
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")

#: Packages whose functions do not change, wherever they are installed.
_FIXED = {"builtins", "dask", "dasktile", "distributed", "numpy"}

#: By name of a module that tracing sees: what was in it when a function that may use it was first
#: read.  It lives as long as the process.
_FIRST: dict[str, _First] = {}


class UnknownConstantError(Exception):
    """A constant cannot be compared by value."""


def is_installed(function: Any) -> bool:
    """Whether a function or a class is one of a package or of Python, under its own name.

    Parameters
    ----------
    function
        The function.
    """
    if isinstance(function, np.ufunc):
        return getattr(np, function.__name__, None) is function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or name is None or not _is_fixed(module):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is function


@lru_cache(maxsize=1024)
def _is_fixed(module: str) -> bool:
    """Whether a module is one of Python or of an installed package, which do not change."""
    top = module.partition(".")[0]
    if top in _FIXED:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return top in sys.builtin_module_names
    # a module of the user may have the name of one of Python
    return any(file.startswith(sysconfig.get_path(name) + os.sep) for name in _FOLDERS)


class Seen:
    """Reads functions, and the values that they see, as far as they decide."""

    def __init__(self) -> None:
        self._bytes = 0
        self._values = 0
        #: Whether functions were read, which may use what is in modules.
        self._has_code = False

    def array(self, array: np.ndarray[Any, Any]) -> Any:
        """What decides of an array."""
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            raise UnknownConstantError("large arrays are not compared")
        is_known = is_plain(array.dtype) and not array.dtype.hasobject
        if type(array) is not np.ndarray or not is_known:
            raise UnknownConstantError(f"an array of type {type(array).__name__}, {array.dtype}")
        return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()

    def object(self, value: Any) -> Any:
        """What decides of an object of any type, by Dask's rules for names of keys."""
        if sizeof(value) > MOST_OBJECT_BYTES:
            raise UnknownConstantError("large objects are not compared")
        try:
            return tokenize(value, ensure_deterministic=True)
        except TokenizationError as error:
            raise UnknownConstantError(f"a value of type {type(value).__name__}") from error

    def function(self, function: Any, above: tuple[int, ...]) -> Any:
        """What decides of a function: its name, or its code and all that this refers to.

        Parameters
        ----------
        function
            The function.
        above
            Ids of the functions that refer to it, the outermost first.
        """
        declared = lookup(function)
        use = "" if declared is None else repr(declared)
        if is_installed(function):
            name = [_text(function, attribute) for attribute in ("__module__", "__qualname__")]
            traced = self._code(function, above, False) if _may_be_traced(function) else None
            return ("installed", name, use, traced)
        if isinstance(function, types.MethodType):
            own = function.__self__
            return ("method", self.function(function.__func__, above), self.value(own, above), use)
        if type(function) is partial:
            given = [function.args, function.keywords]
            inner = self.function(function.func, above)
            return ("partial", inner, [self.value(each, above) for each in given], use)
        if not isinstance(function, types.FunctionType):
            return ("object", self.object(function), use)
        return ("function", function.__module__, self._code(function, above, True), use)

    def _code(self, function: types.FunctionType, above: tuple[int, ...], strictly: bool) -> Any:
        """The code of a function, and what it sees.

        Of the module of an installed package, this is what tracing reads of it; of defaults and of
        the functions around it, this or, `strictly`, all.
        """
        if id(function) in above:
            return ("again", above.index(id(function)))
        self._has_code = True
        above = (*above, id(function))
        read = self.value if strictly else self._traced
        seen = [read(value, above) for value in (function.__defaults__, function.__kwdefaults__)]
        for cell in function.__closure__ or ():
            try:
                seen.append(read(cell.cell_contents, above))
            except ValueError:  # not set yet
                seen.append(("not set",))
        if not _is_of_fixed(function):
            seen += [(name, self.value(value, above)) for name, value in _globals(function)]
        elif _may_be_traced(function):
            seen += [(name, self._traced(value, above)) for name, value in _globals(function)]
        return ("code", marshal.dumps(function.__code__, 2), seen)

    def value(self, value: Any, above: tuple[int, ...]) -> Any:
        """What decides of a value that a function sees."""
        kind = type(value)
        self._count(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            return (kind.__name__, value)
        if kind in (tuple, list):
            return (kind.__name__, [self.value(item, above) for item in value])
        if kind is dict:
            items = [item for pair in value.items() for item in pair]
            return ("dict", [self.value(item, above) for item in items])
        if isinstance(value, types.ModuleType):
            name = value.__name__
            if not _is_fixed(name) or sys.modules.get(name) is not value:
                raise UnknownConstantError(f"the module {name}, which may change")
            return ("module", name)
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape, self.array(value))
        if isinstance(value, (types.FunctionType, types.MethodType, partial)):
            return self.function(value, above)
        return (
            self.function(value, above) if is_installed(value) else ("object", self.object(value))
        )

    def _traced(self, value: Any, above: tuple[int, ...]) -> Any:
        """What tracing may read of a value; only the type of a value of which it reads nothing."""
        kind = type(value)
        if value is None or kind is str or kind in NUMBERS:
            self._count(value)
            return (kind.__name__, value)
        if kind in (tuple, list):
            self._count(value)
            return (kind.__name__, [self._traced(item, above) for item in value])
        if kind is dict:  # of defaults
            return ("dict", [self._traced(item, above) for item in value.items()])
        if isinstance(value, np.dtype) or kind is np.ndarray or isinstance(value, np.generic):
            dtype = value if isinstance(value, np.dtype) else value.dtype
            return ("other", dtype.str) if dtype.hasobject else self.value(value, above)
        if kind in (types.FunctionType, partial) or is_installed(value):
            return self.function(value, above)
        if kind is np.ufunc:
            name = next((name for name in MODULES if _is_in(name, value)), None)
            if name is None:
                raise UnknownConstantError(f"the ufunc {value.__name__}")
            return ("ufunc", name, value.__name__)
        if is_module(value):
            return ("module", value.__name__)
        return ("other", kind.__name__)

    def _count(self, value: Any) -> None:
        self._values += 1 + (len(value) if type(value) in (tuple, list, dict) else 0)
        if self._values > MOST_VALUES:
            raise UnknownConstantError("functions that see many values are not compared")

    def replaced(self) -> list[Any]:
        """What was replaced, or may have changed, in the modules that tracing sees.

        Empty if no function was read.
        """
        found: list[Any] = []
        for name in MODULES if self._has_code else ():
            if name not in sys.modules:
                continue
            # traced functions use no names that start with an underscore
            all_of = dict(vars(sys.modules[name]))
            now = {key: value for key, value in all_of.items() if key[:1] != "_"}
            if name not in _FIRST:
                _FIRST[name] = _First.of(now)
            first = _FIRST[name]
            for key in first.changed(now):
                if key not in now:
                    found += name, key, "missing"
                    continue
                seen = self._traced(now[key], ())
                # tracing fails on a new name of another kind, as that of a module
                if key in first.values or seen[0] != "other":
                    found += name, key, seen
            options = _options(now)
            if options != first.options:
                differ = [key for key in options if options[key] != first.options.get(key)]
                found += [(name, key, self._traced(options[key], ())) for key in differ]
        return found


@dataclass(frozen=True)
class _First:
    """What was in a module when it was first seen.

    Parameters
    ----------
    values
        What it had under its names.
    changing
        Names of what may change although it stays the same object.
    options
        By name, default arguments of its functions.
    """

    values: dict[str, Any]
    changing: tuple[str, ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, now: dict[str, Any]) -> _First:
        changing = tuple(key for key, value in now.items() if _may_change(value))
        return cls(now, changing, _options(now))

    def changed(self, now: dict[str, Any]) -> Iterable[str]:
        """Names of what may be different now."""
        first = self.values
        is_same = len(now) == len(first) and all(map(operator.eq, now, first))
        if is_same and all(map(operator.is_, now.values(), first.values())):
            return self.changing
        others = (key for key, value in now.items() if first.get(key, _FIRST) is not value)
        missing = (key for key in first if key not in now)
        return dict.fromkeys((*self.changing, *others, *missing))


def _options(module: dict[str, Any]) -> dict[str, Any]:
    """Default arguments of the functions of a module of NumPy or SciPy, which decide of filters."""
    return {
        key: (value.__defaults__, tuple((value.__kwdefaults__ or {}).items()))
        for key, value in module.items()
        if type(value) is types.FunctionType
    }


def _is_in(module: str, value: Any) -> bool:
    """Whether a module has a function under the name of that."""
    return getattr(sys.modules.get(module), value.__name__, None) is value


def _may_be_traced(function: Any) -> bool:
    """Whether tracing reads what may change of a function of an installed package."""
    if not is_read(function):
        return False
    if not _is_of_fixed(function):
        return True
    # of the module that it sees
    return function.__globals__["__name__"].partition(".")[0] not in _FIXED


def _may_change(value: Any) -> bool:
    """Whether what tracing reads of a value may change while it stays the same object."""
    if type(value) is tuple:
        return any(map(_may_change, value))
    if type(value) is types.FunctionType:
        return package_of(value) not in MODULES
    return type(value) in (list, partial, np.ndarray)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether all of a data type is in its short form: it has no fields and no metadata.

    Parameters
    ----------
    dtype
        The data type.
    """
    return dtype.kind in "biufcmMSUO" and dtype.metadata is None


def _text(function: Any, attribute: str) -> str:
    return str(getattr(function, attribute, getattr(function, "__name__", "")))


def _is_of_fixed(function: types.FunctionType) -> bool:
    """Whether a function sees a module that does not change.

    That is not the module in whose name it may be, as that of a function which it wraps.
    """
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or not _is_fixed(name):
        return False
    return getattr(sys.modules.get(name), "__dict__", None) is function.__globals__


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function sees of its module and of Python's functions, in the order of its code."""
    names = _global_names(function.__code__)
    builtins: dict[str, Any] = getattr(function, "__builtins__", {})
    seen = ChainMap(function.__globals__, builtins)
    return ((name, seen[name]) for name in names if name in seen)


@lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals in a code, and in those of the functions in it."""
    names: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[instruction.argval] = None
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            names.update(dict.fromkeys(_global_names(part)))
    return tuple(names)
