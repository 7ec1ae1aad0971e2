"""A training step that the real runtime executes on the device for tests in virtual time, beside what was simulated.

Enters: a step, and a machine by its figures. Leaves: a `VirtualStep`: when each op and each copy began and ended on the
clocks of the streams. The one idea: **streams, events, waits and memory are real, and only durations are the plan's**:
an op takes what the roofline says, a copy its bytes over the link, the host nothing. What takes longer than simulated
then is the order in which the runtime asked for things, and nothing else.

VGG-16 as the papers ran it is scaled so that a small machine can compute it: images of a seventh of the side and a part
of the channels make every map smaller by one factor, and arithmetic is slowed down by as much as a layer loses more of
it than of bytes. So each op and each copy takes the same share of a step as on the machine that is meant. What codecs
take for themselves is bounded on that machine by a chunk of 42 MiB, a hundredth of its larger maps; of maps that are
400 times smaller the same chunk is nearly all. So the chunk is made the smallest that its kernels know: 672 KiB, six
times its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vdnn
from device import controls
from device.controls import Span
from vdnn.api import session_of
from vdnn.codecs.kernels import chunk_sizes
from vdnn.hardware.device import Hardware
from vdnn.hardware.presets import preset
from vdnn.models.losses import cross_entropy
from vdnn.models.vgg import CONVOLUTIONS, VGG
from vdnn.plan.model.timeline import COMPUTE, Lane
from vdnn.plan.plan import Plan
from vdnn.runtime.ordinary_step import TimedStep

LINK_BYTES_PER_S = 12e9  # a little less than the 12.8 GB/s that vDNN (MICRO 2016) states for its PCIe gen3 x16
SIDE = 7  # times smaller: 224 becomes 32, and each of the five pools still halves it
LANES = {COMPUTE: "compute", "device->host": "to host", "host->device": "to device"}
CLOSE_S = 1e-7
"""Of steps of milliseconds. How large an encoding turned out is copied to the host behind compute: 8 bytes that no plan
counts, 0.7 ns each."""


@dataclass(frozen=True)
class Scaled:
    """VGG-16 with maps that are `nbytes_share` of the real one's."""

    width: int = 8
    batch: int = 256
    hidden: int = 64

    @property
    def narrow(self) -> float:
        return 64 / self.width

    @property
    def nbytes_share(self) -> float:
        return self.batch / 256 / SIDE**2 / self.narrow

    def hardware(self, name: str) -> Hardware:
        """The machine behind a link of `LINK_BYTES_PER_S`, so scaled that a step takes `nbytes_share` of the real one's
        time on `name`."""
        machine = preset(name)
        links = tuple(
            replace(link, bandwidth_bytes_per_s=LINK_BYTES_PER_S) if link.name in LANES else link
            for link in machine.links
        )
        flops, launch_s = machine.flops_per_s / self.narrow, machine.launch_s * self.nbytes_share
        return replace(machine, flops_per_s=flops, launch_s=launch_s, links=links)

    def step(self, where: str) -> tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...]]:
        torch.manual_seed(0)
        model = VGG(CONVOLUTIONS, width=self.width, hidden=self.hidden, num_classes=10)
        args = torch.randn(self.batch, 3, 224 // SIDE, 224 // SIDE), torch.randint(10, (self.batch,))

        def step(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(model(images), labels)

        model.to(where)
        return model, step, tuple(given.to(where) for given in args)


@dataclass(frozen=True)
class VirtualStep:
    plan: Plan
    spans: tuple[Span, ...]
    peak_nbytes: int
    """Of its tensors, as they were counted in the step before. The workspaces of the kernels are this machine's, and
    those of the machine that is meant are not known: neither the plan nor this has any."""

    @property
    def seconds(self) -> float:
        return max(span.end_s for span in self.spans)

    def lane(self, name: str) -> list[Span]:
        """What the runtime did in one lane of the plan, in order."""
        (compute, *_) = (span.stream for span in self.spans if span.kind == "compute")
        is_compute = name == COMPUTE
        return [span for span in self.spans if span.kind == LANES[name] and (span.stream == compute) == is_compute]

    def disagreements(self) -> list[str]:
        """Where an op or a copy came in another order, or at another time, than was simulated."""
        return [
            words for name in LANES for words in _differences(name, self.plan.timeline.lanes[name], self.lane(name))
        ]


def _differences(name: str, simulated: Lane, executed: list[Span]) -> Iterator[str]:
    if len(simulated.instructions) != len(executed):
        yield f"{name}: {len(simulated.instructions)} simulated, {len(executed)} executed"
    expected = zip(simulated.instructions, simulated.begin_s, simulated.end_s, strict=True)
    for (position, begin_s, end_s), span in zip(expected, executed, strict=False):
        if name == COMPUTE and span.label != position:
            yield f"{name}: instruction {span.label} ran where {position} was to"
        if not np.allclose((span.begin_s, span.end_s), (begin_s, end_s), rtol=0, atol=CLOSE_S):
            yield f"{name}: {span} where {begin_s:.9f} to {end_s:.9f} s was simulated for instruction {position}"


def virtual_step(scaled: Scaled, hardware: Hardware, **options: Any) -> VirtualStep:
    """Its second step; the first is watched."""
    with _codecs_work_in_small_chunks():
        return _virtual_step(scaled, hardware, options)


def _virtual_step(scaled: Scaled, hardware: Hardware, options: dict[str, Any]) -> VirtualStep:
    model, step, args = scaled.step("vdev")
    virtual = vdnn.virtualize(step, sample=args, hardware=hardware, costs="roofline", replan=False, **options)
    virtual(*args).backward()
    model.zero_grad()
    (executor,) = session_of(virtual).executors
    counted = executor.measured.timeline
    assert counted is not None, "the first step was watched"
    executor.times_next = True
    controls.set_copy_rate(LINK_BYTES_PER_S)
    with _takes_planned_time(executor.plan):
        controls.begin_virtual_time()
        virtual(*args).backward()
        spans = tuple(controls.virtual_spans())
    controls.begin_virtual_time(is_on=False)
    controls.set_copy_rate(0)
    return VirtualStep(executor.plan, spans, counted.peak_nbytes)


@contextmanager
def _codecs_work_in_small_chunks() -> Iterator[None]:
    largest = chunk_sizes.LARGEST_CHUNK
    chunk_sizes.LARGEST_CHUNK = chunk_sizes.SMALLEST_CHUNK
    try:
        yield
    finally:
        chunk_sizes.LARGEST_CHUNK = largest


@contextmanager
def _takes_planned_time(plan: Plan) -> Iterator[None]:
    """When an instruction of a timed step begins, the compute stream is busy for as long as it is to take."""
    lane = plan.timeline.lanes[COMPUTE]
    seconds = dict(zip(lane.instructions.tolist(), (lane.end_s - lane.begin_s).tolist(), strict=True))
    mark = TimedStep.mark

    def marked(step: TimedStep, position: int) -> None:
        mark(step, position)
        if position in seconds:
            controls.compute_takes(seconds[position], position)

    TimedStep.mark = marked  # type: ignore[method-assign]
    try:
        yield
    finally:
        TimedStep.mark = mark  # type: ignore[method-assign]
