"""Settings: their defaults, registered with dask, and how the pure modules get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes

from dasktile.tiling.settings import Settings

#: What ``dasktile.yaml`` beside this file says.
defaults: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("dasktile.yaml").read_text(encoding="utf-8")
)

dask.config.update_defaults(defaults)


def tiling_settings() -> Settings:
    """Constants of the cost model and limits of the search, from ``dask.config``.

    Raises
    ------
    ValueError
        Where a setting is not what it should be, naming it.
    """
    return Settings(
        task_bytes=_positive("cost.task-bytes"),
        work_per_second=_positive("cost.flops"),
        bytes_per_second=_positive("cost.bandwidth"),
        tiles_per_worker=_count("tiling.tiles-per-worker"),
        min_tile=int(_positive("tiling.min-tile")),
        max_task=int(_positive("tiling.max-task")),
        max_states=_count("tiling.max-states"),
        width_budget=_count("tiling.width-budget"),
    )


def setting(name: str) -> Any:
    """The value of ``dasktile.<name>``."""
    return dask.config.get(f"dasktile.{name}")


def _positive(name: str) -> float:
    value = setting(name)
    number = 0.0
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            # "2e9" is a string to YAML 1.1; "0.8 GB" is one to everybody.
            number = float(value)
        except ValueError:
            number = _parsed(str(value))
    if not 0 < number < float("inf"):
        raise ValueError(
            f"setting dasktile.{name} must be a positive number, or a string such as"
            f" '2 GB'; got {value!r}"
        )
    return number


def _parsed(text: str) -> float:
    try:
        return float(parse_bytes(text))
    except ValueError:
        return 0.0


def _count(name: str) -> int:
    value = setting(name)
    if isinstance(value, str) and value.replace("_", "").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"setting dasktile.{name} must be an integer >= 1; got {value!r}")
    return value
