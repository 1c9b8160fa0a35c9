"""Clusters in processes of their own, with TLS, or without the package."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, Scheduler, Worker
from distributed.deploy.subprocess import SubprocessCluster
from distributed.security import Security
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.capture import user_kernels
from dasktile.runtime.install import NAME
from dasktile.runtime.nextuse import USES
from dasktile.runtime.worker.store import TileStore

#: Seconds after which something hangs.  To start a process may take a minute where others wait
#: for the same processors.
LIMIT = 300

A = np.random.default_rng(0).random((400, 300))
PRELOAD = ("--preload", "dasktile.preload")

#: A preload module; what imports the package after it finds that there is none.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dasktile":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def product() -> da.Array:
    a = da.from_array(A, chunks=(50, 300))
    return (a - a.mean(axis=0)).T @ a


def check(actual: Any) -> None:
    np.testing.assert_allclose(actual, (A - A.mean(axis=0)).T @ A)


def computes_as_planned(client: Client) -> None:
    dasktile.metrics(client, reset=True)
    y = dasktile.optimize(product(), workers=client)
    check(client.compute(y).result(timeout=LIMIT))
    measured = dasktile.metrics(client)
    assert measured.placed and not measured.errors and not measured.missing


# Started from the command line ------------------------------------------------------


@contextmanager
def free_port() -> Iterator[int]:
    """A free port that the system gives to no socket that does not name it."""
    with socket.socket() as keeper:
        # on Linux another socket may listen on a port that is bound without listening
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = int(keeper.getsockname()[1])
        if sys.platform != "linux":
            keeper.close()
        yield port


@contextmanager
def dask_command(*arguments: str, path: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    here = Path(__file__).parents[2]
    search_path = os.pathsep.join(map(str, [here] if path is None else [path, here]))
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        env={**os.environ, "PYTHONPATH": search_path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        children = []
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(LIMIT)
        for child in children:  # of a nanny that was killed
            if child.is_running():
                child.kill()


def scheduler(port: int, *arguments: str, path: Path | None = None) -> Any:
    options = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    return dask_command("scheduler", *options, *arguments, path=path)


def worker(port: int, name: str, *arguments: str, path: Path | None = None) -> Any:
    options = ("--name", name, "--nthreads", "1", "--memory-limit", "1GiB", "--no-dashboard")
    return dask_command("worker", f"tcp://127.0.0.1:{port}", *options, *arguments, path=path)


def plugin_names(client: Client) -> tuple[bool, dict[str, bool]]:
    """Whether the plugins are on the scheduler and on each worker."""
    of_scheduler = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
    of_workers = client.run(lambda dask_worker: [*dask_worker.plugins])
    return NAME in of_scheduler, {each: NAME in names for each, names in of_workers.items()}


@pytest.mark.slow
def test_preloaded_and_the_scheduler_is_killed() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(free_port())
        first = stack.enter_context(scheduler(port, *PRELOAD))
        stack.enter_context(worker(port, "0", *PRELOAD))
        alone = stack.enter_context(worker(port, "1", "--no-nanny", *PRELOAD))
        with Client(f"tcp://127.0.0.1:{port}", timeout=LIMIT) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            assert plugin_names(client) == (True, dict.fromkeys(client.nthreads(), True))
            computes_as_planned(client)
            dasktile.enable(client)  # is no harm
            computes_as_planned(client)
        first.kill()
        first.wait(LIMIT)
        alone.wait(LIMIT)
        stack.enter_context(scheduler(port, *PRELOAD))
        stack.enter_context(worker(port, "1", "--no-nanny", *PRELOAD))
        stack.enter_context(worker(port, "2", "--death-timeout", str(LIMIT), *PRELOAD))
        with Client(f"tcp://127.0.0.1:{port}", timeout=LIMIT) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            assert plugin_names(client) == (True, dict.fromkeys(client.nthreads(), True))
            computes_as_planned(client)
            kill_one_with_a_nanny(client)
            assert plugin_names(client) == (True, dict.fromkeys(client.nthreads(), True))
            computes_as_planned(client)


def kill_one_with_a_nanny(client: Client) -> None:
    """Kill a worker and wait for its replacement."""

    def parent(dask_worker: Worker) -> bool:
        return dask_worker.nanny is not None

    def known(dask_scheduler: Scheduler) -> set[str]:
        return {ws.server_id for ws in dask_scheduler.workers.values()}

    before = client.run_on_scheduler(known)
    victim = next(address for address, nanny in client.run(parent).items() if nanny)
    psutil.Process(client.run(os.getpid, workers=[victim])[victim]).kill()
    deadline = time.monotonic() + LIMIT
    while True:
        now = client.run_on_scheduler(known)
        if len(now) == len(before) and now != before:
            return
        assert time.monotonic() < deadline, "no nanny started it again"
        time.sleep(0.05)


@pytest.mark.parametrize("lacking", [pytest.param("scheduler", marks=pytest.mark.slow), "worker"])
def test_without_the_package(lacking: str, tmp_path: Path) -> None:
    (tmp_path / "without_it.py").write_text(WITHOUT)
    missing = ("--preload", "without_it")
    with (
        free_port() as port,
        scheduler(port, *(missing if lacking == "scheduler" else ()), path=tmp_path),
        worker(port, "0", "--no-nanny", *(missing if lacking == "worker" else ()), path=tmp_path),
        worker(port, "1", "--no-nanny", path=tmp_path),
        Client(f"tcp://127.0.0.1:{port}", timeout=LIMIT) as client,
    ):
        client.wait_for_workers(2, timeout=LIMIT)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dasktile.enable(client)
        messages = [str(each.message) for each in caught if "dasktile" in str(each.message)]
        assert len(messages) == 1
        assert "cannot be imported by" in messages[0]
        assert "nstall dasktile" in messages[0]
        check(product().compute())
        if lacking == "worker":
            measured = dasktile.metrics(client)
            assert not measured.errors
            assert len(measured.missing) == len(measured.workers) == 1
        else:
            with pytest.raises(RuntimeError, match=r"dasktile\.enable\(client\)"):
                dasktile.metrics(client)
        dasktile.disable(client)
        check(product().compute())


# Secrets ----------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    """A file with a self-signed certificate and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        # Python has nothing that makes certificates, and one that is kept here would expire
        pytest.skip("needs the command openssl")
    key, signed, both = (tmp_path / name for name in ("key.pem", "cert.pem", "both.pem"))
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(signed)),
        ],
        check=True,
        capture_output=True,
        timeout=LIMIT,
    )
    both.write_text(key.read_text() + signed.read_text())
    return str(both)


