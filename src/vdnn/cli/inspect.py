"""`vdnn inspect`: where the memory of a training step goes, without allocating any of it.

The network and its batch exist as meta tensors only, so the answer for a network that fits no machine costs megabytes.
"""

from __future__ import annotations

from typing import Unpack

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, BatchSize, ImageOptions, ModelName, takes
from vdnn.options import PlanOptions


@takes("hardware", "optimizer", *IMAGES, "budget", "strategy", "lossy", after="batch")
def inspect(model: ModelName, batch: BatchSize, images: ImageOptions, **options: Unpack[PlanOptions]) -> Answer:
    """Show where the memory of a training step goes: by role, at the peak, by layer, over time. Allocates nothing."""
    from vdnn.api import plan
    from vdnn.models import load
    from vdnn.report.memory_profile import profile_memory
    from vdnn.report.text import profile_view

    workload = load(model, batch, device="meta", **images)
    planned = plan(workload.step, workload.args, **options)
    profile = profile_memory(planned, name=f"{workload.name}, batch {batch}")
    return Answer(profile.to_dict(), lambda width: profile_view(profile, width))
