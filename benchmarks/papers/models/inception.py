"""Inception-v4 (Szegedy et al. 2017), with the channels multiplied by a factor."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.models.layers import V100, Device, Network, Tensor
from dasktile.schedule.taskgraph import TaskGraph

CLASSES = 1000


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of the paper's figures; convolutions are followed by batch normalisation."""

    net: Network
    wide: int

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        same: bool = True,
    ) -> Tensor:
        net = self.net
        return net.norm(net.conv(x, self.wide * channels, kernel, stride, same=same))

    def chain(self, x: Tensor, *layers: tuple[int, int | tuple[int, int]]) -> Tensor:
        for channels, kernel in layers:
            x = self.conv(x, channels, kernel)
        return x

    def stem(self, x: Tensor) -> Tensor:
        net = self.net
        x = self.conv(x, 32, 3, 2, same=False)
        x = self.conv(x, 32, 3, same=False)
        x = self.conv(x, 64, 3)
        x = net.concat([net.pool(x, 3, 2, same=False), self.conv(x, 96, 3, 2, same=False)])
        left = self.conv(self.chain(x, (64, 1)), 96, 3, same=False)
        right = self.chain(x, (64, 1), (64, (7, 1)), (64, (1, 7)))
        right = self.conv(right, 96, 3, same=False)
        x = net.concat([left, right])
        return net.concat([self.conv(x, 192, 3, 2, same=False), net.pool(x, 3, 2, same=False)])

    def a(self, x: Tensor) -> Tensor:
        return self.net.concat(
            [
                self.chain(self.net.pool(x, 3, mean=True), (96, 1)),
                self.chain(x, (96, 1)),
                self.chain(x, (64, 1), (96, 3)),
                self.chain(x, (64, 1), (96, 3), (96, 3)),
            ]
        )

    def reduction_a(self, x: Tensor) -> Tensor:
        return self.net.concat(
            [
                self.net.pool(x, 3, 2, same=False),
                self.conv(x, 384, 3, 2, same=False),
                self.conv(self.chain(x, (192, 1), (224, 3)), 256, 3, 2, same=False),
            ]
        )

    def b(self, x: Tensor) -> Tensor:
        wide, high = (1, 7), (7, 1)
        return self.net.concat(
            [
                self.chain(self.net.pool(x, 3, mean=True), (128, 1)),
                self.chain(x, (384, 1)),
                self.chain(x, (192, 1), (224, wide), (256, high)),
                self.chain(x, (192, 1), (192, wide), (224, high), (224, wide), (256, high)),
            ]
        )

    def reduction_b(self, x: Tensor) -> Tensor:
        third = self.chain(x, (256, 1), (256, (1, 7)), (320, (7, 1)))
        return self.net.concat(
            [
                self.net.pool(x, 3, 2, same=False),
                self.conv(self.chain(x, (192, 1)), 192, 3, 2, same=False),
                self.conv(third, 320, 3, 2, same=False),
            ]
        )

    def c(self, x: Tensor) -> Tensor:
        third = self.chain(x, (384, 1))
        fourth = self.chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        return self.net.concat(
            [
                self.chain(self.net.pool(x, 3, mean=True), (256, 1)),
                self.chain(x, (256, 1)),
                self.conv(third, 256, (1, 3)),
                self.conv(third, 256, (3, 1)),
                self.conv(fourth, 256, (3, 1)),
                self.conv(fourth, 256, (1, 3)),
            ]
        )


def inception4(
    batch: int,
    wide: int = 4,
    *,
    image: int = 299,
    training: bool = True,
    device: Device = V100,
) -> TaskGraph:
    """One step of Inception-v4.

    Parameters
    ----------
    batch
        Number of images.
    wide
        Factor of the channels of every convolution.
    image
        Height and width of images.
    training
        Whether to include gradients and updates.
    """
    net = Network(device, training)
    cells = _Cells(net, wide)
    x = cells.stem(net.data((batch, 3, image, image)))
    for cell, times in (
        (cells.a, 4),
        (cells.reduction_a, 1),
        (cells.b, 7),
        (cells.reduction_b, 1),
        (cells.c, 3),
    ):
        for _ in range(times):
            x = cell(x)
    x = net.global_mean(x)
    weight = net.parameter((x.shape[1], CLASSES), "classes.weight")
    net.loss(net.dense(x, weight))
    return net.graph()
