"""What can be done with a storage between two uses, and a decision to do it.

The one idea: **memory is decided by position, never by timing**. An action names moments: after `leave` the storage
gives up its bytes on the device, before `back` it is whole again. The runtime frees and fetches at those positions and
waits if a copy is late, so the peak is a property of the plan whatever the disk or the bus does.

A storage may have several decisions as long as their gaps do not overlap (encoded through one gap, recomputed after
another). A storage without a decision is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vdnn.ir import Detail


@dataclass(frozen=True, slots=True)
class Keep:
    """Stay on the device from birth to last use."""

    kind: ClassVar[str] = "keep"


@dataclass(frozen=True, slots=True)
class Drop:
    """Freed after moment `leave`: whoever still names it reads nothing of it but its shape."""

    kind: ClassVar[str] = "drop"
    leave: int


@dataclass(frozen=True, slots=True)
class Recompute:
    """Freed after `leave`; every op that writes it is run again right before moment `back`."""

    kind: ClassVar[str] = "recompute"
    leave: int
    back: int

    def __post_init__(self) -> None:
        _require_gap(self.leave, self.back, self.back)


@dataclass(frozen=True, slots=True)
class Offload:
    """Copied to `tier` once final, freed after `leave`; its bytes are taken and the copy back starts before `fetch`;
    whole before `back`.
    """

    kind: ClassVar[str] = "offload"
    tier: str
    leave: int
    fetch: int
    back: int

    def __post_init__(self) -> None:
        _require_gap(self.leave, self.fetch, self.back)


@dataclass(frozen=True, slots=True)
class Encode:
    """Encoded after `leave` into at most `nbytes` on the device, decoded before `back`.

    `detail` is the codec's parameter: what its bits mean. `direct`: nothing is decoded, the readers from `back` on take
    the encoding as it is, and it lives until the last of them.
    """

    kind: ClassVar[str] = "encode"
    codec: str
    nbytes: int
    leave: int
    back: int
    encode_s: float = 0.0
    decode_s: float = 0.0
    detail: Detail = ()
    direct: bool = False

    def __post_init__(self) -> None:
        _require_gap(self.leave, self.back, self.back)


@dataclass(frozen=True, slots=True)
class EncodeOffload:
    """Encoded after `leave`, the encoded bytes copied to `tier`, fetched from `fetch` on, decoded before `back` (or
    read as they are from there on, see `Encode`).

    The encoded buffer stays on the device until its copy out is done, which the plan places at moment `sent` (freed
    after it).
    """

    kind: ClassVar[str] = "encode-offload"
    codec: str
    nbytes: int
    tier: str
    leave: int
    sent: int
    fetch: int
    back: int
    encode_s: float = 0.0
    decode_s: float = 0.0
    detail: Detail = ()
    direct: bool = False

    def __post_init__(self) -> None:
        _require_gap(self.leave, self.fetch, self.back)
        if not self.leave <= self.sent < self.fetch:
            raise ValueError(
                f"the encoded copy must leave within the gap: leave={self.leave}, sent={self.sent}, fetch={self.fetch}"
            )


Action = Keep | Drop | Recompute | Offload | Encode | EncodeOffload
ACTIONS: dict[str, type[Action]] = {
    action.kind: action for action in (Keep, Drop, Recompute, Offload, Encode, EncodeOffload)
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one storage, and why. `storage` is a position in `graph.storages`."""

    storage: int
    action: Action
    reason: str


def _require_gap(leave: int, fetch: int, back: int) -> None:
    if not leave < fetch <= back:
        raise ValueError(f"the gap is empty or reversed: leave={leave}, fetch={fetch}, back={back}")
