"""How long a codec works on a storage.

Enters: a codec bound to a storage, and a machine. Leaves: seconds to encode and to decode. Measured speeds where the
machine has them (`hardware/device.py`, CodecSpeed), else the bytes that pass through memory, at its bandwidth.
"""

from __future__ import annotations

from vdnn.codecs import Codec
from vdnn.hardware.device import Hardware


def codec_seconds(hardware: Hardware, name: str, codec: Codec) -> tuple[float, float]:
    known = hardware.codec(name)
    if known is not None:
        return known.seconds(codec.storage.nbytes)
    seconds = codec.traffic_nbytes / hardware.memory_bandwidth_bytes_per_s
    return seconds, seconds
