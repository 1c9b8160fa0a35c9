"""Settings from ``dask.config``, and the values that the pure modules are given.

:func:`setting` is the only place where a setting is read: it checks and converts the value.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

from dasktile.defaults import defaults as defaults
from dasktile.errors import UnknownSettingWarning, warn_user
from dasktile.tiling.calibration import Calibration
from dasktile.tiling.settings import Settings

#: Limits that measured values are clipped to (bytes, bytes a second, operations a second), so
#: that a failed measurement cannot cause an absurd plan.
_LIMITS = {
    "cost.task-bytes": (0.05e6, 20e6),
    "cost.bandwidth": (1e6, 1e12),
    "cost.flops": (1e8, 1e15),
}


def tiling_settings(measured: Calibration | None = None) -> Settings:
    """Constants of the cost model and limits of the search, from ``dask.config``.

    Parameters
    ----------
    measured
        Measured speeds of the cluster; they replace the settings ``cost.*`` that have their
        default values.

    Raises
    ------
    ValueError
        If a setting is invalid, naming it.
    """
    flops = bandwidth = task_bytes = None
    if measured is not None:
        flops, bandwidth = measured.flops, measured.bandwidth
    speed = _measured("cost.bandwidth", bandwidth)
    if measured is not None:
        task_bytes = measured.task_seconds * speed
    return Settings(
        task_bytes=_measured("cost.task-bytes", task_bytes),
        work_per_second=_measured("cost.flops", flops),
        bytes_per_second=speed,
        tiles_per_worker=setting("tiling.tiles-per-worker"),
        min_tile=int(setting("tiling.min-tile")),
        max_task=int(setting("tiling.max-task")),
        usual_task=int(setting("tiling.usual-task")),
        max_states=setting("tiling.max-states"),
        width_budget=setting("tiling.width-budget"),
    )


def spill_settings() -> dict[str, Any]:
    """Options of the residency of tiles, from ``dask.config``.

    Raises
    ------
    ValueError
        If a setting is invalid, naming it.
    """
    return {
        "keep_clean": setting("spill.keep-clean"),
        "prefetch": setting("spill.prefetch"),
        "dirty_factor": setting("spill.dirty"),
    }


def bundle_tasks() -> int:
    """Tasks that one bundle runs at most, from ``dask.config``; 0 for no bundles.

    Raises
    ------
    ValueError
        If the setting is invalid.
    """
    count: int = setting("bundle")
    return count


def check() -> None:
    """Check all settings, whether they will be used or not.

    Names that do not exist give one warning each.  Settings that did not change since the last
    call are not checked again, so that a call takes about a microsecond.

    Raises
    ------
    ValueError
        If a setting is invalid, naming it.
    """
    global _checked
    section = dask.config.get("dasktile", default=None)
    if _checked is not None and section == _checked:
        return
    for name in _RULES:
        setting(name)
    for name in _leaves(section):
        if name not in _RULES and name not in _warned:
            _warned.add(name)
            warn_user(
                f"setting dasktile.{name} does not exist and has no effect; {_suggestion(name)}",
                UnknownSettingWarning,
            )
    _checked = copy.deepcopy(section)


def setting(name: str) -> Any:
    """The value of ``dasktile.<name>``, checked and converted; its default if it is missing.

    Raises
    ------
    ValueError
        If the value is invalid: the message has the name, the value and what is allowed.
    """
    value = dask.config.get(f"dasktile.{name}", default=_MISSING)
    if value is _MISSING:
        _check_sections(name)
        value = _default(name)
    rule = _RULES[name]
    converted = rule.convert(value)
    if converted is _INVALID:
        raise ValueError(f"setting dasktile.{name} must be {rule.allowed}; got {value!r}")
    return converted


def _measured(name: str, value: float | None) -> float:
    """The value of a setting, or the measured value if the setting has its default."""
    own: float = setting(name)
    if value is None or own != _RULES[name].convert(_default(name)):
        return own
    least, most = _LIMITS[name]
    return min(max(value, least), most)


def _default(name: str) -> Any:
    value: Any = defaults["dasktile"]
    for part in name.split("."):
        value = value[part]
    return value


# Rules ------------------------------------------------------------------------------

#: Results of the conversion of an invalid value, and of the look-up of a missing one.
_INVALID, _MISSING = object(), object()


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is allowed, in words, and the conversion of a value; _INVALID if it is not allowed."""

    allowed: str
    convert: Callable[[object], Any]


