"""Checks an installation, and optionally a cluster: what is there, what is off, and why."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import dask.config
from distributed import Client
from distributed.comm.addressing import parse_address
from distributed.comm.registry import get_backend
from distributed.security import Security

from dasktile import config
from dasktile._compat import dask as dask_names
from dasktile._compat.distributed.features import CHECKED_WITH
from dasktile.cluster.clients import client_of
from dasktile.report.formatting import format_names, wrapped
from dasktile.report.tables import text_table
from dasktile.runtime.install import installed
from dasktile.tiling.calibration import Calibration

#: Packages that dasktile needs.
_REQUIRED = ("dask", "distributed", "numpy", "opt_einsum", "psutil", "pyyaml", "rich", "scipy")

#: Optional packages, by the name of their distributions, and their use.
_OPTIONAL = {
    "numba": "compiled searches for orders of tasks",
    "matplotlib": "pictures of plans of orders",
    "bokeh": "the dashboard page /dasktile, plans as pages",
    "cairosvg": "explanations as .png and .pdf",
    "prometheus_client": "counters on the scheduler's /metrics",
    "zarr": "arrays in Zarr files, as those of the demo",
    "xarray": "xarray objects",
    "flox": "group-by of xarray objects",
    "dask-array": "arrays of dask_array (the extra expressions)",
    "cupy": "results on GPUs, spilled to the host",
    "dask-cuda": "LocalCUDACluster and its workers",
}

#: After which no scheduler is assumed to be at an address.
CONNECT_TIMEOUT = "10s"

#: Processes named in a problem at the most, and what stands for the others.
_NAMED = (4, " and {} more")

#: Protocols that need certificates.
_ENCRYPTED = frozenset({"tls", "wss"})

#: Further names of distributions of a package.
_ALSO = {"cupy": ("cupy-cuda12x", "cupy-cuda13x")}


@dataclass(frozen=True)
class Report:
    """The state of an installation.

    Parameters
    ----------
    versions
        Versions of Python, dasktile and the packages that it needs; None for a missing one.
    optional
        The same for optional packages.
    settings
        Settings of dasktile that differ from their defaults.
    unavailable
        Names of Dask that this release lacks, and what is off without them.
    cluster
        The result of :func:`dasktile.runtime.install.installed`, and ``"calibration"``; None
        without a cluster.
    problems
        What should be mended, one sentence each.
    """

    versions: Mapping[str, str | None]
    optional: Mapping[str, str | None]
    settings: Mapping[str, Any]
    unavailable: Mapping[str, str]
    cluster: Mapping[str, Any] | None
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            text_table(
                ("package", "version"),
                [(name, version or "missing") for name, version in self.versions.items()],
                left=2,
            ),
            text_table(
                ("optional", "version", "what it is for"),
                [
                    (name, version or "-", _OPTIONAL[name])
                    for name, version in self.optional.items()
                ],
                left=3,
            ),
            text_table(
                ("setting", "value"),
                [(f"dasktile.{name}", str(value)) for name, value in self.settings.items()],
                left=2,
            ),
            "\n".join(
                wrapped(f"this Dask has no {name}: {use}") for name, use in self.unavailable.items()
            ),
            *(() if self.cluster is None else _cluster_parts(self.cluster)),
            "\n".join(wrapped(f"problem: {problem}") for problem in self.problems)
            or "no problems found",
        ]
        return "\n\n".join(part for part in parts if part)


def examine(client: Client | None = None) -> Report:
    """Check this process and the processes of a cluster.

    Parameters
    ----------
    client
        A client of the cluster, which must not be asynchronous; None to check this process only.

    Raises
    ------
    TypeError
        If `client` is no ``distributed.Client``, or is asynchronous.
    ValueError
        If it is closed.
    """
    if client is not None and client_of(client).asynchronous:
        raise TypeError(
            f"client must not be asynchronous; got {client!r}. Call examine outside of the event"
            " loop, with distributed.Client(address)"
        )
    versions = {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("dasktile", *_REQUIRED)},
    }
    unavailable = {name.path: name.use for name in dask_names.NAMES if _is_missed(name)}
    cluster = None
    if client is not None:
        cluster = client.sync(installed, client)
        known = client.get_metadata(["dasktile"], default=None)
        numbers = known.get("calibration") if isinstance(known, Mapping) else None
        measured = Calibration.from_dict(numbers)
        cluster["calibration"] = None if measured is None else measured.to_dict()
    problems = [
        *_missing(versions),
        *(f"this Dask has no {name}: {use}" for name, use in unavailable.items()),
        *_settings_problems(),
        *(() if cluster is None else _cluster_problems(cluster, versions)),
    ]
    return Report(
        versions,
        {name: _version(name, *_ALSO.get(name, ())) for name in _OPTIONAL},
        dict(_changed_settings()),
        unavailable,
        cluster,
        tuple(problems),
    )


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _is_missed(name: dask_names.Name) -> bool:
    """Whether a name of Dask is missing that this release should have."""
    newer = name.since and dask_names.release(dask_names.VERSION) < dask_names.release(name.since)
    return not (name.exists or newer)


def _missing(versions: Mapping[str, str | None]) -> Iterator[str]:
    for name, version in versions.items():
        if version is None:
            yield f"{name} is not installed here"
    for name, checked in (("dask", dask_names.CHECKED), ("distributed", CHECKED_WITH)):
        version = versions[name]
        if version is not None and not (
            dask_names.release(checked[0])
            <= dask_names.release(version)
            <= dask_names.release(checked[-1])
        ):
            yield (
                f"{name} {version} is not among the releases that dasktile was checked with,"
                f" {checked[0]} to {checked[-1]}"
            )


def _settings_problems() -> Iterator[str]:
    try:
        config.check()
    except (TypeError, ValueError) as error:
        yield str(error)


def _changed_settings() -> Iterator[tuple[str, Any]]:
    def changed(values: Any, defaults: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(values, Mapping):
            for name, value in sorted(values.items()):
                known = defaults.get(name) if isinstance(defaults, Mapping) else None
                yield from changed(value, known, f"{path}.{name}" if path else str(name))
        elif values != defaults:
            yield path, values

    return changed(dask.config.get("dasktile", default={}), config.defaults["dasktile"], "")


# The cluster --------------------------------------------------------------------------


def _processes(cluster: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "scheduler", cluster["scheduler"]
    for address, facts in cluster["workers"].items():
        yield f"worker {address}", facts


def _cluster_problems(cluster: Mapping[str, Any], own: Mapping[str, str | None]) -> Iterator[str]:
    without, other, errors = [], [], []
    for name, facts in _processes(cluster):
        if "error" in facts:
            errors.append(f"{name}: {facts['error']}")
        elif facts["versions"]["dasktile"] is None:
            without.append(name)
        else:
            different = [
                f"{package} {version}"
                for package, version in facts["versions"].items()
                if version != own[package]
            ]
            if different:
                other.append(f"{name} has {', '.join(different)}")
    yield from errors
    if without:
        yield (
            f"dasktile is not installed on {format_names(without, *_NAMED)}; optimised collections"
            " cannot run there. Install it on the scheduler and on every worker"
        )
    if other:
        yield f"versions differ from those here: {format_names(other, *_NAMED)}"
    seen: dict[str, str] = {}
    for _, facts in _processes(cluster):
        seen |= facts.get("unavailable", {})
    yield from seen.values()
    if not cluster["workers"]:
        yield "the cluster has no workers"
    elif not without and not cluster["scheduler"].get("enabled"):
        yield "dasktile is not enabled on the cluster: call dasktile.enable(client)"


def _cluster_parts(cluster: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (
            name,
            *(
                (facts["versions"][package] or "missing") if "versions" in facts else "unknown"
                for package in ("python", "dask", "distributed", "dasktile")
            ),
            "yes" if facts.get("enabled") else "no",
            ("yes" if facts.get("store") else "no") if name != "scheduler" else "",
        )
        for name, facts in _processes(cluster)
    ]
    shown = rows[:20]
    yield text_table(
        ("process", "python", "dask", "distributed", "dasktile", "enabled", "store"),
        shown,
        len(rows),
        left=7,
    )
    measured = Calibration.from_dict(cluster.get("calibration"))
    if measured is None:
        yield wrapped("not calibrated: dasktile.calibrate(client) measures the cluster's speed")
    else:
        bandwidth = (
            ""
            if measured.bandwidth is None
            else f"{measured.bandwidth / 2**20:,.0f} MiB/s between two workers, "
        )
        yield wrapped(
            f"calibrated: {bandwidth}{1000 * measured.task_seconds:.2g} ms a task,"
            f" {measured.flops / 1e9:.3g} Gflop/s a thread"
        )


def connect(address: str) -> Client:
    """A client of the scheduler at an address, which is checked first.

    Parameters
    ----------
    address
        Address of a scheduler.

    Raises
    ------
    ValueError
        If the address or the configuration of its protocol cannot be used.
    OSError
        If there is no scheduler at the address.
    """
    # a client that cannot connect for another reason than time takes long to close
    try:
        _check_address(address)
        return Client(address, set_as_default=False, timeout=CONNECT_TIMEOUT)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"cannot connect to the scheduler {address!r}: {error}") from error


def _check_address(address: str) -> None:
    scheme, location = parse_address(address)
    backend = get_backend(scheme)
    # both raise if the protocol is not installed, or has no such location
    backend.get_connector()
    backend.get_address_host(location)
    try:
        host, port = backend.get_address_host_port(location)
    except NotImplementedError:
        # other protocols have other locations
        pass
    else:
        if not host or not 0 < int(port) < 1 << 16:
            raise ValueError("it must have a host and a port from 1 to 65535")
    security = Security()
    encrypted = scheme in _ENCRYPTED
    if encrypted and security.get_connection_args("client").get("ssl_context") is None:
        raise ValueError(f"{scheme}:// needs the configuration distributed.comm.tls")
    if security.require_encryption and scheme in ("tcp", "ws"):
        raise ValueError(
            f"distributed.comm.require-encryption is set, and {scheme}:// is unencrypted"
        )


def run(address: str | None) -> Report:
    """Check this process, and the cluster of a scheduler's address if there is one.

    Parameters
    ----------
    address
        Address of a scheduler, or None.

    Raises
    ------
    ValueError
        If the address or the configuration of its protocol cannot be used.
    OSError
        If there is no scheduler at the address.
    """
    if address is None:
        return examine()
    with connect(address) as client:
        return examine(client)
