"""Step: what all ranks of a simulated step share, and how work follows work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gradwire.hardware import Hardware
from gradwire.sim.events import EventQueue
from gradwire.sim.lanes import Done, Rank
from gradwire.sim.reductions import Reductions
from gradwire.sim.stages import Reduction
from gradwire.sim.transport import Transport
from gradwire.timeline import Kind
from gradwire.workload import Workload

T = TypeVar("T")

_COPY_PASSES = 2.0
"""A copy reads and writes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all ranks of a simulated step share.

    Attributes:
        stands_for_all: Whether there is one rank only, which works as long as
            the busiest one would.
        bucket_bytes: Size at which DDP closes a bucket.
        chunk_bytes: Largest piece, as float32, in which the overlap engine sends.
    """

    queue: EventQueue
    workload: Workload
    hardware: Hardware
    reductions: Reductions
    transport: Transport
    stands_for_all: bool
    bucket_bytes: int
    chunk_bytes: int

    def reduce(self, rank: Rank, reduction: Reduction, done: Done, priority: int = 0) -> None:
        """Take a reduction of a rank from stage to stage, and call `done` at its end."""
        _Run(self, rank, reduction, done, priority).work(0)

    def reduce_encoded(self, rank: Rank, reduction: Reduction, done: Done) -> None:
        """Do the same where the first work is done already."""
        _Run(self, rank, reduction, done, 0).send(0)

    def copy_s(self, num_bytes: int) -> float:
        """Return the time of copying gradients into a bucket, or out of it."""
        return _COPY_PASSES * num_bytes / self.hardware.device.copy_bytes_per_s


class _Run:
    """One reduction of one rank under way."""

    def __init__(
        self, step: Step, rank: Rank, reduction: Reduction, done: Done, priority: int
    ) -> None:
        self._step = step
        self._rank = rank
        self._reduction = reduction
        self._done = done
        self._priority = priority

    def work(self, index: int) -> None:
        """Encode or decode, then send."""
        number = None if self._step.stands_for_all else self._rank.number
        work_s = self._reduction.work_s(index, number)
        if work_s > 0:
            kind: Kind = "encode" if index == 0 else "decode"
            self._rank.encode(kind, self._reduction.name, work_s, lambda: self.send(index))
        else:
            self.send(index)

    def send(self, index: int) -> None:
        """Send what the work has made, or end."""
        phase = self._reduction.stages[index].phase
        if phase is None:
            self._done()
            return
        start_s, rank = self._step.queue.now_s, self._rank

        def arrived() -> None:
            num_bytes = round(phase.sent_bytes(rank.number))
            rank.record("transfer", self._reduction.name, start_s, num_bytes, self._reduction.bits)
            self.work(index + 1)

        key = self._reduction.name, index
        self._step.transport.post(rank.number, key, phase, arrived, self._priority)


class Latch:
    """Something that is waited for by at most one.

    Args:
        count: How many things have to happen.

    Example:
        >>> latch, seen = Latch(2), []
        >>> latch.wait(lambda: seen.append("over"))
        >>> latch.count_down(); latch.count_down()
        >>> seen
        ['over']
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiter: Done | None = None

    def count_down(self) -> None:
        """Say that one thing has happened."""
        self._count -= 1
        if self._count == 0 and self._waiter is not None:
            self._waiter()

    def wait(self, then: Done) -> None:
        """Call `then` once everything has happened."""
        if self._count <= 0:
            then()
        else:
            self._waiter = then


def each(items: Iterable[T], act: Callable[[T, Done], None], then: Done) -> None:
    """Act on one item after the other, each at the end of the one before.

    Example:
        >>> each("ab", lambda item, go_on: (print(item), go_on()), lambda: print("over"))
        a
        b
        over
    """
    iterator = iter(items)

    def go_on() -> None:
        for item in iterator:
            act(item, go_on)
            return
        then()

    go_on()
