"""How many bytes the storage of an op's result takes, where its kernel takes more than the trace says.

Enters: a call and the storages it reads. Leaves: bytes. Some kernels make a tensor as large as what they read and then
shrink it to the shape of the result (`col2im`, mean losses); some copy the whole storage that they are shown a part of.
The result looks the same, and so it does in a trace; what it costs is the storage. Of ops that are not in the table a
watched step learns it (`compile/seen_storages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of
from vdnn.capture.ops.overloads import base_name
from vdnn.known_ops import known
from vdnn.known_ops.known_op import KernelStorage
from vdnn.torch_private import OpOverload

_READ = ("self", "target")
"""The arguments over whose elements such kernels go. A weight is broadcast to them."""


def least_storage_nbytes(node: fx.Node, storage_nbytes_of: Mapping[fx.Node, int]) -> int:
    """The storage of the node's first result has at least so many bytes. 0: its kernel takes what is traced."""
    if not isinstance(node.target, OpOverload):
        return 0
    match known(base_name(node.target)).kernel_storage:
        case KernelStorage.OF_ELEMENTS:
            return _elements_nbytes(node)
        case KernelStorage.OF_WHOLE:
            first = node.args[0]
            return storage_nbytes_of.get(first, 0) if isinstance(first, fx.Node) else 0
        case None:
            return 0


def _elements_nbytes(node: fx.Node) -> int:
    arguments = arguments_of(node)
    read = [tensor_of(arguments[name]) for name in _READ if isinstance(arguments.get(name), fx.Node)]
    tensors = [tensor for tensor in read if tensor is not None]
    if not tensors:
        return 0
    numel = torch.broadcast_shapes(*(tensor.shape for tensor in tensors)).numel()
    return numel * tensors[0].element_size()
