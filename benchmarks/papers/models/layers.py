"""Networks written down layer by layer; their training step is a graph of operations.

Every layer says once what it computes from what, what its gradient needs of that, and how
many floating-point operations both take.  Backward operations and updates follow.

What a framework like MXNet 1.2 does is done here too: one backward operation for each forward
operation; gradients of what is used several times are summed, by an operation or in place;
batch normalisation is one operation with the activation after it; sums of two tensors are in
place.  Vectors of one number for each channel (of batch normalisation) are
kilobytes, and left out.

How long operations take was not published.  They take here what a roofline says: as long as
their arithmetic, or as long as reading and writing what they touch, whichever is longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dasktile.schedule.taskgraph import TaskGraph, taskgraph

#: Bytes of a number.
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Device:
    """What computes: a roofline, by default that of a V100.

    Attributes
    ----------
    flops
        Floating-point operations a second.
    bandwidth
        Bytes a second between its memory and its processors.
    launch
        Seconds that every operation takes beside.
    """

    flops: float = 14e12
    bandwidth: float = 900e9
    launch: float = 0.0


V100 = Device()


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A buffer of 32-bit numbers; `number` is that of the datum."""

    number: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return FLOAT32 * self.elements


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """What was computed forward, and what its gradient is made of.

    Attributes
    ----------
    inputs
        Tensors that get a gradient, unless they are data.
    weights
        Parameters, which get one too.
    saves
        Tensors that the gradient is computed from, beside that of the outputs.
    flops
        Of the gradient.
    passes
        The gradient of the first input takes the place of that of the output: it is the
        same, or changed in place.
    """

    name: str
    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    saves: tuple[Tensor, ...]
    flops: float
    passes: bool


