"""Values with gaps: a graph, or a plan, in which names are left open.

A value is pickled once.  In place of each name, and of every object of the input's graph (arrays,
functions, partials, lists, futures, states of random numbers), is a gap, which is filled from
another graph of the same structure and constants.  So no functions of the user are kept, and of
data only copies of what the planner makes of arrays, as parts of them.

Names of layers have tokens (:mod:`dasktile.lower.names`).  Those of the input's graph are taken
from the other graph.  Others are made again of what they were made of, with the new names in it, so
that names are those that writing the graph anew would give.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile._compat.dask import Alias, List, Task, TaskRef, keep_tasks, without_tasks
from dasktile.capture.constants import STATES
from dasktile.capture.literals import NAME_TOKEN, SHORT
from dasktile.capture.rules.sources import is_future
from dasktile.capture.seen import is_installed
from dasktile.lower.anchored import Anchored
from dasktile.lower.names import Origin, token_of
from dasktile.lower.packed import Packed, pack_tasks, unpack_tasks
from dasktile.schedule.placement import token as short_token

#: Tokens in texts, and the short ones of arrays that placements follow: what `TOKEN` and
#: `SHORT_TOKEN` match.  A pattern that starts with the letters of all of them is looked for in a
#: quarter of the time.
_TOKENS = re.compile(
    r"([0-9a-f][0-9a-f]{7}(?:"
    r"[0-9a-f]{24}|(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?:(?<=_f[0-9a-f]{8})|(?<![0-9a-f][0-9a-f]{8}))[0-9a-f]{2}(?![0-9a-f])))"
)

#: Types that are pickled by value.
_PLAIN = {int, float, complex, bool, bytes, type(None), type(...), tuple, slice, range}

#: Types that are pickled by value, or handed on if the value is of the graph: a function, or the
#: user, may change it, and equal sets may have other orders.
_HANDED_ON = {list, dict, set, frozenset}

#: Types of most tasks and references: to look for them in `_is_kept` would take longer.
_NODES = {Task, Anchored, TaskRef, Alias, List}

#: Types of which no value changes, or has a name.
_FIXED = (np.generic, np.dtype, Enum)

#: Bytes of arrays that are kept at most.
MOST_BYTES = 2**24


class NoGapsError(Exception):
    """Names cannot be left open in a value."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a graph has in place of gaps.

    Parameters
    ----------
    heads
        The first items of its keys, by number.
    layers
        The layers of data, by name, which are handed on as they are.
    objects
        Its objects, by number.
    texts
        Texts that have tokens, but are no names.
    """

    heads: tuple[Any, ...]
    layers: Mapping[str, Layer]
    objects: tuple[Any, ...]
    texts: tuple[str, ...] = ()

    def names(self) -> Source:
        """The same without layers and objects."""
        return Source(self.heads, {}, (), self.texts)


@dataclass(frozen=True, slots=True)
class Gapped:
    """A value with gaps.

    Parameters
    ----------
    pickled
        The value.
    gaps
        For every gap, a function that returns what fills it.
    tokens
        Tokens of the heads, and of what other tokens are made.
    nbytes
        Bytes of all this, about.
    """

    pickled: bytes
    gaps: Sequence[Callable[[_Filling], Any]]
    tokens: _Tokens
    nbytes: int

    def filled(self, source: Source) -> Any:
        """The value with the names of another graph.

        Parameters
        ----------
        source
            The graph, which has the same structure as the one before.

        Raises
        ------
        NoGapsError
            If its names differ in other ways than those before.
        """
        filling = _Filling(source, self.tokens)
        return _Reader(self.pickled, [gap(filling) for gap in self.gaps]).load()


#: Of a task, its type, its function, and whether it produces data.
_Form = tuple[type[Task], Callable[..., Any], bool]

#: The parts of a text: tokens in all odd places.
_Pieces = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of a value.

    Parameters
    ----------
    heads
        The heads of the graph that it was made of.
    made
        By token, the parts of what it was made of.
    short
        By short token, the parts of the name that it stands for.
    """

    heads: tuple[Any, ...]
    made: Mapping[str, _Pieces | tuple[_Pieces, ...]]
    short: Mapping[str, _Pieces]


