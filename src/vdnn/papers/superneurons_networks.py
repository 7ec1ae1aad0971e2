"""The networks of the SuperNeurons paper's recomputation table (Wang et al., PPoPP 2018, table 1), layer by layer.

Enters: nothing, or a batch size. Leaves: graphs. Shapes and order are those of the authors' release: images of 227 x
227, AlexNet without groups and with normalisation over channels, bottleneck ResNets whose blocks begin with a fork and
end with a join and an activation. A block's long branch runs before its shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vdnn.ir import Graph
from vdnn.papers.layer_network import Map
from vdnn.papers.superneurons_layers import DependencyNetwork

CLASSES = 1000
RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1."""


def alexnet(batch: int = 200) -> Graph:
    """23 layers, the images not counted."""
    net = DependencyNetwork(f"AlexNet({batch})", batch)
    x = net.act("act1", net.conv("conv1", net.data(3, 227, 227), 96, 11, stride=4))
    x = net.pool("pool1", net.lrn("lrn1", x), 3, 2)
    x = net.act("act2", net.conv("conv2", x, 256, 5, padding=2))
    x = net.pool("pool2", net.lrn("lrn2", x), 3, 2)
    for k, channels in ((3, 384), (4, 384), (5, 256)):
        x = net.act(f"act{k}", net.conv(f"conv{k}", x, channels, 3, padding=1))
    x = net.pool("pool5", x, 3, 2)
    for k in (6, 7):
        x = net.dropout(f"dropout{k}", net.act(f"act{k}", net.fc(f"fc{k}", x, 4096)))
    net.softmax("softmax", net.fc("fc8", x, CLASSES))
    return net.graph()


def resnet(depth: int = 50, batch: int = 32) -> Graph:
    if depth not in RESNET_BLOCKS:
        raise ValueError(f"the table has ResNets of {', '.join(map(str, RESNET_BLOCKS))} layers, not of {depth}")
    return bottlenecks(RESNET_BLOCKS[depth], batch)


def bottlenecks(counts: Sequence[int], batch: int) -> Graph:
    """The ResNet with so many bottlenecks in its four groups: 3 x their number + 2 weighted layers."""
    net = DependencyNetwork(f"ResNet{3 * sum(counts) + 2}({batch})", batch)
    x = net.conv("conv1", net.data(3, 227, 227), 64, 7, stride=2, padding=3, bias=False)
    x = net.pool("pool1", net.act("act1", net.bn("bn1", x)), 3, 2)
    for group, count in enumerate(counts):
        for k in range(count):
            stride = 2 if group > 0 and k == 0 else 1
            x = _bottleneck(net, f"block{group + 2}_{k + 1}", x, 64 << group, stride, widens=k == 0)
    net.softmax("softmax", net.fc("fc", net.pool("pool2", x, 7, 1), CLASSES))
    return net.graph()


def _bottleneck(net: DependencyNetwork, name: str, x: Map, channels: int, stride: int, *, widens: bool) -> Map:
    shortcut, y = net.fork(f"{name}.fork", x)
    for k, kernel in ((1, 1), (2, 3)):
        y = net.conv(f"{name}.conv{k}", y, channels, kernel, stride if k == 1 else 1, kernel // 2, bias=False)
        y = net.act(f"{name}.act{k}", net.bn(f"{name}.bn{k}", y))
    y = net.bn(f"{name}.bn3", net.conv(f"{name}.conv3", y, 4 * channels, 1, bias=False))
    if widens:
        projected = net.conv(f"{name}.projection", shortcut, 4 * channels, 1, stride, bias=False)
        shortcut = net.bn(f"{name}.projection_bn", projected)
    return net.act(f"{name}.act", net.join(f"{name}.join", (shortcut, y)))


NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "AlexNet(200)": alexnet,
    "ResNet50(32)": lambda: resnet(50),
    "ResNet101(32)": lambda: resnet(101),
}
"""The rows of the table."""
