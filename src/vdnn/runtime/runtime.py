"""What is open while models train, with one owner: transfers and their tiers, handles, phantom memory, sessions.

Enters: a machine and where its disk tier may lie. Leaves: the transfers that everybody who asks for the same shares,
and with them one bound and one account. The one idea: **state has an owner that can be closed**. `close` ends the
worker threads and gives host memory and the disk's file back; the next copy opens them anew. All models of a process
share `shared_runtime()`; a test may make a `Runtime` of its own beside it.

Note [Who keeps transfers open]: those who use them, and nobody else. A model's session and a tensor cache hold theirs
(`SharedTiers`), and so does every storage that is away, for a backward that is still to come. With the last of these
they go: threads, descriptor, staging memory, the space on disk. The runtime itself only knows where they are.

Two things outlive `close`, because others own them: a handle lives as long as autograd's graph, a session as long as
its model. A backward whose storages lie in a tier that was closed meanwhile raises `TierFailed`.

Leaving it open is clean: at the end of the process, copies that have begun are finished, others are dropped, and the
disk's file never had a name. A forked child opens its own tiers; what its parent sent away is the parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any

import torch

from vdnn.hardware.device import Hardware
from vdnn.runtime.handles import Handles
from vdnn.runtime.open_transfers import AskedTiers, open_transfers
from vdnn.runtime.phantom import PhantomMemory
from vdnn.runtime.transfers.interface import Transfers


class Runtime:
    """All methods may be called from any thread, at any time, also after `close`."""

    def __init__(self) -> None:
        self.handles = Handles()
        """The steps that wait for their backward."""

        self.phantoms = PhantomMemory()
        """What tensors without memory point to."""

        self.sessions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """For each virtualized model what it has run: a `compile.session.Session`, which this folder does not know."""

        self.machines_looked_at: set[str] = set()
        """Machines whose speeds were measured in a busy moment, and for which a quiet one has been looked for."""

        self._transfers: weakref.WeakValueDictionary[AskedTiers, Transfers] = weakref.WeakValueDictionary()
        self._of_parent: list[Transfers] = []
        self._lock = threading.Lock()

    def transfers(
        self, hardware: Hardware, spill_dir: str | None = None, device: torch.device | str = "cpu"
    ) -> Transfers:
        """What moves storages between `device` and the slower tiers: opened at the first request, then shared."""
        return self.open(AskedTiers.of(hardware, spill_dir, device))

    def open(self, asked: AskedTiers) -> Transfers:
        """The same for those who ask often. Note [Who keeps transfers open]"""
        found = self._transfers.get(asked)
        if found is not None:
            return found
        with self._lock:
            found = self._transfers.get(asked)
            if found is None:
                found = self._transfers[asked] = open_transfers(asked)
            return found

    def close(self) -> None:
        """Finish all copies, end the threads, give memory and files back. What is asked for later is opened anew."""
        self._close(finish=True)

    def close_at_exit(self) -> None:
        """The same without copies that have not begun: nobody will read them."""
        self._close(finish=False)

    def _close(self, *, finish: bool) -> None:
        with self._lock:
            closing, self._transfers = list(self._transfers.values()), weakref.WeakValueDictionary()
        for transfers in closing:
            transfers.close(finish=finish)
        self.phantoms.close()

    def begin_in_child(self) -> None:
        """After a fork there are no worker threads, and a lock may be held by one that is gone. The parent's transfers
        are kept and left alone: giving page-locked memory back would call the parent's accelerator."""
        self._lock = threading.Lock()
        self._of_parent += self._transfers.values()
        self._transfers = weakref.WeakValueDictionary()
        self.phantoms = PhantomMemory()


class SharedTiers:
    """Transfers for one model or one cache: found or opened at each call, and held open from then on."""

    def __init__(self, runtime: Runtime, asked: AskedTiers) -> None:
        self._runtime, self._asked = runtime, asked
        self._held: Transfers | None = None

    def __call__(self) -> Transfers:
        held = self._held = self._runtime.open(self._asked)
        return held

    def let_go(self) -> None:
        """Whoever they were for is gone; what is away still holds them."""
        self._held = None


_SHARED = Runtime()
atexit.register(_SHARED.close_at_exit)
os.register_at_fork(after_in_child=_SHARED.begin_in_child)


def shared_runtime() -> Runtime:
    """The one of this process."""
    return _SHARED
