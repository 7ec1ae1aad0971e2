"""Threads that copy, and the jobs they are given.

Enters: an action and the tensor it touches. Leaves: a `Job` that can be waited for. Three promises hold whatever
happens: a wait ends (with `TierFailed` if the worker died), it can be interrupted by Ctrl-C, and it raises what went
wrong on the thread that waits.

Note [What a finished job holds]: the memory of a step is decided by positions in its program, so a job holds its tensor
until it is waited for, even if the copy was done long before, and nothing else does: the worker has dropped the action
with all it refers to *before* it signals the end. A failure is kept as words, not as an exception, whose traceback
would keep the frames of the copy and the tensors in them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from vdnn.errors import TierFailed, TierFull
from vdnn.hardware.observed_links import ObservedLink

log = logging.getLogger(__name__)

LIVENESS_S = 0.2  # how long a wait may go on before it looks whether the worker is still there


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, without the traceback that would keep tensors alive."""

    kind: type[TierFull] | type[TierFailed]
    words: str

    @classmethod
    def of(cls, error: BaseException, name: str) -> Failure:
        if isinstance(error, TierFull):
            return cls(TierFull, str(error))
        if isinstance(error, TierFailed):
            return cls(TierFailed, str(error))
        return cls(TierFailed, f"{name} failed: {error!r}")


class Job:
    """One action for a worker. `held` is let go when the job has been waited for, or with the job itself."""

    def __init__(self, name: str, action: Callable[[], None], *, held: Any = None, after: Job | None = None) -> None:
        self.name = name
        self.failure: Failure | None = None
        self._action: Callable[[], None] | None = action
        self._held = held
        self._after = after
        self._is_done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        return self._is_done.is_set()

    def wait(self) -> None:
        """Return when the action is done and let go of the tensor; raise what went wrong."""
        self.settle()
        self._held = None
        if self.failure is not None:
            raise self.failure.kind(self.failure.words)

    def settle(self) -> None:
        """Return when the action is done, has failed, or can no longer be done because its worker is gone."""
        assert self._thread is not None, f"{self.name} was never given to a worker"
        while not self._is_done.wait(LIVENESS_S):
            if not self._thread.is_alive() and not self._is_done.is_set():
                self.fail(Failure(TierFailed, f"{self.name} failed: the worker thread that copies has died."))

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        self._action = self._after = None
        self._is_done.set()

    def begin_on(self, thread: threading.Thread) -> None:
        self._thread = thread

    def run(self) -> None:
        """For the worker. An exception that is not an ordinary one also ends the worker."""
        action, after = self._action, self._after
        self._action = self._after = None
        try:
            if after is not None:
                after.settle()
                self.failure = after.failure
            if self.failure is None and action is not None:
                action()
        except BaseException as error:
            log.debug("%s failed", self.name, exc_info=True)
            self.failure = Failure.of(error, self.name)
            if not isinstance(error, Exception):
                raise
        finally:
            del action, after  # Note [What a finished job holds]
            self._is_done.set()


class JobQueue:
    """Jobs in the order given, until their thread is done for: it closes the queue first, so that no job is left in
    it."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False

    def join(self, job: Job, thread: threading.Thread) -> bool:
        """False when nobody will serve this queue any more."""
        with self._lock:
            if not self._is_closed:
                job.begin_on(thread)
                self.jobs.put(job)
            return not self._is_closed

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        _fail_rest(self.jobs)


class Worker:
    """A thread that runs jobs in the order given. It starts with the first job, and again after it died."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue = JobQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, job: Job) -> None:
        with self._lock:
            while not self._has_thread() or not self._queue.join(job, self._started()):
                self._queue = JobQueue()
                self._thread = threading.Thread(target=_run_jobs, args=(self._queue,), name=self.name, daemon=True)
                self._thread.start()

    def _has_thread(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _started(self) -> threading.Thread:
        assert self._thread is not None, f"{self.name} has no thread"
        return self._thread

    def drain(self) -> None:
        """Return when everything submitted so far is done."""
        with self._lock:
            is_idle = not self._has_thread()
        if not is_idle:
            marker = Job(f"draining {self.name}", lambda: None)
            self.submit(marker)
            marker.settle()

    def stop(self, *, finish: bool = True) -> None:
        """Finish what was submitted, or only what has begun, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if not finish:
                _fail_rest(self._queue.jobs)
            self._queue.jobs.put(None)
        while thread is not None and thread.is_alive():
            thread.join(LIVENESS_S)

    def __del__(self) -> None:
        """The thread ends with its worker, also when nobody calls `stop`."""
        self._queue.jobs.put(None)


def _run_jobs(queue: JobQueue) -> None:
    """A function, not a method: a thread that waits for work keeps no tier alive."""
    job: Job | None = None
    try:
        while (job := queue.jobs.get()) is not None:
            job.run()
            job = None
    finally:
        queue.close()


def _fail_rest(jobs: SimpleQueue[Job | None]) -> None:
    while True:
        try:
            job = jobs.get_nowait()
        except Empty:
            return
        if job is not None:
            job.fail(Failure(TierFailed, f"{job.name} failed: the worker thread that copies has died."))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """An error about a tensor begins with the tensor's name, if it has one."""
    try:
        yield
    except (TierFull, TierFailed) as error:
        if not name:
            raise
        raise type(error)(f"{name}: {error}") from error


class CopyMeter:
    """The copies of one worker: how many, of how many bytes, for how long. Only its worker writes."""

    def __init__(self, tier: str, *, is_back: bool) -> None:
        self._observed = ObservedLink(tier, is_back)

    @property
    def observed(self) -> ObservedLink:
        return self._observed

    def time(self, action: Callable[[], None], nbytes: int) -> None:
        """Run a copy and count it; one that fails is not counted."""
        begin = time.perf_counter()
        action()
        before, busy_s = self._observed, time.perf_counter() - begin
        self._observed = ObservedLink(
            before.tier, before.is_back, before.num_copies + 1, before.nbytes + nbytes, before.busy_s + busy_s
        )


def paced(action: Callable[[], None], seconds: float) -> None:
    """Run an action and make it last at least `seconds`: how a slower link is emulated."""
    begin = time.perf_counter()
    action()
    time.sleep(max(0.0, seconds - (time.perf_counter() - begin)))
