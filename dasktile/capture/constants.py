"""Constants of a graph: what its tasks have beside the structure, compared by value.

Graphs of the same structure and the same constants compute the same, but for the keys, and for
futures and states of random numbers, which no plan looks into.
"""

from __future__ import annotations

import dis
import marshal
import os
import sys
import sysconfig
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from dask.tokenize import TokenizationError, tokenize

from dasktile.capture.tracing import MODULES, is_read
from dasktile.capture.user_kernels import lookup

#: Bytes of arrays in a graph, bytes of an object, and values that functions see, beyond which its
#: constants are not compared: to read them takes longer than a plan may.
MOST_BYTES, MOST_OBJECT_BYTES, MOST_VALUES = 2**25, 2**20, 2_000

#: States of random numbers.
STATES = (
    np.random.BitGenerator,
    np.random.SeedSequence,
    np.random.Generator,
    np.random.RandomState,
)

#: Folders of modules that do not change: those of Python, and of installed packages.
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")

#: Types of values that tracing looks into, but for tuples, lists and functions.
_VISIBLE = (type(None), bool, int, float, complex, str, np.generic, np.ndarray, np.dtype)

#: What was in modules when functions that may use it were first read, by name of the module.
_FIRST: dict[str, dict[str, Any]] = {}

#: Packages whose functions do not change, wherever they are installed.
_FIXED = {"builtins", "dask", "dasktile", "distributed", "numpy"}


class UnknownConstantError(Exception):
    """A constant cannot be compared by value."""


class Constants:
    """The constants of a graph, in the order in which they are met.

    Attributes
    ----------
    objects
        Arrays, functions and other objects, each once.
    texts
        The texts that contain a token.
    unknown
        Why the constants cannot be compared; empty if they can.
    """

    def __init__(self) -> None:
        #: They are kept, so that no other object gets the id of one of them.
        self.objects: list[Any] = []
        self.texts: list[str] = []
        self.unknown = ""
        self._met: list[Any] = []
        #: Numbers of the objects, by their ids.
        self._numbers: dict[int, int] = {}
        self._seen = _Seen()

    def value(self, value: Any) -> None:
        """Add a number, or a text without tokens."""
        self._met.append(value)

    def text(self, text: str) -> None:
        """Add a text with a token."""
        self.texts.append(text)
        self._met.append(text)

    def digest(self) -> bytes | None:
        """A digest of all constants; None if they cannot be compared."""
        if self.unknown:
            return None
        replaced = self._seen.replaced()
        return blake2b(marshal.dumps((self._met, replaced), 2), digest_size=32).digest()

    def cannot(self, reason: str) -> None:
        """Note that the constants cannot be compared."""
        self.unknown = self.unknown or reason

    def array(self, array: np.ndarray[Any, Any]) -> None:
        """Add the elements of an array."""
        self._add(array, self._seen.array)

    def identity(self, value: Any) -> None:
        """Add an object that is part of the structure: which one it is."""
        self._add(value, lambda own: "same")

    def identities(self, values: Iterable[Any]) -> None:
        """Add some objects like this."""
        for value in values:
            self.identity(value)

    def function(self, function: Callable[..., Any]) -> None:
        """Add what a function is made of."""
        self._add(function, lambda own: self._seen.function(own, ()))

    def object(self, value: Any) -> None:
        """Add an object of any type."""
        is_state = isinstance(value, STATES)
        self._add(value, _of_state if is_state else self._seen.object)

    def _add(self, value: Any, describe: Callable[[Any], Any]) -> None:
        if self.unknown:
            return
        known = self._numbers.get(id(value))
        if known is not None:
            self._met.append(known)
            return
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        try:
            self._met.append(describe(value))
        except Exception as error:
            # also those of methods of the user, and where objects contain each other
            self.cannot(str(error) or type(error).__name__)


def _of_state(state: Any) -> Any:
    return ("state", type(state).__name__)


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


