"""`vdnn inspect`: where the memory of a training step goes, without allocating any of it.

The network and its batch exist as meta tensors only, so the answer for a network that fits no machine costs megabytes.
"""

from __future__ import annotations

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import (
    Batch,
    Budget,
    ChannelsLast,
    Debug,
    Device,
    ImageSize,
    Json,
    Lossy,
    Model,
    StateOf,
    Strategy,
)


def inspect(
    model: Model,
    batch: Batch,
    device: Device = None,
    optimizer: StateOf = None,
    image_size: ImageSize = None,
    channels_last: ChannelsLast = False,
    budget: Budget = None,
    strategy: Strategy = None,
    lossy: Lossy = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Show where the memory of a training step goes: by role, at the peak, by layer, over time. Allocates nothing."""
    from vdnn.api import plan
    from vdnn.models import load
    from vdnn.report.memory_profile import profile_memory
    from vdnn.report.text import profile_view

    workload = load(model, batch, device="meta", image_size=image_size, channels_last=channels_last)
    planned = plan(
        workload.step,
        workload.args,
        budget=budget,
        strategy=strategy,
        lossy=lossy,
        device=device,
        optimizer=optimizer,
    )
    profile = profile_memory(planned, name=f"{workload.name}, batch {batch}")
    return Answer(profile.to_dict(), lambda width: profile_view(profile, width))
