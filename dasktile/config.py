"""Settings from ``dask.config``, and the values that the pure modules are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes

from dasktile.tiling.seconds import Calibration
from dasktile.tiling.settings import Settings

#: Default settings, from ``dasktile.yaml``.
defaults: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("dasktile.yaml").read_text(encoding="utf-8")
)

dask.config.update_defaults(defaults)

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
        tiles_per_worker=_count("tiling.tiles-per-worker"),
        min_tile=int(positive("tiling.min-tile")),
        max_task=int(positive("tiling.max-task")),
        usual_task=int(positive("tiling.usual-task")),
        max_states=_count("tiling.max-states"),
        width_budget=_count("tiling.width-budget"),
    )


def spill_settings() -> dict[str, Any]:
    """Options of the residency of tiles, from ``dask.config``.

    Raises
    ------
    ValueError
        If a setting is invalid, naming it.
    """
    clean = setting("spill.keep-clean")
    if not isinstance(clean, bool):
        raise ValueError(f"setting dasktile.spill.keep-clean must be true or false; got {clean!r}")
    dirty = positive("spill.dirty")
    if dirty < 1:
        raise ValueError(f"setting dasktile.spill.dirty must be at least 1; got {dirty!r}")
    return {"keep_clean": clean, "prefetch": _count("spill.prefetch"), "dirty_factor": dirty}


def bundle_tasks() -> int:
    """Tasks that one bundle runs at most, from ``dask.config``; 0 for no bundles.

    Raises
    ------
    ValueError
        If the setting is invalid.
    """
    return _count("bundle", least=0)


def setting(name: str) -> Any:
    """The value of ``dasktile.<name>``."""
    return dask.config.get(f"dasktile.{name}")


def _measured(name: str, value: float | None) -> float:
    """The value of a setting, or the measured value if the setting has its default."""
    own = positive(name)
    section, _, key = name.partition(".")
    if value is None or own != _number(defaults["dasktile"][section][key]):
        return own
    least, most = _LIMITS[name]
    return min(max(value, least), most)


def positive(name: str) -> float:
    """A setting that is a number above 0, or a string such as ``"2 GB"``.

    Raises
    ------
    ValueError
        If it is not, naming it.
    """
    value = setting(name)
    number = _number(value)
    if not 0 < number < float("inf"):
        raise ValueError(
            f"setting dasktile.{name} must be a positive number, or a string such as"
            f" '2 GB'; got {value!r}"
        )
    return number


def _number(value: object) -> float:
    """A number, also from a string such as ``"2 GB"``; 0 if the value is neither."""
    number = 0.0
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            # YAML 1.1 reads 2e9 as a string
            number = float(value)
        except ValueError:
            number = _parsed(str(value))
    return number


def _parsed(text: str) -> float:
    try:
        return float(parse_bytes(text))
    except ValueError:
        return 0.0


def _count(name: str, least: int = 1) -> int:
    value = setting(name)
    if isinstance(value, str) and value.replace("_", "").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"setting dasktile.{name} must be an integer >= {least}; got {value!r}")
    return value
