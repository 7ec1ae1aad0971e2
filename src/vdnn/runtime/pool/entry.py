"""A storage that moves: the one object behind a compiled plan's journeys and the tensor cache's evictions.

Enters: the flat bytes of a storage. Leaves: the same bytes, whenever they are asked for. An entry owns what holds its
bytes: the memory on the device (`payload`), the ticket of its place in a slower tier, its encoding. Whoever drops the
last reference to an entry drops all of them, after any copy in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vdnn.codecs import Codec
from vdnn.codecs.kernels import kernels_of
from vdnn.errors import TierFull
from vdnn.runtime.encodings import raw
from vdnn.runtime.pool.states import State, change
from vdnn.runtime.transfers.interface import Ticket, Transfers


class Entry:
    """`payload` is what lies on the device: all bytes, or their encoding; None while the entry is away. `nbytes` is its
    size, wherever it is. An error about it begins with `name`."""

    def __init__(self, payload: torch.Tensor, transfers: Transfers, name: str = "") -> None:
        self.name = name
        self.payload: torch.Tensor | None = payload
        self.state, self.nbytes, self.whole_nbytes = State.HERE, payload.numel(), payload.numel()
        self._device = payload.device
        self._codec: Codec | None = None
        self._ticket: Ticket | None = None
        self._transfers, self._accounts = transfers, transfers.accounts
        self._accounts.note(None, 0, State.HERE, self.nbytes)

    @property
    def codec(self) -> Codec | None:
        """What it is encoded with."""
        return self._codec

    @property
    def has_copy(self) -> bool:
        """Whether a copy has been sent already, so that leaving again moves no bytes."""
        return self._ticket is not None

    def send(self, tiers: Sequence[str]) -> None:
        """Start to leave for the first of `tiers` that has room. Bytes that were sent before are still there."""
        assert self.payload is not None
        change(self.state, State.LEAVING)
        if self._ticket is None:
            self._ticket = self._send_to_first(self.payload, tiers)
        self._become(State.LEAVING)

    def forget_copy(self) -> None:
        """The bytes on the device are others now."""
        self._ticket = None

    def keep(self) -> None:
        """Stay after all."""
        self._become(self._state_on_device)

    def leave(self) -> None:
        """Return when the copy is there; the memory is then nobody's but its other holders'."""
        change(self.state, State.AWAY)
        self._transfers.wait_sent(self._ticket)
        self.payload = None
        self._become(State.AWAY)

    def fetch(self) -> torch.Tensor:
        """Take memory and start to come back into it."""
        change(self.state, State.COMING)
        payload = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        self._transfers.fetch(self._ticket, payload)
        self.payload = payload
        self._become(State.COMING)
        return payload

    def arrive(self) -> None:
        change(self.state, self._state_on_device)
        self._transfers.wait_fetched(self._ticket)
        self._become(self._state_on_device)

    def encode(self, codec: Codec) -> bool:
        """Hold an encoding instead of all bytes. False, and nothing has changed, when the data does not fit the
        encoding."""
        assert self.payload is not None
        change(self.state, State.ENCODED)
        encoding = torch.empty(codec.nbytes, dtype=torch.uint8, device=self._device)
        if int(codec.encode(raw(self.payload), raw(encoding), kernels_of(self._device.type))) > encoding.numel():
            return False
        self._codec, self._ticket = codec, None  # a copy of all bytes, if there was one, is no copy of the encoding
        self._hold(encoding, State.ENCODED)
        return True

    def decode(self) -> None:
        assert self.payload is not None
        assert self._codec is not None
        change(self.state, State.HERE)
        whole = torch.empty(self.whole_nbytes, dtype=torch.uint8, device=self._device)
        self._codec.decode(raw(self.payload), raw(whole), kernels_of(self._device.type))
        self._codec, self._ticket = None, None
        self._hold(whole, State.HERE)

    def __del__(self) -> None:
        self._accounts.note(self.state, self.nbytes, State.GONE, 0)

    @property
    def _state_on_device(self) -> State:
        return State.HERE if self._codec is None else State.ENCODED

    def _send_to_first(self, payload: torch.Tensor, tiers: Sequence[str]) -> Ticket:
        for tier in tiers[:-1]:
            try:
                return self._transfers.send(payload, tier, self.name)
            except TierFull:
                continue  # the next one is slower and larger
        return self._transfers.send(payload, tiers[-1], self.name)

    def _hold(self, payload: torch.Tensor, state: State) -> None:
        before, before_nbytes = self.state, self.nbytes
        self.payload, self.nbytes = payload, payload.numel()
        self.state = change(before, state)
        self._accounts.note(before, before_nbytes, state, self.nbytes)

    def _become(self, state: State) -> None:
        before, self.state = self.state, change(self.state, state)
        self._accounts.note(before, self.nbytes, state, self.nbytes)
