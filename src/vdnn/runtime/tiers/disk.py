"""The disk tier: feature maps in one private file, by direct I/O in large chunks.

Enters: flat bytes in host memory. Leaves: the same bytes, later. A tensor's pages go straight between its memory and
the file (`pages.py`); its first and last page travel in the same system call from staging. When the memory that
receives it lies at another distance from a page boundary than the memory it came from, all of it is staged, at the
price of a copy per byte. That is rare for large tensors, which the allocator puts at one and the same distance each
time. Two threads share the chunks of a tensor: while one waits for the disk, the other clears new pages or copies from
staging. Measured on a cloud disk, one thread alone read into rotating memory at 0.77 of the rate it reads into one hot
buffer, two at 0.90; staged reads lost a quarter with one thread and nothing with two.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from vdnn.errors import TierFailed
from vdnn.runtime.tiers.direct_io import CHUNK_NBYTES, room_nbytes, usable_nbytes
from vdnn.runtime.tiers.disk_file import DIRECT_PAGE_NBYTES, Buffers, DiskFile
from vdnn.runtime.tiers.ledger import Lease, Ledger, Promise
from vdnn.runtime.tiers.pages import PageRun
from vdnn.runtime.tiers.raw_memory import StagingPool, move_bytes, prefer_huge_pages, raw_bytes, round_up
from vdnn.runtime.worker import Job, Worker
from vdnn.units import format_nbytes

NUM_STAGING_BUFFERS = 4  # a copy out and a copy in at once, two threads each; more copies wait for one of these


class DiskStore:
    """A file in `directory` of at most `capacity_nbytes`, or as much as the disk holds. The directory is looked at
    now, the file is made at the first `promise` or `reserve`. Bytes of the file are set aside before they are used.
    With `verify`, what is read is held against a checksum of what was written, chunk by chunk."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity_nbytes: int | None = None,
        *,
        name: str = "disk",
        verify: bool = False,
    ) -> None:
        usable_nbytes(directory, 0)
        self.name = name
        self.directory = os.fspath(directory)
        self._verifies = verify
        way_out = "Raise disk_budget, or raise budget so that less has to leave."
        self._ledger = Ledger(name, capacity_nbytes, way_out=way_out, lengthen=weakly(self._allocate))
        self._staging = StagingPool(NUM_STAGING_BUFFERS, 2 * CHUNK_NBYTES)
        self._write_helper, self._read_helper = Worker("vdnn-disk-write"), Worker("vdnn-disk-read")
        self._lock = threading.Lock()
        self._file: DiskFile | None = None
        self._is_closed = False
        self._process = os.getpid()

    def reserve(self, nbytes: int) -> DiskPlace:
        self._opened()
        return DiskPlace(self, self._ledger.lease(nbytes, padded_nbytes(nbytes)))

    def promise(self, sizes: Sequence[int]) -> Promise:
        """Set bytes aside for places of these sizes, all held at once, beside what others were promised."""
        return self.promise_more(sum(sizes), sum(map(padded_nbytes, sizes)))

    def promise_more(self, nbytes: int, with_padding_nbytes: int) -> Promise:
        self._opened()
        return self._ledger.promise(nbytes, with_padding_nbytes)

    @property
    def leased_nbytes(self) -> int:
        """What is stored now, padding included."""
        return self._ledger.leased_nbytes

    @property
    def promisable_nbytes(self) -> int | None:
        """What could still be promised; None where nothing bounds it. Padding to pages, up to two for each place, comes
        out of it. What others wrote to the disk counts, and so do the files of other stores."""
        return self._ledger.unpromised_nbytes(room_nbytes(self.directory, self._ledger.row_nbytes))

    def _allocate(self, begin: int, end: int) -> None:
        self._opened().allocate(begin, end)

    @property
    def used_nbytes(self) -> int:
        return self._ledger.used_nbytes

    @property
    def capacity_nbytes(self) -> int | None:
        return self._ledger.capacity_nbytes

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            file, self._file = self._file, None
        self._write_helper.stop()
        self._read_helper.stop()
        if file is not None:
            file.close()

    def _opened(self) -> DiskFile:
        with self._lock:
            if self._is_closed:
                raise TierFailed(f"the {self.name} tier has been closed: nothing can be stored in it or read from it")
            if self._process != os.getpid():
                raise TierFailed(
                    f"the {self.name} tier belongs to process {self._process} and this is {os.getpid()}, forked from"
                    " it: both would write to one file. Build the model in the process that trains it."
                )
            if self._file is None:
                self._file = DiskFile(self.directory, self.name)
            return self._file

    def write(self, lease: Lease, address: int) -> Written:
        """Copy `lease.nbytes` from memory into the file; the answer says how they lie there."""
        file = self._opened()
        run = PageRun.of(address, lease.nbytes, file.page_nbytes)
        written = Written(run, {} if self._verifies else None)
        self._in_two(partial(self._write_chunks, file, written, address), list(_chunks(lease, run)), self._write_helper)
        return written

    def read(self, lease: Lease, written: Written, address: int) -> None:
        run = written.run
        prefer_huge_pages(address, lease.nbytes)
        is_straight = PageRun.of(address, run.nbytes, run.page_nbytes) == run
        read_chunk = self._read_straight if is_straight else self._read_staged
        move = partial(self._read_chunks, self._opened(), written, address, read_chunk)
        self._in_two(move, list(_chunks(lease, run)), self._read_helper)

    def _in_two(self, move: Callable[[Iterator[Chunk]], None], chunks: list[Chunk], helper: Worker) -> None:
        """Two threads take chunks off one list. Returns when both are done, so that the memory may be reused."""
        shared = iter(
            chunks
        )  # a list's iterator gives each chunk to one thread: `next` runs under the interpreter lock
        if len(chunks) < 2:
            return move(shared)
        others = Job(f"moving part of a tensor, {helper.name}", partial(move, shared))
        helper.submit(others)
        try:
            move(shared)
        finally:
            others.settle()
        return others.wait()

    def _write_chunks(self, file: DiskFile, written: Written, address: int, chunks: Iterator[Chunk]) -> None:
        run = written.run
        with self._staging.borrow() as staging:
            for chunk in chunks:
                for slot, position, nbytes in _edges(run, staging, chunk):
                    move_bytes(slot, address + position - run.phase, nbytes)
                if written.checksums is not None:
                    written.checksums[chunk.begin] = _checksum(run, address, chunk)
                file.write(_buffers(run, address, staging, chunk), chunk.offset)

    def _read_chunks(
        self, file: DiskFile, written: Written, address: int, read_chunk: ReadChunk, chunks: Iterator[Chunk]
    ) -> None:
        with self._staging.borrow() as staging:
            for chunk in chunks:
                read_chunk(file, written.run, address, staging, chunk)
                if written.checksums is not None:
                    self._require_same(written, address, chunk)

    def _read_straight(self, file: DiskFile, run: PageRun, address: int, staging: int, chunk: Chunk) -> None:
        file.read(_buffers(run, address, staging, chunk), chunk.offset)
        for slot, position, nbytes in _edges(run, staging, chunk):
            move_bytes(address + position - run.phase, slot, nbytes)

    def _read_staged(self, file: DiskFile, run: PageRun, address: int, staging: int, chunk: Chunk) -> None:
        file.read([raw_bytes(staging, chunk.end - chunk.begin)], chunk.offset)
        position, nbytes = run.clip(chunk.begin, chunk.end)
        move_bytes(address + position - run.phase, staging + position - chunk.begin, nbytes)

    def _require_same(self, written: Written, address: int, chunk: Chunk) -> None:
        assert written.checksums is not None
        expected, found = written.checksums[chunk.begin], _checksum(written.run, address, chunk)
        if found != expected:
            position, nbytes = written.run.clip(chunk.begin, chunk.end)
            raise TierFailed(
                f"{format_nbytes(nbytes)} came back from the {self.name} tier (a file in {self.directory!r}) with other"
                f" bits than were written: checksum {found:#010x}, not {expected:#010x}, of the bytes from"
                f" {position - written.run.phase} on. The gradients of this step would be wrong. Check the disk and"
                " the memory of this machine, or name another directory."
            )


