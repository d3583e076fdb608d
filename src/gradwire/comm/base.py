"""Protocols of communication: a mailbox that moves bytes, collectives made of it.

A reducer is straight-line code that says `yield from group.all_gather(...)`
where it needs the others' bytes. The engine drives many of them from one
thread: while one waits, another encodes. Transfers are named by a tag that all
ranks derive alike, so their order of arrival does not matter.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor

Pending = Future[None]
"""A transfer under way; fails with `CollectiveError`."""

T = TypeVar("T")
Steps = Generator[Pending, None, T]
"""A computation that yields each transfer it must wait for, and returns `T`."""


class Mailbox(Protocol):
    """Moves bytes between ranks under tags; knows no codec."""

    @property
    def rank(self) -> int:
        """This process's number in the group."""

    @property
    def world_size(self) -> int:
        """Number of processes in the group."""

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """Send and receive one tensor from each named rank, at once.

        Receives are posted before sends. The call returns immediately; the
        caller keeps the tensors unchanged until the result is done.

        Args:
            tag: Names this exchange; equal on all ranks, and not used by
                another exchange under way.
            sends: Contiguous tensors by destination rank.
            receives: Contiguous tensors to fill, by source rank, of the exact
                size that rank sends.
        """

    def gather_objects(self, value: object) -> list[object]:
        """Return every rank's value, by rank. Blocking; for set-up and checks."""

    def close(self) -> None:
        """Stop threads and give up what is under way. Can be called twice."""


@runtime_checkable
class SummingMailbox(Mailbox, Protocol):
    """A mailbox whose back end has an all-reduce of its own."""

    def all_reduce(self, data: Tensor) -> Pending:
        """Replace `data` (contiguous, float32 or float64) by the sum over ranks, at once.

        All ranks call it in the same order. The sum's last bits may depend on
        where a value lies in `data`; they are the same on every rank.
        """


class Rates(NamedTuple):
    """What a rank has measured of its link; None where nothing was to be seen yet.

    Attributes:
        bandwidth_bytes_per_s: Payload rate at which it sent while it had something to send.
        latency_s: Half of a round trip of an empty note, at best.
    """

    bandwidth_bytes_per_s: float | None
    latency_s: float | None


class RankedMailbox(Mailbox, Protocol):
    """A mailbox whose transfers leave by priority, and that watches its links."""

    @property
    def timeout_s(self) -> float:
        """Limit of waiting for a transfer."""

    def at(self, priority: float) -> Mailbox:
        """Return the view whose exchanges leave before those of higher numbers."""

    def ping(self) -> None:
        """Start measuring latency; `rates` has the outcome later."""

    def measure_latency(self) -> None:
        """Measure latency while nothing is under way."""

    def rates(self) -> Rates:
        """Return what was measured."""

    def fail(self, reason: str) -> None:
        """Give up everything, here and on the other ranks."""


class Collective(Protocol):
    """Collectives a reducer may use, each to be run with `yield from`."""

    @property
    def rank(self) -> int:
        """This process's number in the group."""

    @property
    def world_size(self) -> int:
        """Number of processes in the group."""

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Replace `data` (1-D, contiguous) by the sum over ranks over `divisor`.

        Sums are formed in float32 (float64 for float64), in rank order, divided
        there, then rounded to the data's dtype: bit-identical on every rank.
        """

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Fill row r of `out`, `[world_size, numel]`, with rank r's `data`."""

    def all_to_all(self, out: Sequence[Tensor], data: Sequence[Tensor]) -> Steps[None]:
        """Send `data[r]` to rank r and fill `out[r]` from it; sizes may differ.

        All ranks derive the sizes from the plan. `data[rank]` is copied to
        `out[rank]` unless they are the same tensor.
        """


@runtime_checkable
class Float8Collective(Collective, Protocol):
    """Collectives whose back end may add up 8-bit floats."""

    def sum_float8(self, data: Tensor) -> Steps[None]:
        """Replace `data` (float8_e4m3fn, contiguous) by the sum over ranks.

        The back end rounds at every hop, in an order of its own; the result is
        the same on every rank.
        """


def complete(steps: Steps[T]) -> T:
    """Run steps to their end, waiting at each transfer. For tests and tools.

    Raises:
        CollectiveError: A transfer failed.
    """
    try:
        while True:
            next(steps).result()
    except StopIteration as stop:
        result: T = stop.value
        return result
