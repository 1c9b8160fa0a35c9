"""Recurrent networks of LSTM cells, unidirectional and bidirectional (Schuster, Paliwal 1997)."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.models.layers import V100, Device, Network, Tensor
from dasktile.schedule.taskgraph import TaskGraph

#: Number of time steps, and of words in the vocabulary.  Neither is in the thesis; with these
#: steps the number of operations is that of the thesis.
STEPS = 38
WORDS = 10_000


@dataclass(frozen=True, slots=True)
class _Cell:
    """The weights of one layer, shared by all time steps."""

    net: Network
    hidden: int
    inward: tuple[Tensor, Tensor]
    across: tuple[Tensor, Tensor]

    @staticmethod
    def of(net: Network, inputs: int, hidden: int, name: str) -> _Cell:
        inward, across = (
            (
                net.parameter((count, 4 * hidden), f"{name}.{kind}.weight"),
                net.parameter((4 * hidden,), f"{name}.{kind}.bias"),
            )
            for kind, count in (("inward", inputs), ("across", hidden))
        )
        return _Cell(net, hidden, inward, across)

    def start(self, batch: int) -> tuple[Tensor, Tensor]:
        """The state before the first time step."""
        return (
            self.net.data((batch, self.hidden), "start h"),
            self.net.data((batch, self.hidden), "start c"),
        )

    def step(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        net = self.net
        h, c = state
        gates = net.add(net.dense(x, *self.inward), net.dense(h, *self.across))
        into, forget, new, out = net.split(gates, 4)
        into, forget, out = (net.activation(gate, "sigmoid") for gate in (into, forget, out))
        new = net.activation(new, "tanh gate")
        c = net.add(net.multiply(forget, c), net.multiply(into, new))
        return net.multiply(out, net.tanh(c)), c


def _words(net: Network, outputs: list[Tensor]) -> None:
    """Add the loss over the words at every time step."""
    weight = net.parameter((outputs[0].shape[1], WORDS), "words.weight")
    bias = net.parameter((WORDS,), "words.bias")
    for x in outputs:
        net.loss(net.dense(x, weight, bias, name="words"))


def rnn(
    batch: int,
    layers: int = 8,
    hidden: int = 8192,
    *,
    steps: int = STEPS,
    training: bool = True,
    device: Device = V100,
) -> TaskGraph:
    """One training step of layers of LSTM cells.

    Operations are in the order of time steps, as a depth-first traversal from the results has them.
    """
    net = Network(device, training, sums=True)
    cells = [_Cell.of(net, hidden, hidden, f"layer {number}") for number in range(layers)]
    states = [cell.start(batch) for cell in cells]
    weight = net.parameter((hidden, WORDS), "words.weight")
    bias = net.parameter((WORDS,), "words.bias")
    for _ in range(steps):
        x = net.data((batch, hidden))
        for number, cell in enumerate(cells):
            states[number] = cell.step(x, states[number])
            x = states[number][0]
        net.loss(net.dense(x, weight, bias, name="words"))
    return net.graph()


def brnn(
    batch: int,
    layers: int = 4,
    hidden: int = 8192,
    *,
    steps: int = STEPS,
    training: bool = True,
    device: Device = V100,
) -> TaskGraph:
    """One training step of layers of bidirectional LSTM cells.

    The outputs of both directions are concatenated.  Operations are in the order of layers, since
    all of a layer must run before the next one, with alternating directions.
    """
    net = Network(device, training, sums=True)
    xs = [net.data((batch, hidden)) for _ in range(steps)]
    for number in range(layers):
        inputs = xs[0].shape[1]
        forward, backward = (
            _Cell.of(net, inputs, hidden, f"layer {number} {direction}")
            for direction in ("on", "back")
        )
        forward_state, backward_state = forward.start(batch), backward.start(batch)
        forward_outputs: list[Tensor] = []
        backward_outputs: list[Tensor] = []
        for step in range(steps):
            forward_state = forward.step(xs[step], forward_state)
            backward_state = backward.step(xs[steps - 1 - step], backward_state)
            forward_outputs.append(forward_state[0])
            backward_outputs.append(backward_state[0])
        xs = [
            net.concat([left, right])
            for left, right in zip(forward_outputs, reversed(backward_outputs), strict=True)
        ]
    _words(net, xs)
    return net.graph()
