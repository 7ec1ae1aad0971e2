"""Ops as functions of one batch of shape (2, 4, 8, 8), by name: those whose traced form could differ from eager's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from where import seeded

Function = Callable[[Tensor], Tensor]


def image_batch() -> Tensor:
    return torch.randn(2, 4, 8, 8, generator=seeded(0))


def _drawn_transposed(draw: Callable[[Tensor], Tensor]) -> Function:
    return lambda x: x * draw(torch.empty_like(x.permute(1, 0, 3, 2))).permute(1, 0, 3, 2)


def _set_channel(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0] = y[:, 1] * 2
    return y


def _attention(**options: object) -> Function:
    return lambda x: F.scaled_dot_product_attention(x, x, x, **options)  # type: ignore[arg-type]


RANDOM: dict[str, Function] = {
    "dropout 0.025": lambda x: F.dropout(x, 0.025),
    "dropout 0.1": lambda x: F.dropout(x, 0.1),
    "dropout 0": lambda x: F.dropout(x, 0.0) * 2,
    "dropout 1": lambda x: F.dropout(x, 1.0),
    "dropout in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "dropout of a permuted tensor": lambda x: F.dropout(x.permute(2, 0, 1, 3), 0.1),
    "dropout 0.025 of a permuted tensor": lambda x: F.dropout(x.permute(2, 0, 1, 3), 0.025),
    "dropout of an expanded tensor": lambda x: F.dropout(x.mean(1, keepdim=True).expand(-1, 4, -1, -1), 0.1),
    "dropout of a slice": lambda x: F.dropout(x[:, ::2, 1:], 0.1),
    "dropout in channels_last": lambda x: F.dropout(x.to(memory_format=torch.channels_last), 0.3),
    "dropout in bfloat16": lambda x: F.dropout(x.bfloat16(), 0.3).float(),
    "dropout 0.025 in permuted bfloat16": lambda x: F.dropout(x.permute(2, 0, 1, 3).bfloat16(), 0.025).float(),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.1, training=True),
    "dropout2d": lambda x: F.dropout2d(x, 0.3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand and randn": lambda x: x * torch.rand_like(x) + torch.randn(8),
    "normal": lambda x: x + torch.normal(0.0, 1.0, (8,), device=x.device),
    "bernoulli": lambda x: x + torch.bernoulli(torch.full((8,), 0.3)),
    "uniform_ of a transposed tensor": _drawn_transposed(lambda empty: empty.uniform_()),
    "normal_ of a transposed tensor": _drawn_transposed(lambda empty: empty.normal_()),
    "bernoulli_ of a transposed tensor": _drawn_transposed(lambda empty: empty.bernoulli_(0.3)),
    "attention with dropout": _attention(dropout_p=0.2),
}

RESIZING: dict[str, Function] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest to a size": lambda x: F.interpolate(x, size=(13, 11)),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.5, mode="bilinear"),
    "bilinear with aligned corners": lambda x: F.interpolate(x, size=(17, 9), mode="bilinear", align_corners=True),
    "bilinear antialiased": lambda x: F.interpolate(x, size=5, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "area": lambda x: F.interpolate(x, size=3, mode="area"),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive average pool": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, 3),
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "power-average pool": lambda x: F.lp_pool2d(x.abs() + 1, 2, 2),
    "unfold": lambda x: F.unfold(x, 3),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "grid sample": lambda x: F.grid_sample(x, torch.zeros(2, 4, 4, 2) + 0.1, align_corners=False),
    "reflection pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replication pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "circular pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
}

ACTIVATIONS: dict[str, Function] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2])),
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "gelu with tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "glu": lambda x: F.glu(x, 1),
    "softmax": lambda x: x.softmax(1),
    "chain of in-place ops": lambda x: x.clone().add_(1).mul_(2).sigmoid_(),
    "clamp": lambda x: x.clamp(-1, 1),
    "where": lambda x: torch.where(x > 0, x, x * x),
    "minimum": lambda x: torch.minimum(x, x * x),
}

NORMALIZATIONS: dict[str, Function] = {
    "layer norm": lambda x: F.layer_norm(x, (8, 8)),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": F.instance_norm,
    "local response norm": lambda x: F.local_response_norm(x, 3),
    "norm": lambda x: x.norm(dim=1),
    "standard deviation": lambda x: x.std(1),
    "variance": lambda x: x.var((2, 3)),
    "cosine similarity": lambda x: F.cosine_similarity(x, x * x, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "distances": lambda x: torch.cdist(x.flatten(1), x.flatten(1) + 1),
}

INDEXING: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "maximum over channels": lambda x: x.amax(1),
    "gather": lambda x: x.gather(1, torch.zeros(2, 4, 8, 8, dtype=torch.long)),
    "index with repeats": lambda x: x[:, [0, 0, 2]],
    "assignment to a channel": _set_channel,
    "roll": lambda x: x.roll(1, 2),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x.sin()]),
    "chunk": lambda x: x.chunk(2, 1)[1] * 3,
    "one hot": lambda x: x * F.one_hot(torch.arange(8) % 4, 8),
}

PRODUCTS: dict[str, Function] = {
    "matmul": lambda x: x @ x.transpose(2, 3),
    "matmul of a flattened tensor": lambda x: x.flatten(2) @ torch.ones(64, 5),
    "bmm": lambda x: torch.bmm(x.flatten(0, 1), x.flatten(0, 1)),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "conv1d": lambda x: F.conv1d(x.flatten(2), torch.ones(3, 4, 3)),
    "conv3d": lambda x: F.conv3d(x[:, None], torch.ones(3, 1, 3, 3, 3)),
    "transposed convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 3, 3)),
    "depthwise convolution": lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3), groups=4),
    "convolution in channels_last": lambda x: F.relu(
        F.conv2d(x.to(memory_format=torch.channels_last), torch.ones(4, 4, 3, 3))
    ),
    "attention": _attention(),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(8, 8).tril().bool()),
}

LOSSES: dict[str, Function] = {
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(2, 8, 8, dtype=torch.long)),
    "cross entropy with label smoothing": lambda x: F.cross_entropy(
        x.flatten(2).mean(2), torch.tensor([1, 2]), label_smoothing=0.1
    ),
    "multi margin": lambda x: F.multi_margin_loss(x.flatten(1), torch.tensor([1, 2])),
    "huber": lambda x: F.huber_loss(x, x.detach() * 2),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x.detach() + 1),
    "kl divergence": lambda x: F.kl_div(x.log_softmax(1), x.softmax(1).detach(), reduction="batchmean"),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
}


def ctc(x: Tensor) -> Tensor:
    """Its lengths are values of tensors."""
    scores, targets = x.flatten(2).permute(2, 0, 1).log_softmax(2), torch.tensor([[1, 2], [2, 3]])
    return F.ctc_loss(scores, targets, torch.tensor([64, 64]), torch.tensor([2, 2]))


KINDS: dict[str, dict[str, Function]] = {
    "random": RANDOM,
    "resizing": RESIZING,
    "activations": ACTIVATIONS,
    "normalizations": NORMALIZATIONS,
    "indexing": INDEXING,
    "products": PRODUCTS,
    "losses": LOSSES,
}
FUNCTIONS = {name: function for functions in KINDS.values() for name, function in functions.items()}


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[:, 0], x[:, 1], x[:, 2])[0]


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(torch.tensor([1, 2, 2])) * x.mean()


class _EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, 0])


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "multi-head attention": _Attention,
    "embedding": _Embedded,
    "transformer encoder layer": _EncoderLayer,
    "tracked instance norm": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "transposed convolution with dropout": lambda: nn.Sequential(
        nn.ConvTranspose2d(4, 8, 3, 2), nn.Dropout2d(0.4), nn.SELU(), nn.AlphaDropout(0.2), nn.Hardswish(True)
    ),
    "circular convolution": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), nn.PReLU(8), nn.GroupNorm(2, 8), nn.Softplus()
    ),
}