class _Seen:
    """Values and functions as far as they decide, and how much of them was read."""

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
            return ("installed", name, use, self._traced(function, above))
        if isinstance(function, types.MethodType):
            own = function.__self__
            return ("method", self.function(function.__func__, above), self.value(own, above), use)
        if type(function) is partial:
            given = [function.args, function.keywords]
            inner = self.function(function.func, above)
            return ("partial", inner, [self.value(each, above) for each in given], use)
        if not isinstance(function, types.FunctionType):
            return ("object", self.object(function), use)
        if id(function) in above:
            return ("again", above.index(id(function)))
        self._has_code = True
        traced = self._traced(function, above) if _is_of_fixed(function) else None
        above = (*above, id(function))
        seen = [function.__defaults__, function.__kwdefaults__, *_cells(function)]
        if not _is_of_fixed(function):
            seen += _globals(function)
        own = [self.value(value, above) for value in seen]
        code = marshal.dumps(function.__code__, 2)
        return ("code", function.__module__, code, own, traced, use)

    def _traced(self, function: Any, above: tuple[int, ...]) -> Any:
        """What tracing reads of a function of an installed package; None if it reads nothing.

        Such a function does not change, but what its module has under a name may.
        """
        if not is_read(function) or _text(function, "__module__").partition(".")[0] in _FIXED:
            return None
        if id(function) in above:
            return ("again", above.index(id(function)))
        self._has_code = True
        above = (*above, id(function))
        seen = [function.__defaults__, function.__kwdefaults__, *_cells(function)]
        seen += _globals(function)
        own = [self._visible(value, above) for value in seen]
        return (marshal.dumps(function.__code__, 2), own)

    def replaced(self) -> list[Any]:
        """What was replaced in the modules that tracing sees, if functions were read."""
        found: list[Any] = []
        for name in MODULES if self._has_code else ():
            now = vars(sys.modules[name]) if name in sys.modules else {}
            first = _FIRST.setdefault(name, dict(now))
            for key, value in now.items():
                if first.get(key, _FIRST) is not value:
                    found += name, key, self._visible(value, ())
        return found

    def _visible(self, value: Any, above: tuple[int, ...]) -> Any:
        """What tracing may see of a value: not what is in an object of another kind."""
        if type(value) is dict:  # of defaults
            value = tuple(value.items())
        if type(value) in (tuple, list):
            return (type(value).__name__, [self._visible(item, above) for item in value])
        if isinstance(value, _VISIBLE) or callable(value):
            return self.value(value, above)
        name = value.__name__ if isinstance(value, types.ModuleType) else ""
        return ("other", type(value).__name__, name)

    def value(self, value: Any, above: tuple[int, ...]) -> Any:
        """What decides of a value that a function sees."""
        kind = type(value)
        self._values += 1 + (len(value) if kind in (tuple, list, dict) else 0)
        if self._values > MOST_VALUES:
            raise UnknownConstantError("functions that see many values are not compared")
        if value is None or kind in (bool, int, float, complex, str, bytes):
            return (kind.__name__, value)
        if kind in (tuple, list):
            return (kind.__name__, [self.value(item, above) for item in value])
        if kind is dict:
            items = [item for pair in value.items() for item in pair]
            return ("dict", [self.value(item, above) for item in items])
        if isinstance(value, types.ModuleType):
            if not _is_fixed(value.__name__):
                raise UnknownConstantError(f"the module {value.__name__}, which may change")
            return ("module", value.__name__)
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape, self.array(value))
        if isinstance(value, (types.FunctionType, types.MethodType, partial)):
            return self.function(value, above)
        return (
            self.function(value, above) if is_installed(value) else ("object", self.object(value))
        )


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


def _cells(function: types.FunctionType) -> Iterator[Any]:
    """What a function sees of the functions around it."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def _is_of_fixed(function: types.FunctionType) -> bool:
    """Whether a function sees a module that does not change.

    That is not the module in whose name it may be, as that of a function which it wraps.
    """
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or not _is_fixed(name):
        return False
    return getattr(sys.modules.get(name), "__dict__", None) is function.__globals__


def _globals(function: types.FunctionType) -> Iterator[Any]:
    """What a function sees of its module and of Python's functions, in the order of its code."""
    names = _global_names(function.__code__)
    builtins: dict[str, Any] = getattr(function, "__builtins__", {})
    seen = ChainMap(function.__globals__, builtins)
    for name in names:
        if name in seen:
            yield seen[name]


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
