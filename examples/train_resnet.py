"""A training loop for ResNet-50 with one line changed, and the proof that nothing else did.

python examples/train_resnet.py                                      # random images of 224 pixels
python examples/train_resnet.py --budget 60%                         # the same in 60 % of the memory
python examples/train_resnet.py --batch 2 --image-size 64 --steps 3  # seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import vdnn
from vdnn.models import MODELS, ModelSpec


def train(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> list[float]:
    """A loop as anyone writes it. It does not know whether the model is virtualized."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def random_batches(spec: ModelSpec, batch: int, steps: int) -> list[tuple[Tensor, ...]]:
    torch.manual_seed(1)
    return [spec.sample(batch) for _ in range(steps)]


def make_model(spec: ModelSpec) -> nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    return spec.build()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--budget", help="bytes, as in 2GiB, or a share of what keeping everything takes, as in 60%%")
    parser.add_argument("--small", action="store_true", help="the same architecture at toy widths")
    options = parser.parse_args(argv)
    resnet = MODELS["resnet50"].small() if options.small else MODELS["resnet50"]
    resnet = resnet.at_image_size(options.image_size)
    batches = random_batches(resnet, options.batch, options.steps)

    model = vdnn.virtualize(make_model(resnet), budget=options.budget)  # the one line
    losses = train(model, batches)

    plain_losses = train(make_model(resnet), batches)
    print(vdnn.report(model))
    print()
    print("loss, vdnn: ", " ".join(f"{loss:.6f}" for loss in losses))
    print("loss, plain:", " ".join(f"{loss:.6f}" for loss in plain_losses))
    print("the same numbers" if losses == plain_losses else "DIFFERENT")


if __name__ == "__main__":
    main()
