"""Recurrent networks of LSTM cells, one way and both ways (Schuster and Paliwal 1997)."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.models.layers import V100, Device, Network, Tensor
from dasktile.schedule.taskgraph import TaskGraph

#: Time steps, and words to choose from at each.  Neither is in the thesis; with this many steps
#: there are as many operations as it says.
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
        """State before the first step."""
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
    """Choose a word at every step."""
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
    """A step of training of layers of LSTM cells.

    Operations are given one time step after the other, as a walk from the results gives them.
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
    """A step of training of layers of LSTM cells that read forward and backward.

    A layer's outputs are both ways' one beside the other.  Operations are given layer by layer,
    since the last of a layer must run before the first of the next, and both ways in turns.
    """
    net = Network(device, training, sums=True)
    xs = [net.data((batch, hidden)) for _ in range(steps)]
    for number in range(layers):
        inputs = xs[0].shape[1]
        forward, backward = (
            _Cell.of(net, inputs, hidden, f"layer {number} {way}") for way in ("on", "back")
        )
        there, back = forward.start(batch), backward.start(batch)
        on: list[Tensor] = []
        off: list[Tensor] = []
        for step in range(steps):
            there = forward.step(xs[step], there)
            back = backward.step(xs[steps - 1 - step], back)
            on.append(there[0])
            off.append(back[0])
        xs = [net.concat([one, other]) for one, other in zip(on, reversed(off), strict=True)]
    _words(net, xs)
    return net.graph()
