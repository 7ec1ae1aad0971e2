"""Parameter counts of the zoo: those that others published, and the rest from layer shapes, by hand."""

from __future__ import annotations

import pytest

from vdnn.models import MODELS, ModelSpec
from vdnn.models.gpt2 import gpt2
from vdnn.models.inception_v3 import InceptionV3
from vdnn.models.resnet import num_layers, resnet
from vdnn.models.spec import count_parameters
from vdnn.papers.googlenet_table import INCEPTIONS


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel**2 + outputs


def fc(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def lstm(inputs: int, units: int, outputs: int) -> int:
    return 4 * units * (inputs + outputs) + 4 * units  # four gates, one bias each


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS.keys())
def test_a_network_has_the_parameters_its_spec_states(spec: ModelSpec) -> None:
    assert count_parameters(spec.build) == spec.num_parameters


# Counts that others published for exactly this network; the other counts are derived below, layer by layer.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("vgg16", 138_357_544),  # torchvision, and the next six
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("densenet121", 7_978_856),
        ("inception-v3", 27_161_264),
        ("vit", 86_567_656),
        ("inception-v4", 42_679_816),  # Cadene's and timm's ports of the TensorFlow weights
        ("gpt2", 124_439_808),  # the released 124M model
    ],
)
def test_a_published_count_is_the_one_in_the_spec(name: str, published: int) -> None:
    assert MODELS[name].num_parameters == published


def derived_alexnet() -> int:
    convolutions = conv(3, 96, 11) + conv(96, 256, 5) + conv(256, 384, 3) + conv(384, 384, 3) + conv(384, 256, 3)
    return convolutions + fc(256 * 6 * 6, 4096) + fc(4096, 4096) + fc(4096, 1000)


def derived_overfeat() -> int:
    convolutions = conv(3, 96, 11) + conv(96, 256, 5) + conv(256, 512, 3) + conv(512, 1024, 3) + conv(1024, 1024, 3)
    return convolutions + fc(1024 * 6 * 6, 3072) + fc(3072, 4096) + fc(4096, 1000)


def derived_nin() -> int:
    spatial = conv(3, 96, 11) + conv(96, 256, 5) + conv(256, 384, 3) + conv(384, 1024, 3)
    return (
        spatial + 2 * (conv(96, 96, 1) + conv(256, 256, 1) + conv(384, 384, 1)) + conv(1024, 1024, 1) + fc(1024, 1000)
    )


def derived_vgg(extra: int) -> int:
    return 138_357_544 + extra * (conv(64, 64, 3) + conv(128, 128, 3) + conv(256, 256, 3) + 2 * conv(512, 512, 3))


def derived_unet() -> int:
    down = conv(1, 64, 3) + sum(conv(c // 2, c, 3) for c in (128, 256, 512, 1024))
    down += sum(conv(c, c, 3) for c in (64, 128, 256, 512, 1024))
    up = sum(conv(2 * c, c, 2) + conv(2 * c, c, 3) + conv(c, c, 3) for c in (512, 256, 128, 64))
    return down + up + conv(64, 2, 1)


def derived_biglstm() -> int:
    words = 793_471
    layer = lstm(1024, 8192, outputs=1024) + 8192 * 1024  # the projection has no bias
    return words * 1024 + 2 * layer + fc(1024, words)


def derived_gnmt() -> int:
    encoder = (
        2 * lstm(1024, 1024, 1024) + lstm(2048, 1024, 1024) + 6 * lstm(1024, 1024, 1024)
    )  # layer 2 reads both ways
    decoder = 8 * lstm(2048, 1024, 1024)  # each layer also reads the attention's answer
    return 2 * 32_000 * 1024 + encoder + decoder + 2 * 1024 * 1024 + 1024 + fc(1024, 32_000)


@pytest.mark.parametrize(
    ("name", "derived"),
    [
        ("alexnet", derived_alexnet()),
        ("alexnet-lrn", derived_alexnet()),
        ("overfeat", derived_overfeat()),
        ("nin", derived_nin()),
        ("vgg116", derived_vgg(20)),
        ("vgg216", derived_vgg(40)),
        ("vgg316", derived_vgg(60)),
        ("vgg416", derived_vgg(80)),
        ("unet", derived_unet()),
        ("biglstm", derived_biglstm()),
        ("gnmt", derived_gnmt()),
    ],
)
def test_an_unpublished_count_follows_from_the_layer_shapes(name: str, derived: int) -> None:
    assert MODELS[name].num_parameters == derived


def test_googlenets_count_is_torchvisions_with_biases_and_the_papers_5x5_kernels() -> None:
    """torchvision's 6,624,904 have normalizations, two parameters per channel for our one bias, and 3x3 for 5x5."""
    channels = 64 + 64 + 192 + sum(sum(module) for module in INCEPTIONS.values())
    wider_kernels = sum((25 - 9) * c5_in * c5 for _, _, _, c5_in, c5, _ in INCEPTIONS.values())
    assert MODELS["googlenet"].num_parameters == 6_624_904 - channels + wider_kernels


def test_inception_v3_without_its_side_classifier_has_torchvisions_count() -> None:
    assert count_parameters(lambda: InceptionV3(auxiliary=False)) == 23_834_568


@pytest.mark.parametrize("counts", [(3, 4, 6, 3), (1, 1, 1, 1), (2, 5, 3, 4)])
def test_a_resnet_of_any_stage_counts_knows_its_size_without_being_built(counts: tuple[int, ...]) -> None:
    assert count_parameters(resnet(counts).build) == resnet(counts).num_parameters


def test_the_published_resnets_are_what_the_formula_gives() -> None:
    derived = [resnet(counts).num_parameters for counts in ((3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3))]
    assert derived == [25_557_032, 44_549_160, 60_192_808]


def test_superneurons_deepest_resnet_has_2498_layers() -> None:
    assert num_layers((6, 32, 788, 6)) == 2498


@pytest.mark.parametrize(
    ("width", "depth", "published"), [(1024, 24, 354_823_168), (1280, 36, 774_030_080), (1600, 48, 1_557_611_200)]
)
def test_larger_gpt2s_have_the_released_models_sizes(width: int, depth: int, published: int) -> None:
    assert gpt2(width=width, depth=depth).num_parameters == published


def test_a_gpt2_whose_width_does_not_make_whole_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="width=100 is no multiple of 64"):
        gpt2(width=100)