def test_encrypted(certificate: str) -> None:
    roles = {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    security = Security(require_encryption=True, tls_ca_file=certificate, **roles)

    @gen_cluster(
        client=True,
        scheduler="tls://127.0.0.1",
        security=security,
        nthreads=[("tls://127.0.0.1", 1)] * 2,
        timeout=LIMIT,
    )
    async def main(c: Client, s: Scheduler, *workers: Worker) -> None:
        assert all(address.startswith("tls://") for address in (s.address, *s.workers))
        await dasktile.enable(c)
        check(await c.compute(dasktile.optimize(product(), workers=2)))
        measured = await dasktile.metrics(c)
        assert measured.placed and measured.bytes_received
        assert not measured.errors and not measured.missing
        await dasktile.disable(c)

    main()


# What enable adds, and disable takes away -------------------------------------------


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections(kind="inet")
    return {tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN}


def handlers_and_ports(s: Scheduler, workers: tuple[Worker, ...]) -> dict[str, Any]:
    """The handlers of the scheduler and of the workers, and the ports of this process."""
    return {
        "handlers": [{**server.handlers} for server in (s, *workers)],
        "stream handlers": [{**server.stream_handlers} for server in (s, *workers)],
        "ports": listening(),
    }


def plugin_state(s: Scheduler, workers: tuple[Worker, ...]) -> dict[str, Any]:
    """The state of a cluster that plugins may change."""
    return {
        "plugins": [*s.plugins],
        "worker plugins": [*s.worker_plugins],
        "nanny plugins": [*s.nanny_plugins],
        "of workers": [[*each.plugins] for each in workers],
        "worker metrics": [[*each.metrics] for each in workers],
        "extensions": [[*server.extensions] for server in (s, *workers)],
        "policies": sorted(type(each).__name__ for each in s.extensions["amm"].policies),
        "metadata": {**s.task_metadata},
        "pages": [*s.http_application.applications],
        "periodic": [[*server.periodic_callbacks] for server in (s, *workers)],
        "events": [*s._broker._topics],
        "attributes": [*vars(s)],
    }


def handler_names(handlers: dict[str, Any]) -> dict[str, Any]:
    """Names of the handlers instead of the handlers themselves, without dasktile's message."""
    names = [sorted(each) for each in handlers["handlers"]]
    streams = [sorted(set(each) - {USES}) for each in handlers["stream handlers"]]
    return {**handlers, "handlers": names, "stream handlers": streams}


@pytest.mark.parametrize("placement, spilling", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("dashboard", [True, False])
def test_leaves_a_cluster_as_it_was(placement: bool, spilling: bool, dashboard: bool) -> None:
    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        timeout=LIMIT,
        scheduler_kwargs={"dashboard": dashboard},
    )
    async def main(c: Client, s: Scheduler, *workers: Worker) -> None:
        await c.run(int)  # opens what is opened once
        check(await c.compute(product()))
        doors, before = handlers_and_ports(s, workers), plugin_state(s, workers)
        data = [worker.data for worker in workers]
        await dasktile.enable(c, placement=placement, spilling=spilling)
        assert NAME in s.plugins and NAME in s.worker_plugins
        assert [isinstance(worker.data, TileStore) for worker in workers] == [spilling] * 2
        assert handler_names(handlers_and_ports(s, workers)) == handler_names(doors)
        assert spilling or handlers_and_ports(s, workers) == doors
        check(await c.compute(dasktile.optimize(product(), workers=2)))
        assert handler_names(handlers_and_ports(s, workers)) == handler_names(doors)
        await dasktile.disable(c)
        assert all(worker.data is one for worker, one in zip(workers, data, strict=True))
        assert handlers_and_ports(s, workers)["handlers"] == doors["handlers"]
        # what the scheduler has sent by then is heard, and passed over
        ignored = [worker.stream_handlers.pop(USES, None) for worker in workers]
        assert [one is not None for one in ignored] == [spilling] * 2
        assert handlers_and_ports(s, workers) == doors
        assert plugin_state(s, workers) == before
        check(await c.compute(product()))

    main()


def _declared(function: Any, dask_scheduler: Any = None) -> Any:
    # on the scheduler
    from dasktile.capture.user_kernels import is_registered_here, lookup

    # functions of a module are not sent, but imported
    return lookup(function), lookup(textwrap.indent), is_registered_here(textwrap.indent)


def test_declarations_reach_the_scheduler() -> None:
    def ordered(block: np.ndarray) -> np.ndarray:
        return np.sort(block, axis=1)

    ordered.__module__ = "__main__"
    for function in (ordered, textwrap.indent):
        dasktile.register_kernel(function, whole_axes=1)
    use = user_kernels.lookup(ordered)
    try:
        with SubprocessCluster(n_workers=1) as cluster, Client(cluster) as client:
            asked = functools.partial(_declared, ordered)
            assert client.run_on_scheduler(asked) == (use, None, False)
            dasktile.enable(client)
            assert client.run_on_scheduler(asked) == (use, use, False)
    finally:
        del user_kernels._registered[id(textwrap.indent)]
        del textwrap.indent.__dict__[user_kernels._ATTRIBUTE]