class _Filling:
    """What fills the gaps of a value."""

    def __init__(self, source: Source, tokens: _Tokens) -> None:
        self.source = source
        self._made = tokens.made
        self._short = tokens.short
        self._new: dict[str, str] = {}
        if len(source.heads) != len(tokens.heads):
            raise NoGapsError("the graph has another number of names")
        for old, new in zip(tokens.heads, source.heads, strict=True):
            if isinstance(old, str) and isinstance(new, str):
                self._pair(old, new)
            elif old != new:
                raise NoGapsError(f"the name {new!r} differs from {old!r}")
        for token in self._new.keys() & self._made.keys():
            if self._remade(token) != self._new[token]:
                raise NoGapsError("a layer of the graph has the name of one that is written")

    def _pair(self, old: str, new: str) -> None:
        """Note that a name has taken the place of another one."""
        before, after = NAME_TOKEN.findall(old), NAME_TOKEN.findall(new)
        if NAME_TOKEN.sub("", old) != NAME_TOKEN.sub("", new):
            raise NoGapsError(f"the name {new!r} differs from {old!r}")
        for token, other in zip(
            (*before, short_token(old)), (*after, short_token(new)), strict=True
        ):
            if self._new.setdefault(token, other) != other:
                raise NoGapsError(f"a token of the name {old!r} stands for several")

    def token(self, token: str) -> str:
        """The token in place of another one."""
        new = self._new.get(token)
        if new is None:
            if token in self._short:
                new = short_token(self.text(self._short[token]))
            else:
                new = self._remade(token) if token in self._made else token
            self._new[token] = new
        return new

    def _remade(self, token: str) -> str:
        made = self._made[token]
        if made and isinstance(made[0], tuple):
            return token_of(tuple(self.text(pieces) for pieces in made))
        return token_of(self.text(made))

    def text(self, pieces: Any) -> str:
        """A text with other tokens."""
        return "".join([self.token(piece) if at % 2 else piece for at, piece in enumerate(pieces)])


