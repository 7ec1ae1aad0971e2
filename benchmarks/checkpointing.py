"""`torch.utils.checkpoint` around the blocks of a network of the zoo, for the length of a step.

Enters: a workload. Leaves: `Forwards`, other forwards for some of its modules, and a step that runs with them. The one
idea: the network is not changed; while a step runs, the modules that hold its blocks call `checkpoint`, and afterwards
they are what they were.

Most networks hold their blocks in one nn.Sequential, a chain that can be cut anywhere (`BLOCKS`). U-Net is no chain:
its skips reach from the way down to the way up, so only its single blocks can be checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from vdnn.models.densenet import DenseBlock
from vdnn.models.spec import Workload

Forwards = Mapping[nn.Module, Callable[..., Tensor]]

BLOCKS = {
    "vgg16": "features",
    "resnet50": "stages",
    "googlenet": "modules_3a_to_5b",
    "densenet121": "blocks",
    "vit": "blocks",
    "gpt2": "blocks",
}
"""Where each network keeps its blocks, one after the other."""

SAVED_OPS = frozenset(
    {
        torch.ops.aten.convolution.default,
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    }
)
"""What is dear to compute: selective checkpointing keeps its results and computes the rest again."""


def per_block(load: Workload, **options: Any) -> Forwards:
    """Every block by itself. `options` are those of `checkpoint`."""
    blocks = chain(load)
    if blocks is not None:
        return {blocks: partial(run_stretches, block_stretches(blocks), **options)}
    network: Any = load.model
    return {block: partial(again_in_backward, block.forward, **options) for block in (*network.down, *network.up)}


def in_sqrt_stretches(load: Workload) -> Forwards | None:
    """About sqrt(n) stretches of sqrt(n) blocks (Chen et al. 2016). None where the blocks are no chain."""
    blocks = chain(load)
    return None if blocks is None else {blocks: partial(run_stretches, sqrt_stretches(blocks))}


def selective(load: Workload) -> Forwards:
    """Every block by itself, with the results of `SAVED_OPS` kept.

    They may be written to afterwards: behind a convolution, ReLU works in place. That its result is then taken for the
    convolution's does no harm, because ReLU of ReLU is ReLU; a comparison of gradients is the proof.
    """
    contexts = partial(create_selective_checkpoint_contexts, save_the_dear, allow_cache_entry_mutation=True)
    return per_block(load, context_fn=contexts)


def per_dense_layer(load: Workload) -> Forwards | None:
    """Every layer of a DenseNet together with the concatenation it reads, as torchvision's `memory_efficient`. None
    for other networks."""
    dense = [module for module in load.model.modules() if isinstance(module, DenseBlock)]
    return {block: partial(run_dense_block, block) for block in dense} or None


def chain(load: Workload) -> nn.Sequential | None:
    attribute = BLOCKS.get(load.name.partition("-")[0])
    return None if attribute is None else getattr(load.model, attribute)


def block_stretches(blocks: nn.Sequential) -> list[Sequence[nn.Module]]:
    """Every child by itself; where pools separate groups of single convolutions (VGG), every group."""
    stretches: list[list[nn.Module]] = [[]]
    is_grouped = {type(block) for block in blocks} == {nn.Sequential, nn.MaxPool2d}
    for block in blocks:
        stretches[-1].append(block)
        if not is_grouped or isinstance(block, nn.MaxPool2d):
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def sqrt_stretches(blocks: nn.Sequential) -> list[Sequence[nn.Module]]:
    children = list(blocks)
    length = -(-len(children) // max(isqrt(len(children)), 1))
    return [children[begin : begin + length] for begin in range(0, len(children), length)]


def run_stretches(stretches: list[Sequence[nn.Module]], x: Tensor, **options: Any) -> Tensor:
    for stretch in stretches:
        x = again_in_backward(partial(run_all, stretch), x, **options)
    return x


def run_all(stretch: Sequence[nn.Module], x: Tensor) -> Tensor:
    for block in stretch:
        x = block(x)
    return x


def run_dense_block(block: DenseBlock, x: Tensor) -> Tensor:
    maps = [x]
    for layer in block.layers:
        maps.append(again_in_backward(partial(run_on_all, layer), *maps))
    return torch.cat(maps, dim=1)


def run_on_all(layer: nn.Module, *maps: Tensor) -> Tensor:
    joined: Tensor = layer(torch.cat(maps, dim=1))
    return joined


def again_in_backward(run: Callable[..., Tensor], *args: Tensor, **options: Any) -> Tensor:
    result: Tensor = checkpoint(run, *args, use_reentrant=False, **options)
    return result


def save_the_dear(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def step_with(load: Workload, forwards: Forwards) -> Callable[..., Any]:
    """The workload's step while `forwards` are in force."""

    def step(*args: Tensor) -> Any:
        with replaced(forwards):
            return load.step(*args)

    return step


@contextmanager
def replaced(forwards: Forwards) -> Iterator[None]:
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward
