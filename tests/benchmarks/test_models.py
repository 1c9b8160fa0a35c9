"""The networks of table 5.1 have the published numbers of operations, and consistent graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.papers import swapadvisor
from benchmarks.papers.algorithms.crossing import crossing_bound
from benchmarks.papers.models import MODELS, Model, memory
from benchmarks.papers.models.layers import Device, Network
from benchmarks.papers.models.resnet import resnet152
from benchmarks.papers.models.rnn import brnn, rnn
from benchmarks.papers.swapadvisor import graph_of
from dasktile.schedule.compiled import COMPILED
from dasktile.schedule.search import plan
from dasktile.schedule.taskgraph import TaskGraph

NAMES = [model.name for model in MODELS]


def names(graph: TaskGraph) -> list[str]:
    assert graph.op_names is not None
    return [str(name) for name in graph.op_names]


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_operations_are_as_many_as_published(model: Model) -> None:
    assert len(graph_of(model.name)) == pytest.approx(model.operations, rel=0.03)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("WResNet-152-10", 24),
        ("Inception-4", 55),
        ("NasNet-25", 48),
        ("RNN-8-8K", 7),
        ("BRNN-4-8K", 9),
    ],
)
def test_sizes(name: str, sizes: int) -> None:
    assert len(np.unique(graph_of(name).size)) == sizes


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("WResNet-152-10", 278.6),
        ("Inception-4", 91.6),
        ("NasNet-25", 210.7),
        ("RNN-8-8K", 120.7),
        ("BRNN-4-8K", 94.9),
    ],
)
def test_bytes(name: str, gigabytes: float) -> None:
    graph = graph_of(name)
    assert graph.size.sum() / 1e9 == pytest.approx(gigabytes, abs=0.1)
    assert graph.working_sets().max() <= memory(graph) <= graph.size.sum()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_updated_once_and_every_result_used(name: str) -> None:
    graph = graph_of(name)
    updated = [op for op, name in enumerate(names(graph)) if name == "update"]
    parameters = np.flatnonzero(graph.present & graph.kept)
    assert sorted(int(graph.updates[op][0]) for op in updated) == parameters.tolist()
    touched = np.bincount(graph.touched.index, minlength=graph.data_count)
    # every datum but an input is touched at least twice: when computed and when used
    loose = np.flatnonzero((touched < 2) & ~graph.present)
    assert [graph.data_name(int(datum)) for datum in loose] == []


def test_parameters_of_resnet152_are_as_many_as_in_the_paper() -> None:
    graph = resnet152(1)
    # 60.2 million with the vectors of batch normalisation and the bias
    assert graph.size[graph.kept].sum() / 4 == pytest.approx(60.2e6, rel=0.005)


def test_arithmetic_of_resnet152_is_that_of_the_paper() -> None:
    # 11.3 billion multiply-adds per image, with the time of arithmetic only
    graph = resnet152(1, training=False, device=Device(1.0, np.inf))
    assert graph.time.sum() / 2 == pytest.approx(11.4e9, rel=0.02)


def test_parameters_of_inception_v4_are_as_many_as_in_the_paper() -> None:
    model = next(model for model in MODELS if model.name == "Inception-4")
    wide = graph_of(model.name).size[graph_of(model.name).kept].sum() / 4
    # 42.7 million; four times the channels are sixteen times the weights, nearly
    assert wide / 16 == pytest.approx(42.7e6, rel=0.03)


def test_backward_takes_twice_as_long_as_forward_does() -> None:
    arithmetic = Device(1.0, np.inf)
    forward = rnn(4, 2, 64, steps=3, training=False, device=arithmetic).time.sum()
    training = rnn(4, 2, 64, steps=3, device=arithmetic).time.sum()
    # inputs and initial states have no gradients
    assert 2.5 * forward < training < 3 * forward


def test_inference_keeps_its_results_only() -> None:
    graph = resnet152(2, training=False)
    assert "update" not in names(graph)
    kept = np.flatnonzero(graph.kept & ~graph.present)
    assert [graph.size[datum] for datum in kept] == [2 * 1000 * 4]


def test_time_follows_the_roofline_model() -> None:
    net = Network(Device(flops=100.0, bandwidth=10.0, launch=1.0))
    x = net.data((2, 3))
    net.dense(x, net.parameter((3, 5), "w"))
    net.training = False
    # 2 * 2 * 3 * 5 operations, and (6 + 15 + 10) numbers
    assert net.graph().time.tolist() == pytest.approx([1.0 + max(60 / 100, 4 * 31 / 10)])


def test_gradients_of_shared_tensors_are_summed_in_place() -> None:
    net = Network()
    x = net.norm(net.data((1, 4, 2, 2)), name="x")
    net.loss(net.add(net.conv(x, 4), net.conv(x, 4), relu=True))
    graph = net.graph()
    back = [op for op, name in enumerate(names(graph)) if name == "conv.back"]
    made = [len(graph.writes[op]) for op in back]
    changed = [len(graph.updates[op]) for op in back]
    assert (made, changed) == ([2, 1], [0, 1])


def test_bidirectional_layers_concatenate_both_directions() -> None:
    graph = brnn(2, 2, 16, steps=3)
    assert sum(name == "concat" for name in names(graph)) == 6
    assert sum(name == "words" for name in names(graph)) == 3


def test_gradients_may_be_summed_by_a_separate_operation() -> None:
    net = Network(sums=True)
    x = net.norm(net.data((1, 4, 2, 2)), name="x")
    net.loss(net.add(net.conv(x, 4), net.conv(x, 4), relu=True))
    graph = net.graph()
    by_name = {name: op for op, name in enumerate(names(graph))}
    assert len(graph.updates[by_name["sum"]]) == len(graph.reads[by_name["sum"]]) == 1
    back = [op for op, name in enumerate(names(graph)) if name == "conv.back"]
    # none depends on the other
    assert not set(back) & {one for op in back for one in graph.before[op].tolist()}


def test_layers_of_a_recurrent_network_can_run_in_sequence() -> None:
    graph = rnn(2, 2, 16, steps=3)
    kinds = names(graph)
    touched = [set(graph.touched[op].tolist()) for op in range(len(graph))]
    assert graph.data_names is not None
    lower = {
        number
        for number, name in enumerate(graph.data_names)
        if str(name).startswith("layer 0") and "gradient" not in str(name)
    }
    parameters = set(np.flatnonzero(graph.present & graph.kept).tolist())
    # run all of the backward pass that does not touch the lower layer's parameters
    ran: set[int] = set()
    for op in range(len(graph)):
        needs = set(graph.before[op].tolist())
        free = "back" not in kinds[op] or not touched[op] & parameters & lower
        if needs <= ran and (free or kinds[op] == "update"):
            ran.add(op)
    upper = [op for op in range(len(graph)) if touched[op] & parameters and not touched[op] & lower]
    assert set(upper) <= ran


@pytest.mark.skipif(not COMPILED, reason="minutes without numba")
@pytest.mark.parametrize(
    ("name", "of_ideal"),
    [
        ("WResNet-152-10", 0.94),
        ("Inception-4", 0.9),
        ("NasNet-25", 0.22),
        ("RNN-8-8K", 0.99),
        ("BRNN-4-8K", 0.99),
    ],
)
def test_training_in_16_gigabytes_is_near_the_bounds(name: str, of_ideal: float) -> None:
    graph = graph_of(name)
    result = plan(graph, swapadvisor.GPU, swapadvisor.LINK)
    assert result.ideal / result.makespan >= of_ideal
    assert result.makespan <= 1.06 * result.time_bound
    # the bound of all orders; for NasNet copies take four times as long as computing
    assert result.makespan <= 1.06 * crossing_bound(graph, swapadvisor.GPU, 12e9, 12e9)
    assert result.swap_in_bytes <= 1.05 * result.read_bound
    assert result.swap_bound is not None
    total = result.swap_in_bytes + result.swap_out_bytes
    assert total <= 1.15 * (result.swap_bound.read + result.swap_bound.written)


@pytest.mark.skipif(not COMPILED, reason="minutes without numba")
def test_addresses_cost_little() -> None:
    graph = graph_of("Inception-4")
    result = plan(graph, swapadvisor.GPU, swapadvisor.LINK, bounds=False)
    seconds, fragments = swapadvisor.with_addresses(graph, result, swapadvisor.GPU)
    assert result.makespan <= seconds <= result.ideal / 0.82
    assert 0 <= fragments < 0.35


@pytest.mark.skipif(not COMPILED, reason="minutes without numba")
def test_inference_runs_in_the_published_memory() -> None:
    for limit, seconds in swapadvisor.TABLE_5_2.items():
        for batch, published in zip(swapadvisor.BATCHES, seconds, strict=True):
            ours = swapadvisor.inference_seconds(batch, limit * 10**6)
            assert math.isinf(ours) == (published is None)
            if published is not None:
                assert 0.7 * published < ours < 1.2 * published


def test_memory_divided_among_models_serves_as_one_model_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swapadvisor, "_service", lambda batch, limit: 0.07)
    alone, divided, shared, more = (
        swapadvisor.latency(models, rate, shared, requests=2_000)
        for models, rate, shared in (
            (1, 200, False),
            (16, 200, False),
            (16, 200, True),
            (4, 400, True),
        )
    )
    assert alone == divided < shared
    assert more == math.inf