class _Reader(pickle.Unpickler):
    """Reads a value with what fills its gaps, by number."""

    def __init__(self, pickled: bytes, values: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._values = values

    def persistent_load(self, number: int) -> Any:
        return self._values[number]


def with_gaps(
    value: Any, source: Source, origins: Mapping[str, Origin], names: Iterable[str] = ()
) -> Gapped:
    """A value in which names, and what is handed on, are left open.

    Parameters
    ----------
    value
        The value.
    source
        The graph that it was made of.
    origins
        What the tokens were made of that are in no name of that graph.
    names
        Names whose short tokens the value may have.

    Raises
    ------
    NoGapsError
        If a part of the value may have a name that cannot be left open.
    """
    buffer = io.BytesIO()
    writer = _Writer(buffer, source, origins, names)
    try:
        writer.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NoGapsError(str(error)) from error
    pickled = buffer.getvalue()
    tokens = _Tokens(source.heads, writer.made(), writer.short)
    return Gapped(pickled, writer.gaps, tokens, len(pickled) + writer.nbytes)


class _Writer(pickle.Pickler):
    """Pickles a value, and numbers the gaps in it."""

    def __init__(
        self,
        buffer: io.BytesIO,
        source: Source,
        origins: Mapping[str, Origin],
        names: Iterable[str],
    ) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._origins = origins
        heads = [head for head in source.heads if isinstance(head, str)]
        self._of_heads = {token for head in heads for token in NAME_TOKEN.findall(head)}
        self._of_heads.update(map(short_token, heads))
        self._literal = {token for text in source.texts for token in _TOKENS.findall(text)}
        self._layer = {id(layer): name for name, layer in source.layers.items()}
        self._block = {
            id(block): (name, key)
            for name, layer in source.layers.items()
            for key, block in layer.items()
        }
        self._object = {id(value): number for number, value in enumerate(source.objects)}
        #: Identities of what is handed on.
        self._whole = {*self._layer, *self._block, *self._object}
        #: Numbers of gaps, by text, and by the identity of other values.
        self._texts: dict[str, int | None] = {}
        #: The parts of the names in texts of keys, up to the quotation mark.
        self._of_keys: dict[str, _Pieces] = {}
        self._numbers: dict[int, int] = {}
        #: Tokens that are made again.
        self._used: set[str] = set()
        self._copied: list[Any] = []
        #: Forms of tasks, by type, identity of the function, and whether they produce data.
        self._forms: dict[tuple[type[Task], int, bool], _Form] = {}
        self.gaps: list[Callable[[_Filling], Any]] = []
        self.nbytes = 0
        #: By short token, the parts of a name; a name has no short token of another of them.
        self.short: dict[str, _Pieces] = {}
        self.short = {short_token(name): self._pieces(name) for name in names}
        if self._literal & (self._of_heads | self.short.keys()):
            raise NoGapsError("a text has a token of a name")

    def persistent_id(self, value: Any) -> int | None:
        # called for every part of every task
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind is str:
            try:
                return self._texts[value]
            except KeyError:
                self._texts[value] = self._text(value)
                return self._texts[value]
        if kind in _HANDED_ON and id(value) not in self._object:
            return None
        number = self._numbers.get(id(value))
        if number is not None:
            return number
        if id(value) in self._block:
            name, key = self._block[id(value)]
            gap = partial(_block_of, self._pieces(name), key[1:] if type(key) is tuple else None)
        elif id(value) in self._layer:
            gap = partial(_layer_of, self._pieces(self._layer[id(value)]))
        elif id(value) in self._object:
            gap = partial(_object_of, self._object[id(value)])
        elif kind not in _NODES and self._is_kept(value):
            gap = partial(_kept, self._private(value))
        else:
            return None
        number = self._numbers[id(value)] = len(self.gaps)
        self.gaps.append(gap)
        return number

    def reducer_override(self, value: Any) -> Any:
        if type(value) is MaterializedLayer and id(value.mapping) not in self._whole:
            notes = {name: own for name, own in vars(value).items() if name != "mapping"}
            return _layer, (pack_tasks(value.mapping, self._whole), notes)
        if type(value) in (Task, Anchored):
            form = type(value), value.func, value.data_producer
            # few forms are pickled once, and references, the most parts, as their keys
            form = self._forms.setdefault((form[0], id(form[1]), form[2]), form)
            args = value.args
            start = len(args)
            while start and type(args[start - 1]) is TaskRef:
                start -= 1
            keys = [argument.key for argument in args[start:]]
            return _task, (form, value.key, value.kwargs or None, start, *args[:start], *keys)
        if isinstance(value, Blockwise):
            # within a layer, Dask names chunk sizes by a token of them, which has no names in it
            for name in value.io_deps:
                self._literal.update(_TOKENS.findall(name))
            if type(value) is Blockwise and value.is_materialized():
                return _blockwise, (pack_tasks(dict(value), self._whole), without_tasks(value))
        return NotImplemented

    def _is_kept(self, value: Any) -> bool:
        """Whether a value has no names, so that it is not pickled."""
        if isinstance(value, STATES) or is_future(value):
            raise NoGapsError(f"a value of type {type(value).__name__} that the graph lacks")
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return True
        return isinstance(value, _FIXED) or is_installed(value)

    def _private(self, value: Any) -> Any:
        """A value that nobody changes."""
        if type(value) is not np.ndarray:
            return value
        self.nbytes += value.nbytes
        if self.nbytes > MOST_BYTES:
            raise NoGapsError("large arrays are not kept")
        # no other value gets its id while this one is written
        self._copied.append(value)
        return value.copy()

    def _text(self, text: str) -> int | None:
        """The number of the gap of a text; None if it has no name."""
        pieces = self._pieces(text)
        if len(pieces) == 1:
            return None
        self.gaps.append(partial(_text_of, pieces))
        self.nbytes += len(text)
        return len(self.gaps) - 1

    def _pieces(self, text: str) -> _Pieces:
        """The parts of a text, tokens that change in all odd places."""
        head, mark, place = text.partition("',")
        if mark and len(place) < SHORT:
            # the text of a key: many have the same name, and numbers of blocks are no tokens
            if head not in self._of_keys:
                self._of_keys[head] = self._split(head)
            pieces = self._of_keys[head]
            return (*pieces[:-1], pieces[-1] + mark + place)
        return self._split(text)

    def _split(self, text: str) -> _Pieces:
        pieces = [""]
        for at, piece in enumerate(_TOKENS.split(text)):
            if at % 2 and self._changes(piece):
                pieces += [piece, ""]
            else:
                pieces[-1] += piece
        return tuple(pieces)

    def _changes(self, token: str) -> bool:
        if token in self._of_heads or token in self.short:
            return True
        if token in self._origins:
            self._used.add(token)
            return True
        if len(token) > SHORT and token not in self._literal:
            raise NoGapsError(f"it is unknown what the token {token} was made of")
        return False

    def made(self) -> dict[str, Any]:
        """By token, the parts of what it was made of."""
        made: dict[str, Any] = {}
        while left := self._used - made.keys():
            for token in left:
                origin = self._origins[token]
                if isinstance(origin, str):
                    made[token] = self._pieces(origin)
                    self.nbytes += len(origin)
                else:
                    made[token] = tuple(map(self._pieces, origin))
                    self.nbytes += sum(map(len, origin))
        return made


def _layer(packed: Packed, notes: Mapping[str, Any]) -> MaterializedLayer:
    """A layer of its packed tasks, and of its other attributes."""
    layer = MaterializedLayer(unpack_tasks(packed))
    vars(layer).update(notes)
    return layer


def _blockwise(packed: Packed, notes: Mapping[str, Any]) -> Blockwise:
    """A Blockwise layer of its packed tasks, and of its other attributes."""
    layer = Blockwise.__new__(Blockwise)
    vars(layer).update(notes)
    keep_tasks(layer, unpack_tasks(packed))
    return layer


def _task(form: _Form, key: Any, options: Any, start: int, *parts: Any) -> Task:
    """A task of its parts: its arguments up to one, then the keys that the others refer to."""
    kind, function, is_producer = form
    args = *parts[:start], *map(TaskRef, parts[start:])
    return kind(key, function, *args, _data_producer=is_producer, **(options or {}))


# What fills a gap


def _text_of(pieces: _Pieces, filling: _Filling) -> str:
    return filling.text(pieces)


def _layer_of(pieces: _Pieces, filling: _Filling) -> Layer:
    return filling.source.layers[filling.text(pieces)]


def _block_of(pieces: _Pieces, index: tuple[Any, ...] | None, filling: _Filling) -> Any:
    name = filling.text(pieces)
    return filling.source.layers[name][name if index is None else (name, *index)]


def _object_of(number: int, filling: _Filling) -> Any:
    return filling.source.objects[number]


def _kept(value: Any, filling: _Filling) -> Any:
    return value
