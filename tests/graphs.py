"""Task graphs for tests of schedules."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from dasktile.schedule.taskgraph import Builder, TaskGraph


def figure_41() -> TaskGraph:
    """Figure 4.1 (a) of SwapAdvisor's thesis, its operators in the order left branch first.

    Activations are kept for the backward pass, which is not shown.
    """
    build = Builder()
    for name, size in (("A0", 1), ("A1", 1), ("A2", 2), ("A3", 1), ("A4", 1), ("A5", 2)):
        build.datum(name, size, kept=True)
    for name in ("W1", "W2", "W3", "W4"):
        build.parameter(name, 1)
    build.op("Data", 1, (), ["A0"])
    build.op("Conv1", 1, ["A0", "W1"], ["A1"])
    build.op("Conv2", 1, ["A0", "W2"], ["A2"])
    build.op("Conv3", 1, ["A2", "W3"], ["A3"])
    build.op("Conv4", 1, ["A3", "W4"], ["A4"])
    build.op("Concat", 1, ["A1", "A4"], ["A5"])
    return build.graph()


def figure_43() -> TaskGraph:
    """Figure 4.3 (a), as a chain: the text does not specify the inputs of the operators."""
    build = Builder()
    for number in (1, 2, 3):
        build.parameter(f"W{number}", 1)
        build.datum(f"A{number}", 1, kept=True)
        before = [f"A{number - 1}"] if number > 1 else []
        build.op(f"op{number}", 1, [f"W{number}", *before], [f"A{number}"])
    return build.graph()


def matmul(blocks: int, size: int = 10, seconds: float = 1.0) -> TaskGraph:
    """A blocked matrix product, with the sums of blocks as chains."""
    build = Builder()
    for i in range(blocks):
        for k in range(blocks):
            build.datum(("a", i, k), size, present=True)
            build.datum(("b", i, k), size, present=True)
    for i in range(blocks):
        for j in range(blocks):
            for k in range(blocks):
                build.datum(("p", i, j, k), size, kept=k == blocks - 1)
                before = [("p", i, j, k - 1)] if k else []
                reads = [("a", i, k), ("b", k, j), *before]
                build.op(("p", i, j, k), seconds, reads, [("p", i, j, k)])
    return build.graph()


def recurrent(layers: int, steps: int) -> TaskGraph:
    """One training step of layers whose large weights are shared by all time steps.

    Operations are in the order of time steps, forward and then backward.
    """
    build = Builder()
    for layer in range(layers):
        build.parameter(("w", layer), 100)
        build.datum(("dw", layer), 100)
    for step in range(steps):
        build.datum(("h", step, -1), 1, present=True)
        for layer in range(layers):
            build.datum(("h", step, layer), 1)
            reads = [("w", layer), ("h", step, layer - 1)]
            reads += [("h", step - 1, layer)] if step else []
            build.op(("forward", step, layer), 2.0, reads, [("h", step, layer)])
    for step in reversed(range(steps)):
        for layer in reversed(range(layers)):
            build.datum(("d", step, layer), 1)
            reads = [("w", layer), ("h", step, layer), ("h", step, layer - 1)]
            reads += [("d", step, layer + 1)] if layer + 1 < layers else []
            reads += [("d", step + 1, layer)] if step + 1 < steps else []
            first = step + 1 == steps
            build.op(
                ("backward", step, layer),
                4.0,
                reads,
                [("d", step, layer), *([("dw", layer)] if first else [])],
                [] if first else [("dw", layer)],
            )
    for layer in range(layers):
        build.op(("update", layer), 1.0, [("dw", layer)], (), [("w", layer)])
    return build.graph()


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    """Small random graphs, with data that are inputs, results, updated in place, kept or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    build = Builder()
    known: list[str] = []
    for number in range(int(rng.integers(0, 5))):
        build.datum(f"x{number}", int(rng.integers(0, 9)), present=True, kept=rng.random() < 0.5)
        known.append(f"x{number}")
    for number in range(int(rng.integers(1, 30))):
        uses = [str(one) for one in rng.permutation(known)[: int(rng.integers(0, 4))]]
        changed = uses[: int(rng.random() < 0.3)]
        makes = [f"d{number}.{part}" for part in range(int(rng.integers(0, 3)))]
        for name in makes:
            build.datum(name, int(rng.integers(0, 9)), kept=rng.random() < 0.2)
        seconds = float(rng.integers(0, 5))
        build.op(number, seconds, uses[len(changed) :], makes, changed)
        known += makes
    return build.graph()
