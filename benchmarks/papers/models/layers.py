"""Networks defined layer by layer, whose training step is a graph of operations.

Every layer has its inputs and outputs, the tensors that its gradient is computed from, and the
floating-point operations of both.  Backward operations and updates are derived from the layers.

The graph follows frameworks such as MXNet 1.2: there is one backward operation for each forward
operation; gradients of a tensor with several uses are summed, by an operation or in place; batch
normalisation and the activation after it are one operation; sums of two tensors are in place.
Vectors with one number per channel (of batch normalisation) have kilobytes and are left out.

Times of operations were not published.  They follow the roofline model: the longer of the
arithmetic and of reading and writing all tensors that the operation touches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dasktile.schedule.taskgraph import TaskGraph, taskgraph

#: Bytes of a 32-bit number.
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Device:
    """The roofline of a device, by default of a V100.

    Attributes
    ----------
    flops
        Floating-point operations per second.
    bandwidth
        Bytes per second between its memory and its processors.
    launch
        Overhead of every operation in seconds.
    """

    flops: float = 14e12
    bandwidth: float = 900e9
    launch: float = 0.0


V100 = Device()


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A buffer of 32-bit numbers; `number` is the number of its datum."""

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
    """A forward operation, and the inputs of its gradient.

    Attributes
    ----------
    inputs
        Tensors that get a gradient, unless they are data.
    weights
        Parameters, which get a gradient, too.
    saves
        Tensors that the gradient is computed from, in addition to the gradients of the outputs.
    flops
        Floating-point operations of the gradient.
    passes
        Whether the gradient of the first input has the buffer of that of the output, unchanged
        or updated in place.
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
    """A builder of networks.

    Parameters
    ----------
    device
        The device that it runs on.
    training
        Whether to include gradients and updates.
    sums
        Whether gradients of a tensor with several uses are summed by a separate operation, so
        that the operations that compute them may run in any order.  Otherwise they are summed in
        place, in the order of the layers, as those of parameters always are.
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

    # Tensors and operations

    def _tensor(self, shape: Sequence[int], name: str) -> Tensor:
        tensor = Tensor(len(self._size), tuple(shape))
        self._size.append(tensor.bytes)
        self._data_names.append(name)
        return tensor

    def data(self, shape: Sequence[int], name: str = "data") -> Tensor:
        """An input of this step: on the host, without a gradient."""
        tensor = self._tensor(shape, name)
        self._present.append(tensor.number)
        self._given.add(tensor.number)
        return tensor

    def parameter(self, shape: Sequence[int], name: str) -> Tensor:
        """A parameter of the network, which is kept from step to step."""
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
        changed = {tensor.number for tensor in updates}
        reads = [tensor for tensor in reads if tensor.number not in changed]
        touched = sum(tensor.bytes for tensor in (*reads, *writes))
        touched += 2 * sum(tensor.bytes for tensor in updates)
        seconds = self.device.launch + max(
            flops / self.device.flops, touched / self.device.bandwidth
        )
        lists = ([tensor.number for tensor in group] for group in (reads, writes, updates))
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
        """Add a layer; see :class:`Layer`.

        Parameters
        ----------
        shapes
            Shapes of the outputs.
        saves_output
            Whether the gradient is computed from the outputs, too.
        in_place
            Whether the output has the buffer of the first input, which has no other readers.
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
        """Convolution, either without padding or with padding that keeps height and width.

        The stride divides height and width.
        """
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
        """Batch normalisation, including the activation after it, if any."""
        return self.layer(name, [x], [x.shape], saves=[x])[0]

    def relu(self, x: Tensor) -> Tensor:
        return self.layer("relu", [x], [x.shape], saves_output=True, passes=True)[0]

    def pool(
        self, x: Tensor, kernel: int, stride: int = 1, *, same: bool = True, mean: bool = False
    ) -> Tensor:
        """The maximum of every window, or the mean."""
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
        """Concatenation along axis 1."""
        if len(xs) == 1:
            return xs[0]
        channels = sum(x.shape[1] for x in xs)
        return self.layer("concat", xs, [(xs[0].shape[0], channels, *xs[0].shape[2:])])[0]

    # Layers of any shape

    def add(self, x: Tensor, y: Tensor, *, relu: bool = False, in_place: bool = True) -> Tensor:
        """The sum, in the buffer of `x` if it has no other readers, and its activation."""
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
        """Sigmoid or hyperbolic tangent, in the buffer of `x`."""
        return self.layer(name, [x], saves_output=True, in_place=True, passes=True)[0]

    def tanh(self, x: Tensor) -> Tensor:
        return self.layer("tanh", [x], [x.shape], saves_output=True, passes=True)[0]

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Copies of equal parts of axis 1."""
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
        """Softmax and cross entropy; the gradient is computed from the output."""
        return self.layer("softmax", [x], [x.shape], saves_output=True)[0]

    # The gradient

    def graph(self) -> TaskGraph:
        """The operations of one step: forward, and for training also backward and updates."""
        results = {tensor.number for layer in self._layers for tensor in layer.outputs}
        if self.training:
            self._backward()
        else:
            results -= {tensor.number for layer in self._layers for tensor in layer.inputs}
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
        # Keyed by tensor, not by buffer: a result in place is another tensor than its input.
        gradients: dict[Tensor, list[Tensor]] = {}
        uses: dict[Tensor, int] = {}
        for layer in self._layers:
            for weight in layer.weights:
                uses[weight] = uses.get(weight, 0) + 1
        for layer in reversed(self._layers):
            sums = [self._summed(gradients.pop(output, [])) for output in layer.outputs]
            inward = [gradient for gradient in sums if gradient is not None]
            if not inward and layer.name != "softmax":
                continue
            reads, writes, updates = [*inward, *layer.saves], [], []
            targets = [tensor for tensor in layer.inputs if tensor.number not in self._given]
            if layer.passes and targets and (self.sums or targets[0] not in gradients):
                # The same buffer, which the gradient of an activation updates.
                gradients.setdefault(targets[0], []).append(inward[0])
                if layer.saves:
                    updates.append(inward[0])
                targets = targets[1:]
            for tensor in (*targets, *layer.weights):
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
        """The sum of several gradients of one tensor, in the buffer of the first."""
        if len(parts) > 1:
            self._op("sum", 0.0, parts[1:], updates=parts[:1])
        return parts[0] if parts else None
