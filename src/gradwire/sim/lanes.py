"""Rank: its compute and codec lanes, and what they did when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gradwire.sim.events import EventQueue
from gradwire.timeline import Kind, Span

Done = Callable[[], None]
Work = Callable[[float, Done], None]
"""Takes seconds of a processor, and calls at their end."""


class _Job(NamedTuple):
    kind: Kind
    layer: str
    duration_s: float
    then: Done


class Lane:
    """Does one thing after the other.

    Args:
        queue: The clock.
        work: What it works on.
        record: Told of everything that is done.
        begun: Told how long each job takes when it begins.

    Attributes:
        late_s: What the job under way has been held up by others since.
        kind: What it is doing; None for nothing.
    """

    def __init__(
        self,
        queue: EventQueue,
        work: Work,
        record: Callable[[Kind, str, float], None],
        begun: Callable[[float], None] | None = None,
    ) -> None:
        self._queue = queue
        self._work = work
        self._begun = begun
        self._record = record
        self._jobs: deque[_Job] = deque()
        self.late_s = 0.0
        self.kind: Kind | None = None

    def run(self, kind: Kind, layer: str, duration_s: float, then: Done) -> None:
        """Do something once everything before it is done, then call `then`."""
        self._jobs.append(_Job(kind, layer, duration_s, then))
        if self.kind is None:
            self._next()

    def _next(self) -> None:
        job = self._jobs.popleft()
        self.kind, self.late_s = job.kind, 0.0
        start_s = self._queue.now_s
        if self._begun is not None:
            self._begun(job.duration_s)

        def end() -> None:
            if self.late_s > 0:
                late_s, self.late_s = self.late_s, 0.0
                self._work(late_s, end)
                return
            self.kind = None
            self._record(job.kind, job.layer, start_s)
            job.then()
            if self.kind is None and self._jobs:
                self._next()

        self._work(job.duration_s, end)


class Rank:
    """One rank's lanes and spans.

    Args:
        number: Which rank.
        queue: The clock.
        threads: What its lanes work on: first the one that computes.
        slowdown: Factor of its computing times.
        interference: Share of codec work by which backward falls behind (chi).

    Attributes:
        work_s: What it has computed, encoded and copied so far.
    """

    def __init__(
        self,
        number: int,
        queue: EventQueue,
        threads: tuple[Work, Work],
        slowdown: float,
        interference: float,
    ) -> None:
        self.number = number
        self.spans: list[Span] = []
        self.work_s = 0.0
        self._queue = queue
        self._thread = threads[0]
        self._slowdown = slowdown
        self._interference = interference
        self._compute = Lane(queue, threads[0], self.record)
        self._codec = Lane(queue, threads[1], self.record, self._hold_up)

    def record(
        self,
        kind: Kind,
        layer: str,
        start_s: float,
        num_bytes: int = 0,
        bits: float | None = None,
    ) -> None:
        """Note what has just ended, unless it took no time."""
        if self._queue.now_s > start_s or num_bytes:
            end_s = self._queue.now_s
            self.spans.append(Span(self.number, kind, layer, start_s, end_s, num_bytes, bits))

    def compute(self, kind: Kind, layer: str, duration_s: float, then: Done) -> None:
        """Compute, as slowly as this rank does."""
        self.work_s += duration_s * self._slowdown
        self._compute.run(kind, layer, duration_s * self._slowdown, then)

    def inline(self, layer: str, duration_s: float, then: Done) -> None:
        """Encode on the thread that computes."""
        self.work_s += duration_s
        self._compute.run("encode", layer, duration_s, then)

    def copy(self, duration_s: float, then: Done) -> None:
        """Copy on the thread that computes, while it waits for gradients."""
        self.work_s += duration_s
        self._thread(duration_s, then)

    def encode(self, kind: Kind, layer: str, duration_s: float, then: Done) -> None:
        """Encode or decode beside the computation."""
        self.work_s += duration_s
        self._codec.run(kind, layer, duration_s, then)

    def _hold_up(self, duration_s: float) -> None:
        """Let a backward pass that runs beside the codec fall behind."""
        if self._compute.kind == "backward":
            self._compute.late_s += self._interference * duration_s
