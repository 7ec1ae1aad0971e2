"""The zoo as a whole: samples, one training step of each toy variant, image sizes, and what a name resolves to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vdnn.models import MODELS, ModelSpec, load, names, resolve
from vdnn.models.samples import Images

ALL = pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Toy networks have nothing to share out, and waiting for a second thread takes longer than their steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_zoo_has_the_networks_of_the_papers_and_of_today() -> None:
    expected = (
        "alexnet alexnet-lrn overfeat nin googlenet vgg16 vgg116 vgg216 vgg316 vgg416 resnet50 resnet101 resnet152"
    )
    expected += " inception-v3 inception-v4 densenet121 unet vit gpt2 biglstm gnmt"
    assert set(names()) == set(expected.split())


SAMPLES = {
    "alexnet": [(3, 3, 227, 227), (3,)],
    "alexnet-lrn": [(3, 3, 227, 227), (3,)],
    "overfeat": [(3, 3, 231, 231), (3,)],
    "nin": [(3, 3, 227, 227), (3,)],
    "inception-v3": [(3, 3, 299, 299), (3,)],
    "inception-v4": [(3, 3, 299, 299), (3,)],
    "unet": [(3, 1, 572, 572), (3, 388, 388)],
    "gpt2": [(3, 1024), (3, 1024)],
    "biglstm": [(3, 20), (3, 20), (3, 20)],
    "gnmt": [(3, 50), (3, 50), (3, 50)],
}


@ALL
def test_a_sample_has_the_papers_shapes(spec: ModelSpec) -> None:
    with torch.device("meta"):
        shapes = [tuple(tensor.shape) for tensor in spec.sample(3)]
    assert shapes == SAMPLES.get(spec.name, [(3, 3, 224, 224), (3,)])


@ALL
def test_at_full_size_a_step_runs_on_meta_and_allocates_nothing(spec: ModelSpec) -> None:
    work = load(spec.name, 2, device="meta")
    loss = work.step(*work.args)
    assert loss.shape == ()
    assert all(tensor.is_meta for tensor in (loss, *work.args, *work.model.parameters(), *work.model.buffers()))


@ALL
def test_a_small_network_trains_one_step_in_which_every_parameter_gets_a_gradient(spec: ModelSpec) -> None:
    torch.manual_seed(0)
    work = spec.small().workload(2)
    loss = work.step(*work.args)
    loss.backward()
    assert torch.isfinite(loss)
    without = [name for name, parameter in work.model.named_parameters() if parameter.grad is None]
    broken = [name for name, p in work.model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    assert (without, broken) == ([], [])


@ALL
def test_a_small_network_is_small_and_in_training_mode(spec: ModelSpec) -> None:
    small = spec.small()
    assert small.num_parameters < 5_000_000
    assert small.small() is small
    assert small.build().training


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "gpt2", "gnmt"])
def test_a_few_steps_of_plain_descent_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    work = load(name, 4, small=True)
    for module in work.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.Adam(work.model.parameters(), lr=3e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = work.step(*work.args)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


SMALLEST = {
    name: spec.sample.smallest
    for name, spec in MODELS.items()
    if isinstance(spec.sample, Images) and spec.sample.smallest is not None
}
RESIZABLE = pytest.mark.parametrize(("name", "smallest"), SMALLEST.items(), ids=SMALLEST.keys())


@RESIZABLE
def test_at_its_smallest_image_and_batch_a_network_still_runs(name: str, smallest: int) -> None:
    work = load(name, MODELS[name].smallest_batch, device="meta", image_size=smallest)
    assert work.args[0].shape[-1] == smallest
    assert work.step(*work.args).shape == ()


@RESIZABLE
def test_one_pixel_less_than_the_smallest_image_is_refused_with_the_number(name: str, smallest: int) -> None:
    with pytest.raises(ValueError, match=f"{name} needs images of {smallest}x{smallest} at least"):
        MODELS[name].at_image_size(smallest - 1)


def test_the_classics_take_other_image_sizes() -> None:
    assert {"alexnet", "vgg16", "resnet50", "resnet152", "densenet121", "unet"} <= SMALLEST.keys()


def test_a_size_unet_cannot_halve_is_refused_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="256 does not work, 252 and 268 do"):
        load("unet", 1, device="meta", image_size=256)


@pytest.mark.parametrize("size", [252, 268])
def test_the_neighbours_that_unet_proposes_work(size: int) -> None:
    work = load("unet", 1, device="meta", image_size=size)
    assert work.step(*work.args).shape == ()


@pytest.mark.parametrize("name", ["gpt2", "biglstm"])
def test_a_network_without_images_has_no_image_size(name: str) -> None:
    with pytest.raises(ValueError, match="takes no images"):
        load(name, 1, device="meta", image_size=64)


def test_vit_has_one_image_size() -> None:
    with pytest.raises(ValueError, match="vit has one input size, 224x224"):
        load("vit", 1, device="meta", image_size=192)


@pytest.mark.parametrize("size", [0, -3, True, 2.5])
def test_an_image_size_that_is_no_number_of_pixels_is_refused(size: object) -> None:
    with pytest.raises(ValueError, match="whole number of pixels"):
        load("vgg16", 1, device="meta", image_size=size)  # type: ignore[arg-type]


def test_stage_counts_make_a_resnet_of_that_name() -> None:
    spec = resolve("resnet-6-32-788-6")
    assert isinstance(spec, ModelSpec)
    assert (spec.name, spec.title) == ("resnet-6-32-788-6", "ResNet-2498, bottlenecks (6, 32, 788, 6)")


def test_a_resnet_stage_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        resolve("resnet-3-0-6-3")


@pytest.mark.parametrize(
    ("typed", "meant"), [("vgg61", "vgg16"), ("ResNet50", "resnet50"), ("inceptionv3", "inception-v3")]
)
def test_an_unknown_name_is_answered_with_close_ones_and_the_way_to_the_list(typed: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"no model '{typed}'\. Close to it: .*{meant}.*`vdnn models`"):
        resolve(typed)


def test_a_name_close_to_nothing_is_answered_with_the_list_alone() -> None:
    with pytest.raises(ValueError, match=r"no model 'qqqq'\. `vdnn models` lists the 21 names"):
        resolve("qqqq")


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "4"])
def test_a_batch_that_is_no_number_of_samples_is_refused(batch: object) -> None:
    with pytest.raises(ValueError, match="at least 1, not"):
        load("vgg16", batch, small=True)  # type: ignore[arg-type]


def test_a_spec_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODELS["vgg16"].name = "vgg17"  # type: ignore[misc]
