"""SwapAdvisor's experiments in simulation: training and inference with too little memory.

    python -m benchmarks.papers.swapadvisor [--quick] [--models NAME ...]

Training of table 5.1's networks with 16 GB (figure 5.1): throughput in percent of that with
unlimited memory, for

- on-demand: operations in the given order; data are swapped in at their use, and the least
  recently used are evicted;
- literal: SwapAdvisor's genetic algorithm with its planner, as published;
- tuned: the same with selection pressure, good initial orders, and swaps planned as by the default;
- default: :func:`dasktile.schedule.search.plan`, with memory accounted in bytes;
- addresses: the default with a smaller memory limit, such that addresses for all lifetimes can be
  found within 16 GB.

The table also has the makespan over its lower bounds, for this order and for any order, and the
bytes moved over their lower bound for this order.

Inference of ResNet-152 in 64 to 1024 MB (table 5.2), and with several models on one GPU
(figure 5.3): batches of 32 images arrive at random, each for one of the models.  Either all memory
is given to the running model, whose parameters are copied in if another model ran before, or each
model has an equal part of the memory.

Nothing is measured: times of operations follow the roofline model (14 TFLOP/s, 900 GB/s), links
have 12 GB/s in each direction and 20 GB/s in total.  For inference the roofline is fitted to the
thesis's four times with enough memory: 17 TFLOP/s, and an overhead of 40 microseconds for every
operation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.papers.algorithms.allocate import lifetimes, pack, time_in_memory
from benchmarks.papers.algorithms.crossing import crossing_bound
from benchmarks.papers.algorithms.genetic import Evolved, Seed, in_classes, swapadvisor
from benchmarks.papers.models import MODELS, Model, memory
from benchmarks.papers.models.layers import Device
from benchmarks.papers.models.resnet import resnet152
from dasktile.schedule import order as orders
from dasktile.schedule.search import SearchResult, plan
from dasktile.schedule.simulate import HostLink, simulate
from dasktile.schedule.swaps import ON_DEMAND, Memory, Policy, plan_swaps
from dasktile.schedule.taskgraph import TaskGraph

LINK = HostLink(12e9, 12e9, 20e9)
GPU = 16 * 10**9

#: Rules for the initial orders of the tuned search, and its policy of swaps.
SEEDS = ("parameters", "darts", "locality", "depth-first", "program")
AHEAD = Policy(lead=48)

#: Table 5.2: seconds by megabytes and number of images, None if inference cannot run.
TABLE_5_2: dict[int, tuple[float | None, ...]] = {
    64: (0.024, None, None, None),
    128: (0.022, 0.077, None, None),
    192: (0.018, 0.044, None, None),
    256: (0.017, 0.043, 0.130, None),
    320: (0.017, 0.042, 0.073, None),
    512: (0.017, 0.040, 0.067, 0.238),
    640: (0.017, 0.040, 0.067, 0.123),
    1024: (0.017, 0.040, 0.067, 0.121),
}
BATCHES = (1, 16, 32, 64)
#: Number of images of a request where models share a GPU.  It is not in the thesis; with this
#: number the largest rate that can be served is about that of the thesis.
IMAGES = 32
INFERENCE = Device(flops=17e12, launch=40e-6)


@dataclass(frozen=True, slots=True)
class Training:
    """Results of one network, in percent of the ideal throughput.

    Attributes
    ----------
    over_bound, over_any
        Makespan over its lower bound for this order, and over that for any order.
    over_least_in, over_least
        Bytes swapped in, and in both directions, over their lower bounds for this order.
    fragments
        Memory lost to fragmentation, in percent of the peak of the bytes in use.
    """

    model: Model
    graph: TaskGraph
    on_demand: float
    literal: float
    tuned: float
    default: float
    addresses: float
    over_bound: float
    over_any: float
    over_least_in: float
    over_least: float
    fragments: float
    method: str
    tries: int


@cache
def graph_of(name: str) -> TaskGraph:
    """The training step of a network."""
    model = next(model for model in MODELS if model.name == name)
    return model.build(model.batch)


def evolved(graph: TaskGraph, tries: int, literal: bool) -> Evolved:
    """Search with the genetic algorithm, with `tries` evaluations."""
    rng = np.random.default_rng(0)
    population = min(144, max(16, tries // 4))
    if literal:
        evaluate = in_classes(graph, LINK)
        return swapadvisor(
            graph, GPU, evaluate, rng, literal=True, population=population, evaluations=tries
        )
    seeds = []
    by_bytes = Memory.bytes(graph, GPU)
    for name in SEEDS:
        order = orders.get_rule(name)(graph, GPU)
        swaps = plan_swaps(graph, order, by_bytes, AHEAD)
        seeds.append(Seed(order, time_in_memory(graph, swaps)))
    evaluate = in_classes(graph, LINK, AHEAD)
    return swapadvisor(
        graph, GPU, evaluate, rng, seeds=seeds, population=population, evaluations=tries
    )


def with_addresses(graph: TaskGraph, best: SearchResult, limit: int) -> tuple[float, float]:
    """Seconds with addresses within a memory limit, and the fragmentation.

    The order of the given plan is planned for smaller and smaller limits, until all lifetimes can
    be packed within the original limit.
    """
    bytes_limit = limit
    while bytes_limit > limit // 2:
        smaller = plan(
            graph, bytes_limit, LINK, given={"given": best.order}, rules=(), bounds=False
        )
        run = simulate(graph, smaller.swaps, Memory.bytes(graph, bytes_limit), LINK)
        lives = lifetimes(graph, smaller.swaps, run)
        rounds = max(2, min(64, 10**8 // max(1, len(lives.size)) ** 2))
        packing = pack(lives.start, lives.end, lives.size, rounds=rounds, capacity=limit)
        if packing.height <= limit:
            return run.makespan, packing.fragmentation
        bytes_limit -= max(limit // 50, (packing.height - limit) // 2)
    return math.inf, math.inf


def training(model: Model, quick: bool = False) -> Training:
    """Simulate one network with all methods."""
    graph = graph_of(model.name)
    ideal = float(graph.time.sum())
    by_bytes = Memory.bytes(graph, GPU)
    program = orders.get_rule("program")(graph, GPU)
    lazy = simulate(graph, plan_swaps(graph, program, by_bytes, ON_DEMAND), by_bytes, LINK)
    # a number of simulations that takes about the same time for all networks
    tries = max(48, int((1e5 if quick else 5e6) / len(graph)))
    literal, tuned = (evolved(graph, tries, literal).best.seconds for literal in (True, False))
    best = plan(graph, GPU, LINK)
    least = crossing_bound(graph, GPU, LINK.inward, LINK.outward)
    seconds, fragments = with_addresses(graph, best, GPU)
    assert best.swap_bound is not None
    return Training(
        model,
        graph,
        *(
            100 * ideal / makespan
            for makespan in (lazy.makespan, literal, tuned, best.makespan, seconds)
        ),
        best.makespan / best.time_bound,
        best.makespan / least,
        best.swap_in_bytes / max(best.read_bound, 1.0),
        (best.swap_in_bytes + best.swap_out_bytes)
        / (best.swap_bound.read + best.swap_bound.written),
        100 * fragments,
        best.method,
        tries,
    )


def inference_seconds(batch: int, limit: int) -> float:
    """Seconds of one of many inferences of ResNet-152; ``inf`` if an operation does not fit."""
    graph = resnet152(batch, training=False, device=INFERENCE)
    if int(graph.working_sets().max()) > limit:
        return math.inf
    return plan(graph, limit, LINK, repeat=True, bounds=False).makespan


@cache
def _service(batch: int, limit: int) -> float:
    return inference_seconds(batch, limit)


def latency(
    models: int, rate: float, shared: bool, *, batch: int = IMAGES, requests: int = 20_000
) -> float:
    """The 99th percentile of the latency of requests in seconds, served in order of arrival.

    Parameters
    ----------
    models
        Number of models on the GPU.
    rate
        Rate of arrival in images per second.
    shared
        Whether the running model has all of the memory, so that its parameters are copied in if
        another model ran before.  Otherwise each model has an equal part of the memory.
    batch
        Number of images of a request.

    Returns
    -------
    float
        ``inf`` if requests arrive faster than they can be served.
    """
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(batch / rate, requests))
    model_of = rng.integers(0, models, requests)
    graph = resnet152(batch, training=False, device=INFERENCE)
    service = np.full(requests, _service(batch, GPU if shared else GPU // models))
    if shared:
        parameters = float(graph.size[graph.present & graph.kept].sum())
        service[1:] += (model_of[1:] != model_of[:-1]) * parameters / LINK.inward
    if float(service.mean()) * rate >= batch:
        return math.inf
    finished, waits = 0.0, np.empty(requests)
    for number in range(requests):
        finished = max(finished, arrivals[number]) + service[number]
        waits[number] = finished - arrivals[number]
    return float(np.percentile(waits, 99))


def _row(experiment: str, what: str, paper: Any, ours: Any, note: str = "") -> dict[str, Any]:
    return {
        "experiment": experiment,
        "what": what,
        "paper": paper,
        "ours": ours,
        "note": note,
    }


def statics(models: Sequence[Model] = MODELS) -> Iterator[dict[str, Any]]:
    """Table 5.1."""
    for model in models:
        graph = graph_of(model.name)
        name = f"{model.name}, batch {model.batch}"
        yield _row("table 5.1", f"{name}: operations", model.operations, len(graph))
        yield _row(
            "table 5.1", f"{name}: sizes of tensors", model.sizes, len(np.unique(graph.size))
        )
        yield _row(
            "table 5.1",
            f"{name}: GB",
            model.gigabytes,
            round(float(graph.size.sum()) / 1e9, 1),
            f"of all tensors; {memory(graph) / 1e9:.1f} at one time, in the order given",
        )


def throughput(ran: Training) -> Iterator[dict[str, Any]]:
    """Figure 5.1, of one network."""
    model = ran.model
    what = f"{model.name}, % of ideal at 16 GB: "

    def row(method: str, paper: str, ours: float, note: str = "") -> dict[str, Any]:
        return _row("figure 5.1", what + method, paper, round(ours, 1), note)

    yield row("on-demand LRU", model.on_demand, ran.on_demand, "SwapAdvisor's baseline prefetches")
    evaluations = f"{ran.tries} individuals"
    yield row("genetic algorithm, as printed", model.of_ideal, ran.literal, evaluations)
    yield row("genetic algorithm, tuned", "", ran.tuned, evaluations)
    best_possible = min(100.0, ran.default * ran.over_any)
    yield row("default", "", ran.default, f"{ran.method}; no order is above {best_possible:.1f} %")
    yield row("default with addresses", "", ran.addresses, f"{ran.fragments:.1f} % in holes")
    what = f"{model.name}, default: "
    for measure, ours in (
        ("makespan over bound for its order", ran.over_bound),
        ("makespan over bound for any order", ran.over_any),
        ("bytes in over least", ran.over_least_in),
        ("bytes in and out over least", ran.over_least),
    ):
        yield _row("figure 5.1", what + measure, "", round(ours, 3))


def inference(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Table 5.2."""
    for limit, seconds in TABLE_5_2.items():
        if quick and limit not in (64, 256, 1024):
            continue
        for batch, paper in zip(BATCHES, seconds, strict=True):
            ours = inference_seconds(batch, limit * 10**6)
            yield _row(
                "table 5.2",
                f"{batch} images in {limit} MB, seconds",
                "N/A" if paper is None else paper,
                "N/A" if math.isinf(ours) else round(ours, 3),
            )