class Written(NamedTuple):
    """How a tensor lies in the file, and checksums of its chunks by where they begin, if those are wanted."""

    run: PageRun
    checksums: dict[int, int] | None


def weakly(method: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """The method without its object, which is then gone with its last holder and not when garbage is collected."""
    known = weakref.WeakMethod(method)

    def call(begin: int, end: int) -> None:
        bound = known()
        assert bound is not None, "who asks for more of a store holds it"
        bound(begin, end)

    return call


def padded_nbytes(nbytes: int) -> int:
    """Room for any phase: a page more than the bytes need."""
    return round_up(nbytes + DIRECT_PAGE_NBYTES - 1, DIRECT_PAGE_NBYTES) if nbytes else 0


class DiskPlace:
    """Room for `nbytes` in the file. What was written last is read; a failed write leaves nothing to read."""

    __slots__ = ("__weakref__", "_lease", "_store", "_written")

    def __init__(self, store: DiskStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._written: Written | None = None

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def write(self, source: torch.Tensor) -> None:
        assert source.numel() == self.nbytes, f"{source.numel()} bytes for a place of {self.nbytes}"
        self._written = None
        self._written = self._store.write(self._lease, source.data_ptr())

    def read(self, target: torch.Tensor) -> None:
        assert target.numel() == self.nbytes, f"{target.numel()} bytes from a place of {self.nbytes}"
        if self._written is None:
            held = format_nbytes(self.nbytes)
            raise TierFailed(f"reading {held} from the {self._store.name} tier failed: they were never written there")
        self._store.read(self._lease, self._written, target.data_ptr())


class Chunk(NamedTuple):
    """What one system call moves: [begin, end) of a run of pages, at `offset` in the file."""

    offset: int
    begin: int
    end: int


ReadChunk = Callable[[DiskFile, PageRun, int, int, Chunk], None]


def _checksum(run: PageRun, address: int, chunk: Chunk) -> int:
    """Of the tensor's bytes in a chunk, as they are in memory. Without the interpreter lock: they are many."""
    position, nbytes = run.clip(chunk.begin, chunk.end)
    return zlib.crc32(raw_bytes(address + position - run.phase, nbytes))


def _chunks(lease: Lease, run: PageRun) -> Iterator[Chunk]:
    begin, largest = 0, _even_share(run)
    for extent in lease.extents:
        offset = extent.begin
        while offset < extent.end and begin < run.padded_nbytes:
            nbytes = min(largest, extent.end - offset, run.padded_nbytes - begin)
            yield Chunk(offset, begin, begin + nbytes)
            offset, begin = offset + nbytes, begin + nbytes


def _even_share(run: PageRun) -> int:
    """A chunk size near CHUNK_NBYTES that two threads can share out evenly, without a small rest."""
    num_pairs = max(1, round(run.padded_nbytes / (2 * CHUNK_NBYTES)))
    share = round_up(-(-run.padded_nbytes // (2 * num_pairs)), run.page_nbytes)
    return share if run.padded_nbytes > CHUNK_NBYTES else CHUNK_NBYTES


def _buffers(run: PageRun, address: int, staging: int, chunk: Chunk) -> Buffers:
    """Staged first page, memory of the tensor itself, staged last page; each where it falls into the chunk."""
    low, high = max(chunk.begin, run.interior_begin), min(chunk.end, run.interior_end)
    buffers = [raw_bytes(staging, run.interior_begin)] if chunk.begin < run.interior_begin else []
    if low < high:
        buffers.append(raw_bytes(address + low - run.phase, high - low))
    if chunk.end > run.interior_end:
        buffers.append(raw_bytes(staging + run.page_nbytes, run.padded_nbytes - run.interior_end))
    return buffers


def _edges(run: PageRun, staging: int, chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """(address in staging, position, size) of the tensor's bytes on its first and on its last page."""
    if chunk.begin < run.interior_begin:
        position, nbytes = run.clip(0, run.interior_begin)
        yield staging + position, position, nbytes
    if chunk.end > run.interior_end:
        position, nbytes = run.clip(run.interior_end, run.padded_nbytes)
        yield staging + run.page_nbytes + position - run.interior_end, position, nbytes
