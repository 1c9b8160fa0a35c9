"""The five networks of table 5.1 of SwapAdvisor's thesis, built from their architectures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.models.inception import inception4
from benchmarks.papers.models.nasnet import nasnet
from benchmarks.papers.models.resnet import resnet152
from benchmarks.papers.models.rnn import brnn, rnn
from dasktile.schedule.taskgraph import TaskGraph


@dataclass(frozen=True, slots=True)
class Model:
    """A network, and the published figures of it.

    Attributes
    ----------
    name
        Name in the thesis.
    build
        Function that returns the operations of a training step for a batch size.
    batch
        The largest batch size in the thesis.
    gigabytes, operations, sizes
        Table 5.1: memory, number of operations, number of distinct sizes of tensors.
    of_ideal
        Throughput of SwapAdvisor in percent of that with unlimited memory.
    on_demand
        The same of swapping on demand; a range is derived from the published gain of
        SwapAdvisor, 20 to 150 %.
    """

    name: str
    build: Callable[[int], TaskGraph]
    batch: int
    gigabytes: int
    operations: int
    sizes: int
    of_ideal: str
    on_demand: str


MODELS = (
    Model("WResNet-152-10", lambda batch: resnet152(batch, 10), 64, 180, 882, 26, "95", "80"),
    Model("Inception-4", lambda batch: inception4(batch, 4), 64, 71, 830, 64, "< 65", "26-54"),
    Model("NasNet-25", lambda batch: nasnet(batch, 25), 64, 193, 5533, 65, "53", "21-44"),
    Model("RNN-8-8K", lambda batch: rnn(batch, 8, 8192), 256, 118, 8594, 7, "70-80", "< 1"),
    Model("BRNN-4-8K", lambda batch: brnn(batch, 4, 8192), 128, 99, 9034, 9, "70-80", "< 1"),
)


def memory(graph: TaskGraph) -> int:
    """Peak of the bytes in use when operations run in the given order without swaps.

    Parameters of the network are in memory all the time, other data from their first use to the
    last.
    """
    order = np.arange(len(graph), dtype=np.int64)
    trace = graph.trace(order)
    position = trace.touched.owners()
    last = np.full(graph.data_count, -1, dtype=np.int64)
    np.maximum.at(last, trace.touched.index, position)
    stays = graph.present & graph.kept
    used = (last >= 0) & ~stays
    change = np.zeros(len(graph) + 1, dtype=np.int64)
    np.add.at(change, trace.first[used], graph.size[used])
    np.add.at(change, last[used] + 1, -graph.size[used])
    return int(graph.size[stays].sum() + np.cumsum(change).max())
