"""Bytes are received under the layer of the plan that predicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dasktile
from dasktile.report.layer_names import short_names
from dasktile.runtime.install import enable
from dasktile.runtime.metrics import metrics
from dasktile.runtime.scheduler.rows import LayerGraph, predicted_rows, rows

#: Seconds after which something hangs.
LIMIT = 300


def tiled(rows: int, columns: int, chunks: tuple[int, int], seed: int = 0) -> Any:
    return da.random.default_rng(seed).random((rows, columns), chunks=chunks)


def in_memory(rows: int, columns: int, chunks: tuple[int, int]) -> Any:
    return da.from_array(np.random.default_rng(0).random((rows, columns)), chunks=chunks)


def product() -> Any:
    return (in_memory(400, 600, (20, 600)) + 1) @ in_memory(600, 400, (20, 400))


def centred() -> Any:
    x = tiled(400, 400, (40, 40))
    return x - x.mean(axis=0)


def chained() -> Any:
    x, y = tiled(400, 400, (40, 40)), tiled(400, 400, (40, 40), seed=1)
    product = x @ y
    return (product - product.mean(axis=0)) @ x.T


def gram() -> Any:
    a = in_memory(400, 600, (20, 600))
    return a.T @ a


def rechunked() -> Any:
    x = tiled(400, 400, (40, 40)).rechunk((40, 400))
    return da.fft.fft(da.fft.fft(x, axis=1).rechunk((400, 40)), axis=0)


def two_products() -> Any:
    c = in_memory(400, 600, (20, 600)) @ in_memory(600, 400, (20, 400))
    return c @ c.T


def normalised() -> Any:
    x = tiled(400, 400, (40, 40))
    return ((x - x.mean(axis=0)) / x.std(axis=0)).rechunk((400, 40)).sum()


#: Expressions, tasks of a bundle, and the rows of the expression in `metrics`.
ROWS = [
    (product, 0, ["matmul"]),
    (product, 32, ["matmul"]),
    (centred, 0, ["mean", "sub"]),
    (centred, 32, ["mean", "sub"]),
    (chained, 0, ["matmul", "mean", "sub", "matmul 2"]),
    (chained, 32, ["matmul", "mean", "sub", "matmul 2"]),
    (gram, 0, ["array", "matmul"]),
    (gram, 32, ["array", "matmul"]),
    (rechunked, 32, ["fft"]),
    (two_products, 0, ["matmul", "matmul 2"]),
    (two_products, 32, ["matmul", "matmul 2"]),
    (normalised, 0, ["mean", "var", "sub", "truediv", "sum"]),
    # the subtraction and the division are one layer
    (normalised, 32, ["mean", "var", "truediv", "sum"]),
]


@pytest.fixture(scope="module")
def four_workers() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        enable(client)
        yield client


@pytest.mark.parametrize(("build", "bundle", "rows_of_metrics"), ROWS)
def test_bytes_are_received_under_the_layer_that_predicts_them(
    four_workers: Client, build: Callable[[], Any], bundle: int, rows_of_metrics: list[str]
) -> None:
    expression = build()
    with dask.config.set({"dasktile.bundle": bundle}):
        metrics(four_workers, reset=True)
        explanation = dasktile.explain(expression, workers=four_workers)
        explained = explanation.bytes_after
        result = dasktile.optimize(expression, workers=four_workers).persist()
        wait(result, timeout=LIMIT)
        measured = metrics(four_workers)
        by_row = metrics(four_workers, explanation=explanation)
    assert measured.errors == 0
    names = short_names(measured.layers)
    moved = {
        names[layer]: (counts.predicted, counts.received)
        for layer, counts in measured.layers.items()
        if counts.predicted or counts.received
    }
    assert list(moved) == rows_of_metrics
    assert measured.bytes_predicted == explained
    compared = dict(moved)
    if build is normalised and bundle:
        # partial means and variances of a tile are sent together, and count for the first of them
        mean, var = compared.pop("mean"), compared.pop("var")
        compared["mean, var"] = (mean[0] + var[0], mean[1] + var[1])
    if build is two_products and bundle:
        # tasks of the second product read tiles of the first one where these are, without a copy
        compared = {"both": tuple(map(sum, zip(*moved.values(), strict=True)))}
    for predicted, received in compared.values():
        # partial results of a mean or a variance are dicts, which take some bytes
        assert received == pytest.approx(predicted, rel=0.05 if predicted > 100_000 else 0.5)
    lines = str(measured).splitlines()
    assert {name for name in moved if any(line.startswith(f"{name} ") for line in lines)} == {
        *moved
    }
    # every layer with bytes is one of the explanation's rows, with the bytes that it shows
    assert set(moved) <= {names[layer] for layer in by_row.rows}
    for row, counts in by_row.by_row.items():
        if row.startswith("bundle") and not (counts.predicted or counts.received):
            # a worker may not have released the tuple of a bundle yet
            continue
        number, _, operation = row.partition(" ")
        node = explanation.nodes[int(number)]
        assert operation == node.op
        # bytes of arrays that keep their chunks count for a reader
        if counts.predicted and build not in (chained, normalised):
            assert counts.predicted == node.bytes_after
    assert "\nrow " in str(by_row)


class Nowhere:
    """What stores nothing."""

    shape, dtype = (599, 599), np.dtype(float)

    def __setitem__(self, index: Any, value: Any) -> None: ...


def test_bundles_that_dask_has_fused_with_another_task_count_once(four_workers: Client) -> None:
    a, b = (da.random.default_rng(seed).random((600, 600), chunks=200) for seed in range(2))
    difference = a[1:, 1:] - b[:-1, :-1]
    with dask.config.set(array_optimize=dasktile.array_optimize):
        metrics(four_workers, reset=True)
        da.store(difference, Nowhere(), lock=False)
    explanation = dasktile.explain(difference, workers=four_workers, keep_chunks=True)
    assert metrics(four_workers).bytes_predicted == explanation.bytes_predicted


def test_rows_are_those_of_an_explanation(four_workers: Client) -> None:
    with pytest.raises(TypeError, match=r"explanation must be what dasktile\.explain returns"):
        # a value of the wrong type is what is tested
        metrics(four_workers, explanation="matmul")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"reset must be True or False; got 'x' of type str"):
        # as above
        metrics(four_workers, reset="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"progress must be True or False; got 'no' of type str"):
        # as above
        dasktile.compute(1, progress="no")  # type: ignore[arg-type]
    elsewhere = dasktile.explain(in_memory(40, 40, (20, 40)) + 1, workers=four_workers)
    assert not metrics(four_workers, explanation=elsewhere).rows


def graph_of(edges: dict[str, str], predicted: dict[str, int]) -> LayerGraph:
    """A graph from the inputs of each layer, separated by spaces."""
    graph = LayerGraph(predicted=predicted)
    for layer in (*edges, *predicted):
        graph.add(layer)
    for layer, reads in edges.items():
        for read in reads.split():
            graph.connect(layer, read)
    return graph


def test_steps_belong_to_the_row_that_reads_them() -> None:
    graph = graph_of({"cut": "x", "partial": "cut", "sum": "partial"}, {"sum": 5})
    assert rows(graph) == {"sum": "sum", "x": "sum", "cut": "sum", "partial": "sum"}
    assert predicted_rows(graph, rows(graph)) == {"sum": 5}


def test_tiles_for_all_readers_belong_to_the_array() -> None:
    edges = {"cut": "x", "a": "cut", "b": "cut", "cut2": "a", "c": "cut2"}
    graph = graph_of(edges, {"x": 1, "a": 2, "b": 3, "c": 4})
    assert rows(graph) == {"x": "x", "a": "a", "b": "b", "c": "c", "cut": "x", "cut2": "c"}
    kept = graph_of({"kept-dasktile-1": "x", "a": "kept-dasktile-1"}, {"x": 1, "a": 2})
    assert rows(kept)["kept-dasktile-1"] == "x"
    source = graph_of({"retile-dasktile-1": "x", "a": "retile-dasktile-1"}, {"x": 1, "a": 2})
    assert rows(source)["retile-dasktile-1"] == "x"
    source.has_other_inputs.add("x")
    assert rows(source)["retile-dasktile-1"] == "a"


def test_row_that_receives_nothing_is_part_of_its_reader() -> None:
    graph = graph_of({"a": "x"}, {"x": 1, "a": 2})
    assert predicted_rows(graph, rows(graph)) == {"a": 3}
    graph = graph_of({"a": "x"}, {"x": 1, "a": 2})
    graph.has_other_inputs.add("x")
    assert predicted_rows(graph, rows(graph)) == {"x": 1, "a": 2}


def test_fused_layers_belong_to_the_part_with_a_prediction() -> None:
    graph = graph_of({"chunk": "mul", "sum": "chunk"}, {"mul": 2, "sum": 1})
    graph.fused["chunk"] = ["mul"]
    assert rows(graph)["chunk"] == "mul"
    assert predicted_rows(graph, rows(graph)) == {"mul": 2, "sum": 1}
    graph.fused.clear()
    assert rows(graph)["chunk"] == "sum"


def test_rows_do_not_depend_on_the_order_of_layers() -> None:
    edges = {"b": "cut x", "a": "cut", "cut": "x"}
    forwards = graph_of(edges, {"a": 1, "b": 2})
    backwards = graph_of(dict(reversed(edges.items())), {"b": 2, "a": 1})
    assert list(rows(forwards).items()) == list(rows(backwards).items())
    assert rows(forwards)["cut"] == "a"
    # a cycle, which the tasks of two graphs may make
    assert rows(graph_of({"a": "b", "b": "a"}, {"a": 1}))["b"] == "a"


def test_bytes_of_dasks_own_graph_of_persisted_blocks_are_rough(
    four_workers: Client,
) -> None:
    rng = np.random.default_rng(0)
    made = (da.from_array(rng.random((800, 800)), chunks=100) for _ in range(2))
    x, y = (array.persist() for array in made)
    wait([x, y])
    metrics(four_workers, reset=True)
    explanation = dasktile.explain(x @ y, workers=four_workers)
    result = dasktile.optimize(x @ y, workers=four_workers).persist()
    wait(result, timeout=LIMIT)
    received = metrics(four_workers).bytes_received
    assert explanation.bytes_predicted == pytest.approx(received, rel=0.05)
    assert explanation.run_tasks_after is not None
    # those of Dask's own graph are known roughly, and shown if they are far more
    assert explanation.received_before is not None
    assert explanation.received_before > 2 * explanation.bytes_predicted
    assert explanation.received_after == explanation.bytes_predicted
    assert " instead of roughly " in " ".join(str(explanation).split())
    mean = dasktile.explain(x - x.mean(axis=0), workers=four_workers)
    assert mean.received_before is None
    assert mean.received_after == mean.bytes_predicted
    assert "receive about" not in " ".join(str(mean).split())
