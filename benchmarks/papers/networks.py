"""Training steps of SoyBean's networks: forward, backward, and the update of the weights.

Elementwise activations are left out, as in the paper: they have the tiling of their input and move
no bytes.  A convolution is one contraction over the channels and the window; the window itself is
never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.papers.transformers import Network
from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer, as needed for backpropagation."""

    kind: str
    read: int
    made: int
    weight: int | None = None
    stride: int = 1


@dataclass
class Training(Network):
    """A sequence of layers; :meth:`step` adds the backward pass.

    Parameters
    ----------
    itemsize, chunks
        As for `Network`.
    layers
        The layers so far.
    """

    layers: list[_Layer] = field(default_factory=list)

    def dense(self, read: int, width: int) -> int:
        """A fully connected layer on all axes but the first."""
        name = f"{len(self.layers)}"
        shape = self.nodes[read].shape
        weight = self.source(f"w{name}", *shape[1:], width)
        axes = "yxi"[-(len(shape) - 1) :]
        made = self.einsum(f"x{name}", f"b{axes},{axes}o->bo", read, weight)
        self.layers.append(_Layer("dense", read, made, weight))
        return made

    def convolution(self, read: int, filters: int, kernel: int, stride: int = 1) -> int:
        """A padded convolution of an array (batch, height, width, channels)."""
        name = f"{len(self.layers)}"
        batch, height, width, channels = self.nodes[read].shape
        weight = self.source(f"w{name}", kernel, kernel, channels, filters)
        sizes = (batch, height // stride, width // stride, filters, channels, kernel, kernel)
        roles = (Role.FREE, Role.FREE, Role.FREE, Role.FREE, Role.REDUCE, Role.WHOLE, Role.WHOLE)
        image = _image(kernel, stride, (0, 1, 2, 4))
        made = self.loops(
            f"x{name}", "convolution", sizes, roles, _axes(0, 1, 2, 3),
            Edge(read, image), Edge(weight, _axes(5, 6, 4, 3)),
        )  # fmt: skip
        self.layers.append(_Layer("convolution", read, made, weight, stride))
        return made

    def pool(self, read: int) -> int:
        """The maximum of every two by two pixels."""
        batch, height, width, channels = self.nodes[read].shape
        made = self.loops(
            f"x{len(self.layers)}", "pool", (batch, height // 2, width // 2, channels),
            (Role.FREE,) * 4, _axes(0, 1, 2, 3), Edge(read, _pairs()),
        )  # fmt: skip
        self.layers.append(_Layer("pool", read, made))
        return made

    def step(self, input_gradient: bool = False) -> Program:
        """The program of a training step: forward, gradients, and new weights.

        Parameters
        ----------
        input_gradient
            Whether the gradient of the network's input is computed, too.
        """
        outputs: list[int] = []
        made = self.layers[-1].made
        letters = "byxi"[: len(self.nodes[made].shape)]
        gradient = self.einsum("loss", f"{letters}->{letters}", made)
        for position in reversed(range(len(self.layers))):
            layer = self.layers[position]
            if layer.weight is not None:
                weight_gradient = self._weight_gradient(position, layer, gradient)
                axes = "yxio"[: len(self.nodes[layer.weight].shape)]
                outputs.append(
                    self.einsum(
                        f"new w{position}", f"{axes},{axes}->{axes}", layer.weight, weight_gradient
                    )
                )
            if position or input_gradient:
                gradient = self._input_gradient(position, layer, gradient)
        if input_gradient:
            outputs.append(gradient)
        return self.program(*outputs)

    def _weight_gradient(self, position: int, layer: _Layer, gradient: int) -> int:
        name = f"dw{position}"
        if layer.kind == "dense":
            axes = "yxi"[-(len(self.nodes[layer.read].shape) - 1) :]
            return self.einsum(name, f"b{axes},bo->{axes}o", layer.read, gradient)
        assert layer.weight is not None
        kernel, _, channels, filters = self.nodes[layer.weight].shape
        batch, height, width, _ = self.nodes[gradient].shape
        sizes = (kernel, kernel, channels, filters, batch, height, width)
        roles = (Role.WHOLE, Role.WHOLE, Role.FREE, Role.FREE, *(Role.REDUCE,) * 3)
        image = _image(kernel, layer.stride, (4, 5, 6, 2))
        return self.loops(name, "weights", sizes, roles, _axes(0, 1, 2, 3),
                          Edge(layer.read, image), Edge(gradient, _axes(4, 5, 6, 3)))  # fmt: skip

    def _input_gradient(self, position: int, layer: _Layer, gradient: int) -> int:
        name = f"dx{position}"
        if layer.kind == "dense":
            assert layer.weight is not None
            axes = "yxi"[-(len(self.nodes[layer.read].shape) - 1) :]
            return self.einsum(name, f"bo,{axes}o->b{axes}", gradient, layer.weight)
        if layer.kind == "pool":
            return self.loops(
                name, "unpool", self.nodes[layer.made].shape, (Role.FREE,) * 4, _pairs(),
                Edge(gradient, _axes(0, 1, 2, 3)), Edge(layer.read, _pairs()),
            )  # fmt: skip
        if layer.stride != 1:
            raise ValueError(f"a convolution with stride {layer.stride} must be the first layer")
        assert layer.weight is not None
        kernel, _, channels, filters = self.nodes[layer.weight].shape
        batch, height, width, _ = self.nodes[layer.read].shape
        sizes = (batch, height, width, channels, filters, kernel, kernel)
        roles = (Role.FREE, Role.FREE, Role.FREE, Role.FREE, Role.REDUCE, Role.WHOLE, Role.WHOLE)
        image = _image(kernel, 1, (0, 1, 2, 4))
        return self.loops(name, "gradient", sizes, roles, _axes(0, 1, 2, 3),
                          Edge(gradient, image), Edge(layer.weight, _axes(5, 6, 3, 4)))  # fmt: skip

    def loops(
        self,
        name: str,
        op: str,
        sizes: Sequence[int],
        roles: Sequence[Role],
        out: tuple[AxisMap, ...],
        *edges: Edge,
    ) -> int:
        """Add a loop nest over windows, which is a contraction if a label is reduced."""
        labels = tuple(
            Label(size, role, self._cuts(size)) for size, role in zip(sizes, roles, strict=True)
        )
        summed = any(role is Role.REDUCE for role in roles)
        shape = tuple(axis.width * labels[axis.label or 0].size for axis in out)
        self.nodes.append(
            Node(
                name=name,
                op=op,
                kind=Kind.CONTRACT if summed else Kind.MAP,
                labels=labels,
                out=out,
                shape=shape,
                dtype=f"f{self.itemsize}",
                itemsize=self.itemsize,
                chunks=tuple((size,) for size in shape),
                edges=edges,
                partial=float(self.itemsize),
                work=2.0 if summed else 4.0,
            )
        )
        return len(self.nodes) - 1


def mlp(
    batch: int, width: int, layers: int, *, input_gradient: bool = False, placed: bool = False
) -> Program:
    """One training step of a perceptron with layers of equal width.

    Parameters
    ----------
    batch, width, layers
        Number of samples, neurons of a layer, and number of layers.
    input_gradient
        Whether the gradient of the first layer's input is computed.  The paper counts three
        products for every layer, which includes it.
    placed
        Whether the samples are already on all workers that read them, as the paper assumes.
    """
    net = Training()
    x = net.source("samples", batch, width, placed=placed)
    for _ in range(layers):
        x = net.dense(x, width)
    return net.step(input_gradient)


def cnn(batch: int = 256, image: int = 6, filters: int = 2048, layers: int = 5) -> Program:
    """One training step of equal 3 x 3 convolutions."""
    net = Training()
    x = net.source("samples", batch, image, image, filters)
    for _ in range(layers):
        x = net.convolution(x, filters, 3)
    return net.step()


def alexnet(batch: int = 256) -> Program:
    """One training step of AlexNet, without groups.

    Images have 192 x 192 pixels, so that the last layer has the published 6 x 6.
    """
    net = Training()
    x = net.convolution(net.source("samples", batch, 192, 192, 3), 96, 11, stride=4)
    x = net.convolution(net.pool(x), 256, 5)
    x = net.convolution(net.pool(x), 384, 3)
    x = net.pool(net.convolution(net.convolution(x, 384, 3), 256, 3))
    for width in (4096, 4096, 1000):
        x = net.dense(x, width)
    return net.step()


def vgg(batch: int = 256) -> Program:
    """One training step of VGG-16."""
    net = Training()
    x = net.source("samples", batch, 224, 224, 3)
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = net.convolution(x, filters, 3)
        x = net.pool(x)
    for width in (4096, 4096, 1000):
        x = net.dense(x, width)
    return net.step()


def _axes(*labels: int) -> tuple[AxisMap, ...]:
    return tuple(map(AxisMap, labels))


def _image(kernel: int, stride: int, labels: tuple[int, int, int, int]) -> tuple[AxisMap, ...]:
    """Windows around every position of (batch, height, width, channels)."""
    samples, rows, columns, channels = labels
    start = -((kernel - stride) // 2)
    return (
        AxisMap(samples),
        AxisMap(rows, start, stride, kernel),
        AxisMap(columns, start, stride, kernel),
        AxisMap(channels),
    )


def _pairs() -> tuple[AxisMap, ...]:
    """Windows of two by two pixels of (batch, height, width, channels)."""
    return (AxisMap(0), AxisMap(1, 0, 2, 2), AxisMap(2, 0, 2, 2), AxisMap(3))