def _number(value: object, parse: Callable[[str], float]) -> float:
    """A number, also from a string; NaN if the value is neither."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            # YAML 1.1 reads 2e9 as a string
            return float(value)
        except (ValueError, OverflowError):
            pass
        try:
            return float(parse(str(value)))
        except (ValueError, KeyError):
            pass
    return float("nan")


def _quantity(
    allowed: str, parse: Callable[[str], float], least: float | None = None, null: bool = False
) -> _Rule:
    """A finite number of at least `least`, by default above 0."""

    def convert(value: object) -> Any:
        if value is None and null:
            return None
        number = _number(value, parse)
        valid = number > 0 if least is None else number >= least
        return number if valid and number < float("inf") else _INVALID

    return _Rule(allowed + (", or null" if null else ""), convert)


def _count(least: int, null: bool = False) -> _Rule:
    def convert(value: object) -> Any:
        if value is None and null:
            return None
        if isinstance(value, str) and value.replace("_", "").isdecimal():
            value = int(value)
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return value if valid else _INVALID

    return _Rule(f"an integer >= {least}" + (", or null" if null else ""), convert)


def _instance(allowed: str, kind: type) -> _Rule:
    return _Rule(allowed, lambda value: value if isinstance(value, kind) else _INVALID)


_BYTES = _quantity("a positive number of bytes, or a string such as '2 GiB'", parse_bytes)
_SPEED = _quantity("a positive number of bytes a second, or a string such as '2 GiB'", parse_bytes)
_FLAG = _instance("true or false", bool)

#: The rule of every setting.
_RULES: dict[str, _Rule] = {
    "workers": _count(1, null=True),
    "memory-limit": _quantity(
        "a number of bytes >= 1, a string such as '2 GiB'", parse_bytes, 1, null=True
    ),
    # the names of the methods are checked where methods are known
    "method": _instance("the name of a tiling method", str),
    "bundle": _count(0),
    "reuse-plans": _FLAG,
    "wait": _quantity("a number of seconds >= 0, or a string such as '10 s'", parse_timedelta, 0),
    "raise-errors": _FLAG,
    "cost.task-bytes": _BYTES,
    "cost.bandwidth": _SPEED,
    "cost.flops": _quantity(
        "a positive number of operations a second, or a string such as '20 G'", parse_bytes
    ),
    "tiling.tiles-per-worker": _count(1),
    "tiling.min-tile": _BYTES,
    "tiling.max-task": _BYTES,
    "tiling.usual-task": _BYTES,
    "tiling.many-tasks": _quantity("a positive number", float),
    "tiling.max-states": _count(1),
    "tiling.width-budget": _count(1),
    "spill.prefetch": _count(1),
    "spill.keep-clean": _FLAG,
    "spill.dirty": _quantity("a number >= 1", float, 1),
    "plan.disk-bandwidth": _SPEED,
    "plan.device-bandwidth": _SPEED,
    "plan.device-duplex": _SPEED,
    "plan.memory-bandwidth": _SPEED,
    "plan.task-seconds": _quantity(
        "a positive number of seconds, or a string such as '1 ms'", parse_timedelta
    ),
}

# Names ------------------------------------------------------------------------------

#: The settings that were checked last, all of them valid.
_checked: Any = None

#: Names that do not exist and were warned of.
_warned: set[str] = set()


def _leaves(section: object, prefix: str = "") -> Iterator[str]:
    """Names of the settings in a section; dask reads ``_`` and ``-`` in names alike."""
    if not isinstance(section, Mapping):
        return
    for key, value in section.items():
        name = prefix + str(key).replace("_", "-")
        if isinstance(value, Mapping) and name not in _RULES:
            yield from _leaves(value, f"{name}.")
        elif value is not None or not _within(name):
            yield name


def _within(section: str) -> list[str]:
    """Names of the settings of a section, without that of the section."""
    return [name.removeprefix(f"{section}.") for name in _RULES if name.startswith(f"{section}.")]


def _check_sections(name: str) -> None:
    """Refuse a section that is a single value, of which a setting is read."""
    path = "dasktile"
    for part in ("", *name.split(".")[:-1]):
        path = f"{path}.{part}" if part else path
        value = dask.config.get(path, default=None)
        if value is not None and not isinstance(value, Mapping):
            inner = _within(path.removeprefix("dasktile.")) or list(_RULES)
            raise ValueError(
                f"setting {path} is a section and must contain settings"
                f" ({', '.join(inner)}); got {value!r}"
            )


def _suggestion(name: str) -> str:
    """The nearest setting, or else all that there are."""
    close = difflib.get_close_matches(name, _RULES, 1)
    if not close:
        last = {known.rpartition(".")[2]: known for known in _RULES}
        close = [
            last[match] for match in difflib.get_close_matches(name.rpartition(".")[2], last, 1)
        ]
    if close:
        return f"did you mean dasktile.{close[0]}?"
    return f"allowed are {', '.join(_RULES)}"
