"""How fast this machine encodes and decodes, the way a step does it.

Enters: the device that encodes. Leaves: a `CodecSpeed` per codec. Two sizes give the two numbers of each direction:
what a call takes, and what a byte takes. Encodings go to a buffer that waits in a pool, decoded storages to memory as
the allocator gives it, both as in a step. Half of the elements are zero, as behind a ReLU; pools are 2×2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch

from vdnn.codecs import CODECS, Codec, codec_for
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.cost.stopwatch import Run, lap, typical_s
from vdnn.hardware.clocks import clock_of
from vdnn.hardware.device import CodecSpeed
from vdnn.hardware.where import CPU
from vdnn.ir import Detail, Role, Storage
from vdnn.runtime.encodings import raw
from vdnn.units import KiB, MiB

LARGE_NBYTES, SMALL_NBYTES = 4 * MiB, 128 * KiB
NUM_TRIALS = 3
ABOVE_ZERO = (int(Test.ABOVE), 0.0, 0.0, 1.0, 0.0)
TRIAL_DENSITY = 0.6  # room for half of the elements and then some


def codec_speeds(where: torch.device = CPU) -> tuple[CodecSpeed, ...]:
    """Of every codec that there is."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return tuple(_speed(name, where) for name in CODECS)


def _speed(name: str, where: torch.device) -> CodecSpeed:
    runs = [list(_runs(name, nbytes, where)) for nbytes in (LARGE_NBYTES, SMALL_NBYTES)]
    large_s, small_s = ([_seconds(run, where) for run in pair] for pair in runs)
    (encode_rate, encode_call_s), (decode_rate, decode_call_s) = map(_line, large_s, small_s)
    return CodecSpeed(name, encode_rate, decode_rate, encode_call_s, decode_call_s)


def _line(large_s: float, small_s: float) -> tuple[float, float]:
    """Bytes per second, and seconds before the first byte, of a straight line through both sizes."""
    rate = (LARGE_NBYTES - SMALL_NBYTES) / max(large_s - small_s, 1e-9)
    return rate, max(0.0, small_s - SMALL_NBYTES / rate)


def _seconds(run: Run, where: torch.device) -> float:
    run()
    if where == CPU:
        return typical_s([lap(run) for _ in range(NUM_TRIALS)])
    return median(clock_of(where).seconds_of(run) for _ in range(NUM_TRIALS))


def _runs(name: str, nbytes: int, where: torch.device) -> Iterator[Run]:
    """Encode, then decode."""
    codec, source = _sample(name, nbytes)
    source = source.to(where)
    made = f"{codec.storage.dtype}, {codec.detail}"
    assert codec.is_possible, f"{name!r} cannot encode the sample that `_sample` made: {made}"
    encoding = torch.empty(codec.nbytes, dtype=torch.uint8, device=where)
    yield partial(codec.encode, raw(source), raw(encoding), kernels_of(where.type))
    yield partial(_decode, codec, encoding)


def _decode(codec: Codec, encoding: torch.Tensor) -> None:
    target = torch.empty(codec.storage.nbytes, dtype=torch.uint8, device=encoding.device)
    codec.decode(raw(encoding), raw(target), kernels_of(encoding.device.type))


def _sample(name: str, nbytes: int) -> tuple[Codec, torch.Tensor]:
    """A storage of so many bytes, and a codec bound to it."""
    if name == "window-index":
        return _pooled(nbytes)
    source = torch.randn(nbytes // 4).relu_()
    return codec_for(name, Storage(name, nbytes, Role.FEATURE_MAP, "float32", ()), _detail(name)), source


def _detail(name: str) -> Detail:
    if name.endswith("mask"):
        return ABOVE_ZERO
    return (TRIAL_DENSITY,) if name.startswith(("sparse", "csr")) else ()


def _pooled(nbytes: int) -> tuple[Codec, torch.Tensor]:
    """The indices of a 2×2 pool over as many 64×64 maps as that takes."""
    num_maps = nbytes // (32 * 32 * 8)
    _, indices = torch.nn.functional.max_pool2d(torch.randn(num_maps, 1, 64, 64), 2, return_indices=True)
    detail = (1, 2, 2, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1, 64, 64, 1, 32, 32, num_maps, 1)
    return codec_for("window-index", Storage("indices", nbytes, Role.FEATURE_MAP, "int64", ()), detail), indices
