"""The codec kernels in torch ops, over numpy arrays: the tests of the other kernels can call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vdnn.codecs.kernels import torch_kernels


class TorchArrays:
    __name__ = "torch ops"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(torch_kernels, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args), **kwargs)
            return int(result) if isinstance(result, torch.Tensor) else result

        return call


torch_arrays: Any = TorchArrays()