@dataclass(slots=True)
class Network:
    """A network that is being written down.

    Parameters
    ----------
    device
        What it runs on.
    training
        With gradients and updates, else only forward.
    sums
        Gradients of what is used several times are summed by an operation of their own, so
        that those that make them may run in any order.  Else they are summed in place, in the
        order in which they are written down; those of parameters always are.
    """

    device: Device = V100
    training: bool = True
    sums: bool = False
    _size: list[int] = field(default_factory=list)
    _data_names: list[str] = field(default_factory=list)
    _present: list[int] = field(default_factory=list)
    _kept: list[int] = field(default_factory=list)
    _given: set[int] = field(default_factory=set)
    _ops: list[tuple[str, float, list[int], list[int], list[int]]] = field(default_factory=list)
    _layers: list[Layer] = field(default_factory=list)

    # What there is

    def _tensor(self, shape: Sequence[int], name: str) -> Tensor:
        tensor = Tensor(len(self._size), tuple(shape))
        self._size.append(tensor.bytes)
        self._data_names.append(name)
        return tensor

    def data(self, shape: Sequence[int], name: str = "data") -> Tensor:
        """What is given for this step only: on the host, without a gradient."""
        tensor = self._tensor(shape, name)
        self._present.append(tensor.number)
        self._given.add(tensor.number)
        return tensor

    def parameter(self, shape: Sequence[int], name: str) -> Tensor:
        """What stays from step to step."""
        tensor = self._tensor(shape, name)
        self._present.append(tensor.number)
        self._kept.append(tensor.number)
        return tensor

    def _op(
        self,
        name: str,
        flops: float,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor] = (),
        updates: Sequence[Tensor] = (),
    ) -> None:
        changed = {one.number for one in updates}
        reads = [one for one in reads if one.number not in changed]
        touched = sum(one.bytes for one in (*reads, *writes)) + 2 * sum(o.bytes for o in updates)
        seconds = self.device.launch + max(
            flops / self.device.flops, touched / self.device.bandwidth
        )
        lists = ([one.number for one in group] for group in (reads, writes, updates))
        self._ops.append((name, seconds, *lists))

    def layer(
        self,
        name: str,
        inputs: Sequence[Tensor],
        shapes: Sequence[Sequence[int]] = (),
        *,
        weights: Sequence[Tensor] = (),
        flops: float = 0.0,
        saves: Sequence[Tensor] = (),
        saves_output: bool = False,
        back_flops: float = 0.0,
        in_place: bool = False,
        passes: bool = False,
    ) -> tuple[Tensor, ...]:
        """Write down a layer; see :class:`Layer`.

        Parameters
        ----------
        shapes
            Of the outputs.
        saves_output
            The gradient needs the outputs too.
        in_place
            The output takes the place of the first input, which nobody else reads.
        """
        if in_place:
            outputs: tuple[Tensor, ...] = (Tensor(inputs[0].number, inputs[0].shape),)
            self._op(name, flops, inputs[1:], updates=inputs[:1])
        else:
            outputs = tuple(self._tensor(shape, name) for shape in shapes)
            self._op(name, flops, [*inputs, *weights], outputs)
        kept = (*saves, *(outputs if saves_output else ()))
        self._layers.append(
            Layer(name, tuple(inputs), tuple(weights), outputs, kept, back_flops, passes)
        )
        return outputs

    # Layers of images: shapes are (batch, channels, height, width)

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        *,
        same: bool = True,
        depthwise: bool = False,
        name: str = "conv",
    ) -> Tensor:
        """Convolution, with padding that keeps the shape (but for the stride), or none."""
        batch, before, height, width = x.shape
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        out = [
            -(-side // stride) if same else -(-(side - window + 1) // stride)
            for side, window in ((height, high), (width, wide))
        ]
        fan = (1 if depthwise else before) * high * wide
        weight = self.parameter((channels, fan), f"{name}.weight")
        flops = 2.0 * batch * channels * math.prod(out) * fan
        parts = 1 if x.number in self._given else 2
        (y,) = self.layer(
            name,
            [x],
            [(batch, channels, *out)],
            weights=[weight],
            flops=flops,
            saves=[x, weight] if parts == 2 else [x],
            back_flops=parts * flops,
        )
        return y

    def norm(self, x: Tensor, name: str = "norm") -> Tensor:
        """Batch normalisation, with the activation after it where there is one."""
        return self.layer(name, [x], [x.shape], saves=[x])[0]

    def relu(self, x: Tensor) -> Tensor:
        return self.layer("relu", [x], [x.shape], saves_output=True, passes=True)[0]

    def pool(
        self, x: Tensor, kernel: int, stride: int = 1, *, same: bool = True, mean: bool = False
    ) -> Tensor:
        """The largest of every window, or the mean."""
        out = [
            -(-side // stride) if same else (side - kernel) // stride + 1 for side in x.shape[2:]
        ]
        return self.layer(
            "mean pool" if mean else "max pool",
            [x],
            [(*x.shape[:2], *out)],
            saves=[] if mean else [x],
            saves_output=not mean,
        )[0]

    def global_mean(self, x: Tensor) -> Tensor:
        """The mean of every channel; shape (batch, channels)."""
        return self.layer("global mean", [x], [x.shape[:2]])[0]

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        """Several after one another along axis 1."""
        if len(xs) == 1:
            return xs[0]
        channels = sum(x.shape[1] for x in xs)
        return self.layer("concat", xs, [(xs[0].shape[0], channels, *xs[0].shape[2:])])[0]

    # Layers of any shape

    def add(self, x: Tensor, y: Tensor, *, relu: bool = False, in_place: bool = True) -> Tensor:
        """The sum, in the place of `x` if nobody else reads that, and the activation of it."""
        return self.layer(
            "add relu" if relu else "add",
            [x, y],
            [x.shape],
            saves_output=relu,
            in_place=in_place,
            passes=True,
        )[0]

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer("multiply", [x, y], [x.shape], saves=[x, y])[0]

    def activation(self, x: Tensor, name: str) -> Tensor:
        """Sigmoid or hyperbolic tangent, in the place of `x`."""
        return self.layer(name, [x], saves_output=True, in_place=True, passes=True)[0]

    def tanh(self, x: Tensor) -> Tensor:
        return self.layer("tanh", [x], [x.shape], saves_output=True, passes=True)[0]

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Equal parts of axis 1, copied."""
        return self.layer("split", [x], [(x.shape[0], x.shape[1] // parts)] * parts)

    def dense(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, name: str = "dense"
    ) -> Tensor:
        """``x @ weight + bias``; shapes (batch, inputs), (inputs, outputs)."""
        flops = 2.0 * x.shape[0] * weight.elements
        parts = 1 if x.number in self._given else 2
        return self.layer(
            name,
            [x],
            [(x.shape[0], weight.shape[1])],
            weights=[weight] if bias is None else [weight, bias],
            flops=flops,
            saves=[x, weight] if parts == 2 else [x],
            back_flops=parts * flops,
        )[0]

    def loss(self, x: Tensor) -> Tensor:
        """Softmax and cross entropy: its output is what the gradient is computed from."""
        return self.layer("softmax", [x], [x.shape], saves_output=True)[0]

    # The gradient

    def graph(self) -> TaskGraph:
        """The operations of a step: forward, and for training backward with updates."""
        results = {one.number for layer in self._layers for one in layer.outputs}
        if self.training:
            self._backward()
        else:
            results -= {one.number for layer in self._layers for one in layer.inputs}
            self._kept.extend(sorted(results))
        names, times, reads, writes, updates = zip(*self._ops, strict=True)
        return taskgraph(
            times,
            self._size,
            reads,
            writes,
            updates,
            self._present,
            self._kept,
            names,
            self._data_names,
        )

    def _backward(self) -> None:
        # Gradients by the tensor as it was at that time: one in place of another is another.
        gradients: dict[Tensor, list[Tensor]] = {}
        uses: dict[Tensor, int] = {}
        for layer in self._layers:
            for weight in layer.weights:
                uses[weight] = uses.get(weight, 0) + 1
        for layer in reversed(self._layers):
            known = [self._summed(gradients.pop(one, [])) for one in layer.outputs]
            given = [one for one in known if one is not None]
            if not given and layer.name != "softmax":
                continue
            reads, writes, updates = [*given, *layer.saves], [], []
            wanted = [one for one in layer.inputs if one.number not in self._given]
            if layer.passes and wanted and (self.sums or wanted[0] not in gradients):
                # The same buffer, which the activation's gradient changes.
                gradients.setdefault(wanted[0], []).append(given[0])
                if layer.saves:
                    updates.append(given[0])
                wanted = wanted[1:]
            for tensor in (*wanted, *layer.weights):
                if tensor in gradients and (tensor in layer.weights or not self.sums):
                    updates.extend(gradients[tensor])
                else:
                    name = f"{self._data_names[tensor.number]}.gradient"
                    writes.append(self._tensor(tensor.shape, name))
                    gradients.setdefault(tensor, []).append(writes[-1])
            if writes or updates:
                self._op(f"{layer.name}.back", layer.flops, reads, writes, updates)
            for weight in layer.weights:
                uses[weight] -= 1
                if not uses[weight]:
                    self._op("update", 0.0, gradients.pop(weight), updates=[weight])

    def _summed(self, parts: list[Tensor]) -> Tensor | None:
        """Several gradients of one tensor, in the place of the first."""
        if len(parts) > 1:
            self._op("sum", 0.0, parts[1:], updates=parts[:1])
        return parts[0] if parts else None
