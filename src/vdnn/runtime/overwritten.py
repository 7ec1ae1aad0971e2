"""What backward may write over of what forward saved for it.

Enters: backward's arguments, and which of them its program overwrites (`capture/loss_backward.py`). Leaves: the same
arguments, of which those may be overwritten. The one idea: what autograd saved is backward's own when nobody else can
read it again. A retained graph can, and so can a saved-tensor hook that kept the tensor it was shown; backward
then writes into copies, which takes the memory that overwriting would have saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vdnn.errors import Unsupported


@dataclass
class Ownership:
    """Of what one forward saved. `is_shared`: somebody beside autograd may hold it. `is_spent`: a backward has begun to
    write over it."""

    is_shared: bool
    is_spent: bool = False

    def claim(self, args: list[Any], positions: Sequence[int]) -> None:
        """Make the arguments at these positions backward's own."""
        if not positions:
            return
        if self.is_spent:
            raise Unsupported(
                "this backward was interrupted after it had begun to write over what its forward saved, so it cannot"
                " run again. Call the model again and run backward from the new loss; backward(retain_graph=True)"
                " keeps what was saved."
            )
        if self.is_shared or torch._C._autograd._get_current_graph_task_keep_graph():
            _copy_storages(args, positions)
        else:
            self.is_spent = True


def are_saved_tensors_shown() -> bool:
    """Whether a hook of the user's (`torch.autograd.graph.saved_tensors_hooks`) sees what is saved now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _copy_storages(args: list[Any], positions: Sequence[int]) -> None:
    """Arguments that lie in one storage lie in one copy of it."""
    copies: dict[int, torch.UntypedStorage] = {}
    for position in positions:
        tensor: torch.Tensor = args[position]
        storage = tensor.untyped_storage()
        if storage._cdata not in copies:
            copies[storage._cdata] = storage.clone()
        there = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        args[position] = there.set_(copies[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
