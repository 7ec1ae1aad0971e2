"""The networks of the vDNN paper (Rhu et al., MICRO 2016, section 4), layer by layer.

Enters: nothing, or a batch size. Leaves: graphs. AlexNet without groups and normalisation, OverFeat's fast model,
GoogLeNet with its nine inception modules and no auxiliary classifiers, VGG-16 (configuration D), and the very deep
VGG-N with (N - 16) / 5 more convolutions in each of VGG-16's five groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vdnn.ir import Graph
from vdnn.papers.googlenet_table import INCEPTIONS, Widths
from vdnn.papers.layer_network import LayerNetwork, Map

VGG_GROUPS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels and convolutions of VGG-16's groups


def alexnet(batch: int = 128) -> Graph:
    net = LayerNetwork(f"AlexNet({batch})", batch)
    x = net.convolution("conv1", net.images(3, 227, 227), 96, 11, stride=4)
    x = net.convolution("conv2", net.pooling("pool1", x, 3, 2), 256, 5, padding=2)
    x = net.convolution("conv3", net.pooling("pool2", x, 3, 2), 384, 3, padding=1)
    x = net.convolution("conv4", x, 384, 3, padding=1)
    x = net.convolution("conv5", x, 256, 3, padding=1)
    return _classified(net, net.pooling("pool5", x, 3, 2), (4096, 4096))


def overfeat(batch: int = 128) -> Graph:
    net = LayerNetwork(f"OverFeat({batch})", batch)
    x = net.convolution("conv1", net.images(3, 231, 231), 96, 11, stride=4)
    x = net.convolution("conv2", net.pooling("pool1", x, 2, 2), 256, 5)
    x = net.convolution("conv3", net.pooling("pool2", x, 2, 2), 512, 3, padding=1)
    x = net.convolution("conv4", x, 1024, 3, padding=1)
    x = net.convolution("conv5", x, 1024, 3, padding=1)
    return _classified(net, net.pooling("pool5", x, 2, 2), (3072, 4096))


def googlenet(batch: int = 128) -> Graph:
    net = LayerNetwork(f"GoogLeNet({batch})", batch)
    x = net.convolution("conv1", net.images(3, 224, 224), 64, 7, stride=2, padding=3)
    x = net.convolution("conv2_reduce", net.pooling("pool1", x, 3, 2), 64, 1)
    x = net.pooling("pool2", net.convolution("conv2", x, 192, 3, padding=1), 3, 2)
    for name, widths in INCEPTIONS.items():
        if name in ("4a", "5a"):
            x = net.pooling(f"pool{int(name[0]) - 1}", x, 3, 2)
        x = _inception(net, f"inception_{name}", x, widths)
    return _classified(net, net.pooling("pool5", x, 7, 1, kind="average"), ())


def vgg(depth: int = 16, batch: int = 256) -> Graph:
    """VGG-16, or VGG-116, 216, ... with 20, 40, ... convolutions added to each group."""
    added, rest = divmod(depth - 16, len(VGG_GROUPS))
    if added < 0 or rest:
        raise ValueError(f"VGG-{depth} is not VGG-16 with the same number of convolutions added to each of 5 groups")
    net = LayerNetwork(f"VGG-{depth}({batch})", batch)
    x = net.images(3, 224, 224)
    for group, (channels, count) in enumerate(VGG_GROUPS, start=1):
        for k in range(1, count + added + 1):
            x = net.convolution(f"conv{group}_{k}", x, channels, 3, padding=1)
        x = net.pooling(f"pool{group}", x, 2, 2)
    return _classified(net, x, (4096, 4096))


def _inception(net: LayerNetwork, name: str, x: Map, widths: Widths) -> Map:
    plain, reduce3, wide3, reduce5, wide5, pooled = widths
    branch1 = net.convolution(f"{name}.1x1", x, plain, 1)
    branch3 = net.convolution(f"{name}.3x3", net.convolution(f"{name}.3x3_reduce", x, reduce3, 1), wide3, 3, padding=1)
    branch5 = net.convolution(f"{name}.5x5", net.convolution(f"{name}.5x5_reduce", x, reduce5, 1), wide5, 5, padding=2)
    branch_pool = net.convolution(f"{name}.pool_proj", net.pooling(f"{name}.pool", x, 3, 1, padding=1), pooled, 1)
    return net.concat(name, (branch1, branch3, branch5, branch_pool))


def _classified(net: LayerNetwork, x: Map, hidden: tuple[int, ...], classes: int = 1000) -> Graph:
    for k, features in enumerate(hidden):
        x = net.linear(f"fc{k + 6}", x, features)  # 6: the papers number them after five groups of convolutions
    net.softmax("softmax", net.linear("classifier", x, classes, relu=False))
    return net.graph()


NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "AlexNet(128)": alexnet,
    "OverFeat(128)": overfeat,
    "GoogLeNet(128)": googlenet,
    "VGG-16(64)": lambda: vgg(16, 64),
    "VGG-16(128)": lambda: vgg(16, 128),
    "VGG-16(256)": lambda: vgg(16, 256),
    "VGG-116(32)": lambda: vgg(116, 32),
    "VGG-216(32)": lambda: vgg(216, 32),
    "VGG-316(32)": lambda: vgg(316, 32),
    "VGG-416(32)": lambda: vgg(416, 32),
}
"""The ten networks of the paper's evaluation."""
