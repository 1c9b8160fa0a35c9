"""Which features are unavailable, because a name is missing or has another signature."""

from __future__ import annotations

import inspect
import logging
import pkgutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

from dasktile._compat.distributed.features import CHECKED_WITH, WITHOUT, Feature, Internal
from dasktile._compat.distributed.pages import dashboard_of
from dasktile._compat.distributed.table import PROCESS, SCHEDULER, WORKER

if TYPE_CHECKING:
    from distributed import Scheduler, Worker

logger = logging.getLogger("dasktile")

#: Features for which this process has logged a warning.
_warned: set[Feature] = set()


def lookup(internal: Internal, objects: Mapping[str, Any]) -> Any:
    """The object of a name of the table.

    Parameters
    ----------
    internal
        The name.
    objects
        Objects by name; the first part of an owner may be one of these names.

    Raises
    ------
    Exception
        If there is no object of that name.
    """
    if internal.owner.startswith("distributed"):
        owner = pkgutil.resolve_name(internal.owner)
    else:
        first, *rest = internal.owner.split(".")
        owner = objects[first]
        for part in rest:
            owner = getattr(owner, part)
    if isinstance(owner, Mapping):
        return owner[internal.name]
    items = owner if isinstance(owner, (set, frozenset)) else get_args(owner)
    if items:
        return {item: item for item in items}[internal.name]
    return getattr(owner, internal.name)


def problem(internal: Internal, objects: Mapping[str, Any]) -> str | None:
    """Why a name that is needed cannot be used; None if it can.

    Parameters
    ----------
    internal
        The name.
    objects
        As for :func:`lookup`; the value is None for objects that a server does not have.
    """
    if internal.instead:
        return None
    for each in (internal.owner.split(".")[0], internal.only_with):
        if objects.get(each, True) is None:
            return None
    try:
        value = lookup(internal, objects)
    except Exception:
        return f"there is no {internal}"
    try:
        if internal.signature and parameters(value) != internal.signature:
            return f"{internal} has the parameters {parameters(value)}, not {internal.signature}"
        if internal.call is not None and not accepts(value, internal.call):
            return (
                f"{internal} has the parameters {parameters(value)}, which ({internal.call}) lacks"
            )
    except (TypeError, ValueError):
        return f"{internal} cannot be called"
    return None


def parameters(function: Any) -> str:
    """The parameters of a function, without annotations, and with ``...`` for defaults."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    return str(
        signature.replace(
            parameters=[
                each.replace(annotation=empty, default=empty if each.default is empty else ...)
                for each in signature.parameters.values()
            ],
            return_annotation=inspect.Signature.empty,
        )
    ).replace("=Ellipsis", "=...")


def accepts(function: Any, call: str) -> bool:
    """Whether a function accepts the arguments of ``Internal.call``; True if unknown."""
    arguments = [each for each in call.split(", ") if each]
    keywords = {each.removesuffix("=") for each in arguments if each.endswith("=")}
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True  # a function written in C
    try:
        signature.bind(*range(len(arguments) - len(keywords)), **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def check(
    table: Mapping[Feature, tuple[Internal, ...]],
    objects: Mapping[str, Any],
    features: Collection[Feature] | None = None,
) -> dict[Feature, str]:
    """Features that are unavailable, each with the reason.  Never raises.

    Logs a warning for each, once per process.

    Parameters
    ----------
    table
        One of `SCHEDULER`, `WORKER` and `PROCESS`.
    objects
        As for :func:`problem`.
    features
        The features to check, by default all of the table.
    """
    unavailable = {}
    for feature in table if features is None else features:
        reasons = [reason for each in table[feature] if (reason := problem(each, objects))]
        if reasons:
            unavailable[feature] = _message(feature, reasons[0])
            if feature not in _warned:
                _warned.add(feature)
                logger.warning("%s", unavailable[feature])
    return unavailable


def _message(feature: Feature, reason: str) -> str:
    return (
        f"dasktile works without its feature {feature.value!r}: {WITHOUT[feature]}. In distributed"
        f" {version('distributed')} {reason}; dasktile was checked with distributed"
        f" {' and '.join(CHECKED_WITH)}"
    )


# The checks of dasktile ----------------------------------------------------------------


def check_scheduler(scheduler: Scheduler) -> dict[Feature, str]:
    """Features of the scheduler's plugin that are unavailable, each with the reason."""
    objects: dict[str, Any] = {"scheduler": scheduler, "dashboard": None}
    for name in ("stealing", "amm"):
        objects[name] = (getattr(scheduler, "extensions", None) or {}).get(name)
    with suppress(AttributeError):  # the check reports this as well
        objects["dashboard"] = dashboard_of(scheduler)
    return check(SCHEDULER, objects)


def check_worker(worker: Worker, spills: bool) -> dict[Feature, str]:
    """Features of the worker's plugin that are unavailable, each with the reason.

    Parameters
    ----------
    worker
        A worker that runs or is starting.
    spills
        False where the worker keeps the mapping of its results.
    """
    return check(WORKER, {"worker": worker}, None if spills else [Feature.METRICS])


def check_enable(scheduler: Scheduler) -> str | None:
    """The reason why plugins cannot be added to a scheduler; None if they can."""
    return check(PROCESS, {"scheduler": scheduler}, [Feature.ENABLE]).get(Feature.ENABLE)


def check_calibration(scheduler: Scheduler) -> str | None:
    """The reason why a scheduler cannot keep measured values; None if it can."""
    unavailable = check(PROCESS, {"scheduler": scheduler}, [Feature.CALIBRATION])
    return unavailable.get(Feature.CALIBRATION)


def check_emulated() -> str | None:
    """The reason why emulated arrays cannot be sent to other workers; None if they can."""
    return check(PROCESS, {}, [Feature.EMULATED]).get(Feature.EMULATED)
