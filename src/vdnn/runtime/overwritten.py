"""What backward may write over of what forward saved for it.

Enters: backward's arguments, and which of them its program overwrites (`capture/tidy/loss_backward.py`). Leaves: the
same arguments, of which those may be overwritten. The one idea: what autograd saved is backward's own when nobody else
can read it again. A retained graph can, and so can a saved-tensor hook that kept the tensor it was shown; backward then
writes into copies, which takes the memory that overwriting would have saved. A graph that is not retained does not run
again, not even after a backward that was interrupted: autograd refuses that by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vdnn.torch_private import is_graph_kept, storage_id


def make_own(args: list[Any], positions: Sequence[int], *, are_shown: bool) -> None:
    """Make the arguments at these positions backward's own. `are_shown`: a hook saw them when they were saved.

    Arguments that lie in one storage lie in one copy of it."""
    if not are_shown and not is_graph_kept():
        return
    copies: dict[int, torch.UntypedStorage] = {}
    for position in positions:
        tensor: torch.Tensor = args[position]
        storage = tensor.untyped_storage()
        if storage_id(storage) not in copies:
            copies[storage_id(storage)] = storage.clone()
        there = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        args[position] = there.set_(copies[storage_id(storage)], tensor.storage_offset(), tensor.shape, tensor.stride())
