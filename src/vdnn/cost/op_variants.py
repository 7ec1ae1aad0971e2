"""Which other ways there are to compute a traced op, and which of them keep every bit.

Enters: a node of a captured graph. Leaves: names of variants, and whether their arithmetic may be the op's own. The one
idea of exactness: a sum in another order is another number. The table says which variants leave every sum alone; that a
library picks another kernel for another shape no table can know, so a variant that claims to be exact is also held to
the op's bits when it is measured, on inputs of the very shapes, strides and number of threads.

    variant         result, input's gradient     weight's and bias's gradient      may be exact
    channels_last   another kernel               another kernel                    no: 140 of 312 shapes differ
    chunks-k        each image its own sums      whole, as the op does             yes
    slices-k        each image its own sums      each channel its own sums         yes
    sums-k          each image its own sums      sums of k sums                    no

Chunks of single small images are where "may be" is not "is": ATen leaves oneDNN for its own kernel there
(aten/src/ATen/native/Convolution.cpp, `use_mkldnn`: one image, at most 20480 elements, a kernel of 3x3 or less).
Only float32 on the CPU is looked at: other types have other kernels, and nothing was measured of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of
from vdnn.rewrite.variant_calls import WITH_VARIANTS
from vdnn.runtime.convolution_variants import CHANNELS_LAST, CHUNKS, SLICES, SUMS
from vdnn.torch_private import OpOverload

COUNTS = (4, 16)
"""Parts of a batch, or of channels, that are tried. The result of a part is one more buffer of its size, so two parts
save nothing."""

_EXACT_FORMS = frozenset({CHUNKS, SLICES})


def variants_of(node: fx.Node) -> tuple[str, ...]:
    """Names of all variants but the op itself; none for what has none."""
    if node.target not in WITH_VARIANTS or not all(_is_known(source) for source in node.all_input_nodes):
        return ()
    assert isinstance(node.target, OpOverload), f"{node} has no schema"
    arguments = arguments_of(node)
    images = tensor_of(arguments["input"])
    assert images is not None, f"{node} convolves a tensor"
    counts = sorted({min(count, images.shape[0]) for count in COUNTS} - {1})
    if "output_mask" not in arguments:
        return (*_layouts_to_try(images), *_split(CHUNKS, counts))
    ties_channels = arguments["transposed"] or arguments["groups"] != 1
    return (*_layouts_to_try(images), *_of_gradients(arguments["output_mask"], counts, ties_channels))


def may_be_exact(variant: str) -> bool:
    """Whether the table above lets a variant claim the op's own bits."""
    return variant.partition("-")[0] in _EXACT_FORMS


def _is_known(source: fx.Node) -> bool:
    tensor = tensor_of(source)
    return tensor is not None and tensor.dtype is torch.float32 and tensor.device.type in ("cpu", "meta")


def _layouts_to_try(images: torch.Tensor) -> tuple[str, ...]:
    is_there = images.dim() != 4 or images.is_contiguous(memory_format=torch.channels_last)
    return () if is_there else (CHANNELS_LAST,)


def _of_gradients(mask: Sequence[bool], counts: Sequence[int], ties_channels: bool) -> Iterator[str]:
    """Chunks help who wants the input's gradient, slices and sums who wants the weight's. Beside a weight's gradient,
    which stays whole then, more chunks than the fewest save nothing more."""
    of_input, of_weight = mask[0], mask[1]
    if of_input:
        yield from _split(CHUNKS, counts[:1] if of_weight else counts)
    if of_weight:
        yield from () if ties_channels else _split(SLICES, COUNTS)
        yield from _split(SUMS, counts)


def _split(form: str, counts: Sequence[int]) -> Iterator[str]:
    return (f"{form}-{count}" for count in counts)
