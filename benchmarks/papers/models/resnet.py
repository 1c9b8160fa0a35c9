"""ResNet-152 (He et al. 2016), with the channels multiplied (Zagoruyko and Komodakis 2016)."""

from __future__ import annotations

from benchmarks.papers.models.layers import V100, Device, Network, Tensor
from dasktile.schedule.taskgraph import TaskGraph

#: Number of blocks of every stage, and of channels within a block.
STAGES = ((3, 64), (8, 128), (36, 256), (3, 512))
CLASSES = 1000


def resnet152(
    batch: int,
    wide: int = 1,
    *,
    image: int = 224,
    training: bool = True,
    device: Device = V100,
) -> TaskGraph:
    """One step of a residual network of 152 layers.

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
    x = net.data((batch, 3, image, image))
    x = net.norm(net.conv(x, 64 * wide, 7, 2))
    x = net.pool(x, 3, 2)
    for stage, (blocks, channels) in enumerate(STAGES):
        for block in range(blocks):
            x = _bottleneck(net, x, channels * wide, 2 if stage and not block else 1)
    x = net.global_mean(x)
    weight = net.parameter((x.shape[1], CLASSES), "classes.weight")
    net.loss(net.dense(x, weight))
    return net.graph()


def _bottleneck(net: Network, x: Tensor, channels: int, stride: int) -> Tensor:
    shortcut = x
    if stride > 1 or x.shape[1] != 4 * channels:
        shortcut = net.norm(net.conv(x, 4 * channels, 1, stride))
    y = net.norm(net.conv(x, channels))
    y = net.norm(net.conv(y, channels, 3, stride))
    y = net.norm(net.conv(y, 4 * channels))
    return net.add(y, shortcut, relu=True)
