"""NasNet-A (Zoph et al. 2018), with a given number of repeated cells."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.papers.models.layers import V100, Device, Network, Tensor
from dasktile.schedule.taskgraph import TaskGraph

CLASSES = 1000


@dataclass(frozen=True, slots=True)
class _Cells:
    """The normal and the reduction cell of NasNet-A."""

    net: Network
    separable: int

    def sep(self, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
        """Depthwise and pointwise convolution with batch normalisation, `separable` times."""
        net = self.net
        for _ in range(self.separable):
            x = net.conv(x, x.shape[1], kernel, stride, depthwise=True, name="depthwise")
            x = net.norm(net.conv(x, channels))
            stride = 1
        return x

    def squeeze(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        net = self.net
        return net.norm(net.conv(x, channels, 1, stride))

    def fit(self, before: Tensor, x: Tensor, channels: int) -> tuple[Tensor, Tensor]:
        """Both inputs of a cell, with the same channels, height and width."""
        stride = before.shape[2] // x.shape[2] if before.shape[2] > x.shape[2] else 1
        return self.squeeze(before, channels, stride), self.squeeze(x, channels)

    def normal(self, before: Tensor, x: Tensor, channels: int) -> Tensor:
        net = self.net
        p, h = self.fit(before, x, channels)
        return net.concat(
            [
                net.add(self.sep(h, channels, 3), h),
                net.add(self.sep(h, channels, 5), self.sep(p, channels, 3)),
                net.add(net.pool(h, 3, mean=True), p),
                net.add(net.pool(p, 3, mean=True), net.pool(p, 3, mean=True)),
                net.add(self.sep(p, channels, 5), self.sep(p, channels, 3)),
            ]
        )

    def reduction(self, before: Tensor, x: Tensor, channels: int) -> Tensor:
        net = self.net
        p, h = self.fit(before, x, channels)
        first = net.add(self.sep(h, channels, 5, 2), self.sep(p, channels, 7, 2), in_place=False)
        second = net.add(net.pool(h, 3, 2), self.sep(p, channels, 7, 2))
        third = net.add(net.pool(h, 3, 2, mean=True), self.sep(p, channels, 5, 2))
        fourth = net.add(net.pool(first, 3, mean=True), second)
        fifth = net.add(self.sep(first, channels, 3), net.pool(h, 3, 2))
        return net.concat([second, third, fourth, fifth])


def nasnet(
    batch: int,
    repeats: int = 25,
    *,
    filters: int = 168,
    image: int = 331,
    separable: int = 1,
    training: bool = True,
    device: Device = V100,
) -> TaskGraph:
    """One step of NasNet-A: two reduction cells, then three stages of normal cells.

    There is a reduction cell between stages.

    Parameters
    ----------
    batch
        Number of images.
    repeats
        Number of normal cells of a stage, ``R`` of the thesis.
    filters
        Channels of the normal cells of the first stage; they double at every reduction.
    separable
        Number of times that a separable convolution is applied; 2 in the first paper.  With 1 the
        number of operations is that of the thesis.
    training
        Whether to include gradients and updates.
    """
    net = Network(device, training)
    cells = _Cells(net, separable)
    x = net.data((batch, 3, image, image))
    x = before = net.norm(net.conv(x, 96, 3, 2, same=False))
    for part in (4, 2):
        before, x = x, cells.reduction(before, x, filters // part)
    for stage in range(3):
        if stage:
            before, x = x, cells.reduction(before, x, filters << stage)
        for _ in range(repeats):
            before, x = x, cells.normal(before, x, filters << stage)
    x = net.global_mean(net.relu(x))
    weight = net.parameter((x.shape[1], CLASSES), "classes.weight")
    net.loss(net.dense(x, weight))
    return net.graph()
