"""The benchmark on clusters runs, its counters are right, and its network has the given rate."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

pytest.importorskip("zarr", minversion="3")

import dasktile
from benchmarks import network, spilling, windows
from benchmarks.hosted import Hosted
from benchmarks.meters import MODES, Cluster, Measured, Reading, fingerprint, same
from benchmarks.network import Link
from benchmarks.peer import Peer
from benchmarks.placement import FLOOR, main, summary
from benchmarks.sized import crossed, opened, sized, write
from benchmarks.spill_device import has_dask_cuda


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("name", sized())
def test_every_workload_computes(name: str, tmp_path: Path) -> None:
    workload = sized(0.02)[name]
    write(workload, tmp_path)
    arrays = opened(workload, tmp_path, da)
    for input_name, source in workload.inputs.items():
        assert arrays[input_name].chunksize == source.chunks
    for result in workload.build(arrays, da):
        assert np.isfinite(result.compute(scheduler="sync")).all()


def test_sizes_grow_in_proportion() -> None:
    for name, workload in sized(0.5).items():
        small, large = (
            sum(source.nbytes for source in sized_workload.inputs.values())
            for sized_workload in (workload, sized(1)[name])
        )
        assert 1.5 <= large / small <= 4.5, name
        assert small < 1.2e9, name


def test_crossed_chunks() -> None:
    assert crossed((100, 80), (10, 80)) == (100, 8)
    assert crossed((100, 80), (10, 20)) == (25, 8)
    assert crossed((100, 100), (50, 50)) == (100, 25)
    assert crossed((100,), (10,)) == (10,)


def test_link_transfers_messages_in_sequence() -> None:
    async def two_senders() -> float:
        receiver = Link(1e6)

        async def transfer(sender: Link) -> None:
            await sender.send(50_000)
            await receiver.receive(50_000)

        started = time.perf_counter()
        await asyncio.gather(transfer(Link(1e6)), transfer(Link(1e6)))
        return time.perf_counter() - started

    async def one_sender() -> float:
        sender, receivers = Link(1e6), [Link(1e6), Link(1e6)]

        async def transfer(receiver: Link) -> None:
            await sender.send(50_000)
            await receiver.receive(50_000)

        started = time.perf_counter()
        await asyncio.gather(*map(transfer, receivers))
        return time.perf_counter() - started

    async def one_transfer() -> float:
        sender, receiver = Link(1e6), Link(1e6)
        started = time.perf_counter()
        await sender.send(100_000)
        await receiver.receive(100_000)
        return time.perf_counter() - started

    for scenario in (two_senders, one_sender, one_transfer):
        # other load of the machine may add a delay
        assert 0.099 <= asyncio.run(scenario()) < 0.6, scenario.__name__


def test_bytes_of_shuffle_messages() -> None:
    shard = np.zeros((10, 10))
    assert network.nbytes([((0, 1), [((0,), ((1,), shard)), ((0,), ((1,), shard))])]) == 1600
    assert network.nbytes(b"12345") == 5


def test_fingerprints() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((200, 300)) + 1j * rng.random((200, 300))
    expected = json.loads(json.dumps([fingerprint(x)]))
    assert same(expected, [fingerprint(x * (1 + 1e-12))])
    wrong = x.copy()
    wrong[7] = 0
    assert not same(expected, [fingerprint(wrong)])
    assert not same(expected, [fingerprint(x.T)])
    assert not same(expected, [])


def _cell(engine: str, workload: str, moved: int, seconds: float) -> dict[str, object]:
    reading = Reading(moved=moved, tasks=10, memory=100, cpu_seconds=1.0)
    measured = Measured.of([reading, Reading()], seconds, 0.0).to_dict()
    where = {"workers": 2, "mode": "free", "workload": workload, "engine": engine}
    return {**where, **measured, "same": True}


def test_summary_when_no_bytes_are_moved() -> None:
    cells = [
        _cell("stock", "none", 0, 1.0),
        _cell("dasktile", "none", 0, 2.0),
        _cell("stock", "saved", int(4 * FLOOR), 1.0),
        _cell("dasktile", "saved", 0, 1.0),
        _cell("stock", "failed", 1, 1.0),
        {"workers": 2, "mode": "free", "workload": "failed", "engine": "dasktile", "error": "x"},
    ]
    group = summary(cells)["2 workers, free"]
    assert group["workloads"] == 2
    assert group["failed"] == ["dasktile failed"]
    assert group["ratios"]["moved"] == pytest.approx(4)
    assert group["floored"]["moved"] == ["saved"]
    assert group["ratios"]["seconds"] == pytest.approx(0.5**0.5)
    assert group["slower"] == {"none": 2.0}
    assert not group["more_moved"]


def test_summary_of_spilling() -> None:
    def cell(engine: str, workload: str, read: float, written: float) -> dict[str, object]:
        numbers = {"read": read, "written": written, "moved": read + written}
        times = {"late": 0.0, "in_data": 0.1, "seconds": 1.0}
        measurements = {**numbers, **times, "traced": read, "least": 8e6}
        where = {"workload": workload, "mode": "lazy", "pressure": "heavy", "engine": engine}
        return {**where, **measurements, "same": True, "rounds": [measurements]}

    cells = [
        cell("stock", "saved", 40e6, 40e6),
        cell("dasktile", "saved", 10e6, 10e6),
        cell("stock", "more", 10e6, 0),
        cell("dasktile", "more", 8e6, 12e6),
    ]
    group = spilling.summary(cells)["lazy, heavy"]
    assert group["ratios"]["moved"] == pytest.approx(2**0.5)
    assert group["ratios"]["late"] == 1
    assert group["more"]["moved"] == {"more (lazy, heavy)": pytest.approx(2)}
    assert not group["more"]["read"]
    assert group["to_least"]["saved (lazy, heavy)"] == pytest.approx(1.25)
    assert not group["different"]


@pytest.mark.slow
def test_spilling_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "spilling.json"
    options = ["--rounds", "1", "--scale", "0.2", "--disk", "400MB", "--out", str(out)]
    where = ["--workloads", "anomalies", "--modes", "persisted", "lazy", "--pressure", "heavy"]
    assert spilling.main([*where, "--processes", *options]) == 0, capsys.readouterr().out
    results = json.loads(out.read_text())
    assert len(results["cells"]) == 4
    for cell in results["cells"]:
        assert cell["same"] and cell["read"] > 0 and cell["in_data"] > 0
        assert cell["held"] <= 1.2 * cell["budget"]
        assert ("least" in cell) == (cell["engine"] == "dasktile")


def test_spilling_benchmark_runs_on_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dask_cuda")
    out = tmp_path / "spilling.json"
    where = ["--workloads", "anomalies", "--device", "--host-memory", "25MB"]
    options = ["--rounds", "1", "--scale", "0.2", "--out", str(out)]
    assert spilling.main([*where, *options]) == 0, capsys.readouterr().out
    theirs, ours = json.loads(out.read_text())["cells"]
    assert (theirs["engine"], ours["engine"]) == ("dask-cuda", "dasktile")
    for cell in (theirs, ours):
        assert cell["same"] and cell["written"] > 0 and cell["on_disk"] > 0
        # the budget, and the results of two running tasks
        assert cell["held"] <= 1.3 * cell["budget"]
    assert ours["least"] <= ours["read"] * 1.001
    assert ours["moved"] <= theirs["moved"]


@pytest.mark.parametrize(
    "options",
    [
        ["--device", "--processes"],
        ["--host-memory", "1MB"],
        pytest.param(
            ["--device"],
            marks=pytest.mark.skipif(has_dask_cuda(), reason="dask-cuda is installed"),
        ),
    ],
)
def test_spilling_benchmark_rejects_options(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        spilling.main([*options, "--out", str(tmp_path / "spilling.json")])
    assert "--device" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_transfers_have_the_given_rate() -> None:
    unlimited, limited = network.check(50e6, size=20_000_000)
    assert 0.4 <= limited < 0.4 + max(0.5, 3 * unlimited)


@pytest.mark.slow
def test_meters_count_bytes_moved() -> None:
    with Cluster(2) as cluster:
        first, second = cluster.addresses
        with cluster.client.as_current():
            x = cluster.client.submit(np.ones, 1000, workers=[first])
            y = cluster.client.submit(np.sum, x, workers=[second])
            cluster.start()
            assert y.result() == 1000
            readings = cluster.stop()
            # the bytes may have been moved before counting started
            assert [reading.moved for reading in readings] in ([0, 8000], [0, 0])
            a = cluster.persist([da.ones((1200, 1200), chunks=(300, 1200)) + 0])
            measured, kept = cluster.measure([a[0].rechunk((1200, 300), method="p2p")])
            # half of the shards change workers; distributed may also move blocks to join them
            assert 1200 * 1200 * 8 // 2 <= measured.moved <= 1200 * 1200 * 8 * 2
            assert measured.tasks >= 7
            assert cluster.values(kept)[0]["largest"] == 1


@pytest.mark.slow
def test_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found" / "placement.json"
    options = ["--rounds", "1", "--size", "0.02", "--network", "500MB", "--out", str(out)]
    status = main(
        ["--workers", "2", "--workloads", "gram_rows", "fft2", "--modes", *MODES, *options]
    )
    assert status == 0, capsys.readouterr().out
    results = json.loads(out.read_text())
    assert results["settings"]["network"] == 500_000_000
    assert len(results["cells"]) == 2 * len(MODES) * 2
    for cell in results["cells"]:
        assert "error" not in cell and cell["same"], cell
        assert cell["tasks"] > 0 and cell["seconds"] > 0
        assert (cell["read"] > 0) == (cell["mode"] == "free")
        assert ("predicted" in cell) == (cell["engine"] == "dasktile")
    groups = results["summary"]["stock"]
    assert list(groups) == [f"2 workers, {mode}" for mode in MODES]


@pytest.mark.slow
def test_peer_answers(tmp_path: Path) -> None:
    # Dask replaces the peer, which is not installed here
    workload = sized(0.02)["attention"]
    write(workload, tmp_path)
    with Peer(sys.executable, 2, None, 0.02, module="dask.array") as peer:
        assert peer.about["package"] == "dask"
        cell = peer.cell("attention", "persisted", tmp_path, values=True)
        assert cell["tasks"] > 0 and cell["values"]
        failed = peer.cell("attention", "free", tmp_path / "nowhere", values=False)
        assert "error" in failed
        assert peer.cell("attention", "free", tmp_path, values=False)["read"] > 0


def test_spilling_is_active_on_clusters_with_meters() -> None:
    with Hosted("dasktile", 1) as engine:
        counts = dasktile.metrics(engine.cluster.client)
        # bytes on each tier: empty for a worker that keeps distributed's own mapping
        assert [bool(worker.on) for worker in counts.workers.values()] == [True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_moving_windows() -> None:
    names = ["std", "construct"]
    found = windows.run(names, rows=500, workers=2, rounds=1)
    assert [(row["workload"], row["engine"]) for row in found] == [
        (name, engine) for name in names for engine in windows.ENGINES
    ]
    for stock, planned in (found[:2], found[2:]):
        assert planned["tasks"] < stock["tasks"] / 10
        assert planned["spilled"] == 0 and planned["received"] < 500_000
