"""Default settings, registered with ``dask.config`` when the package is imported.

Apart from :mod:`dasktile.config`, which needs modules that take long to import: the command
``dask`` imports only this module and the command line of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml

#: Default settings, from ``dasktile.yaml``.
defaults: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("dasktile.yaml").read_text(encoding="utf-8")
)

dask.config.update_defaults(defaults)