def sharing(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Figure 5.3: latency over that of one model alone at the same rate."""
    requests = 4_000 if quick else 20_000
    for rate in (100, 200, 300, 350):
        alone = latency(1, rate, False, requests=requests)
        for models in (4, 16):
            for shared in (False, True):
                ours = latency(models, rate, shared, requests=requests) / alone
                paper = ""
                if not shared:
                    paper = "<= 2"
                elif (rate, models) == (300, 16):
                    paper = "8"
                yield _row(
                    "figure 5.3",
                    f"{models} models, {rate} images/s, memory "
                    f"{'shared in time' if shared else 'divided'}: p99 latency over alone",
                    paper,
                    round(ours, 2) if math.isfinite(ours) else "overloaded",
                    f"alone {1e3 * alone:.0f} ms",
                )


def rows(quick: bool = False, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All experiments.

    Parameters
    ----------
    quick
        Whether to search a tenth as long, and to skip some memory limits of table 5.2.
    names
        Names of networks; all if empty.

    Returns
    -------
    list of dict
        With the keys experiment, what, paper, ours, note.
    """
    models = [model for model in MODELS if not names or model.name in names]
    table = list(statics(models))
    for model in models:
        table.extend(throughput(training(model, quick)))
    return [*table, *inference(quick), *sharing(quick)]


def main() -> None:
    """Print the figures of the thesis and those of the simulation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="search a tenth as long")
    parser.add_argument("--models", nargs="*", default=[], choices=[model.name for model in MODELS])
    arguments = parser.parse_args()
    table = Table("experiment", "what", "paper", "ours", "note")
    for row in rows(arguments.quick, arguments.models):
        table.add_row(*(str(row[key]) for key in ("experiment", "what", "paper", "ours", "note")))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
