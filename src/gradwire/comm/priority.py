"""A mailbox whose urgent messages overtake the others."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradwire.comm.base import Pending, Rates
from gradwire.comm.line import BYE, PING, Line
from gradwire.comm.meter import BUFFERED_BYTES, Meter
from gradwire.comm.shaped import Link, Port
from gradwire.errors import CollectiveError, SpecError

_SETUP_TAG = 1 << 62
_FAREWELL_S = 5.0
_PINGS = 3


class PriorityMailbox:
    """Exchanges that leave by priority, over one connection to each rank.

    Results are done in the order of their completion. Bytes that come before
    their receive is posted are kept, so ranks may exchange in any order, each
    in its own.

    Args:
        rank: This process's number in the group.
        connections: A connected stream socket for each other rank; closed
            with the mailbox.
        link: Make transfers last as long as on such a link. Ranks must then
            share a clock.
        timeout_s: Limit of `gather_objects`.

    Example:
        >>> from gradwire.comm.sockets import run_connected
        >>> def swap(mailbox):
        ...     peer, box = 1 - mailbox.rank, torch.zeros(3)
        ...     data = torch.full((3,), float(mailbox.rank))
        ...     mailbox.at(0).exchange(5, {peer: data}, {peer: box}).result()
        ...     return box.tolist()
        >>> run_connected(2, swap)
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        link: Link | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.rank = rank
        self.world_size = len(connections) + 1
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._under_way: dict[int, _Exchange] = {}
        self._failure: str | None = None
        self._is_closed = False
        self._pid = os.getpid()
        port = None if link is None or link.is_unlimited else Port(link)
        self._meter = Meter(BUFFERED_BYTES if port is None else 0)
        self._gathers = 0
        self._lines: dict[int, Line] = {}
        self._lines = {
            peer: Line(peer, connection, port, self._meter.add, self._on_broken)
            for peer, connection in connections.items()
        }

    def at(self, priority: float) -> _Prioritised:
        """Return a `Mailbox` of one priority for all exchanges; lower leaves first."""
        return _Prioritised(self, priority)

    def exchange(
        self,
        tag: int,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        priority: float = 0.0,
    ) -> Pending:
        """Send and receive one tensor from each named rank (see `Mailbox.exchange`).

        Callbacks of the result run on the mailbox's threads.

        Raises:
            SpecError: A tensor is not contiguous or not on the CPU.
        """
        outgoing = [
            (p, _bytes(x, f"sends[{p}]"))
            for p, x in sends.items()
            if x.numel() and not self._lines[p].has_left  # nothing more is wanted there
        ]
        incoming = [(p, _bytes(x, f"receives[{p}]")) for p, x in receives.items() if x.numel()]
        exchange = _Exchange(tag, [p for p, _ in incoming], [p for p, _ in outgoing])
        with self._lock:
            refused = "the mailbox was closed" if self._is_closed else self._failure
            if refused is None and exchange.left:
                self._under_way[id(exchange)] = exchange
        if refused is not None:
            exchange.settle(CollectiveError("exchange", self.rank, f"tag {tag}: {refused}"))
            return exchange.pending
        if not exchange.left:
            exchange.settle(None)
        for peer, data in incoming:
            counter = self._counter(exchange, exchange.sources, peer)
            try:
                self._lines[peer].receive(tag, data, counter)
            except ValueError as error:
                self._on_broken(f"rank {peer}: {error}")
        for peer, data in outgoing:
            counter = self._counter(exchange, exchange.targets, peer)
            self._lines[peer].send(tag, data, priority, counter)
        if any(line.has_left for line in self._lines.values()):
            self._on_broken("")  # what is not here from a rank that left will not come
        return exchange.pending

    def _missed(self, peers: set[int]) -> str | None:
        """Say which of some ranks has left."""
        for peer in peers:
            if self._lines[peer].has_left:
                return f"rank {peer} has closed its end"
        return None

    def _counter(self, exchange: _Exchange, peers: set[int], peer: int) -> Callable[[], None]:
        def count() -> None:
            with self._lock:
                peers.discard(peer)
                is_done = not exchange.left and self._under_way.pop(id(exchange), None) is not None
            if is_done:
                exchange.settle(None)

        return count

    def _on_broken(self, reason: str) -> None:
        """Fail what cannot be completed any more: all of it, or what needs a rank that left."""
        with self._lock:
            under_way = list(self._under_way.values())
            # What a rank that left was sent it has read, or did not want.
            missed = (self._missed(exchange.sources) for exchange in under_way)
            reason = reason or next(filter(None, missed), "")
            if not reason or self._is_closed:
                return
            self._failure = self._failure or reason
            reason = self._failure
            self._under_way.clear()
            lines = list(self._lines.values())
        for line in lines:
            line.cut()  # so that the others notice at once
        for exchange in under_way:
            detail = f"tag {exchange.tag}: {reason}"
            exchange.settle(CollectiveError("exchange", self.rank, detail))

    def ping(self) -> None:
        """Start measuring latency; `rates` has the outcome later."""
        for line in self._lines.values():
            line.note(PING, float("-inf"))

    def measure_latency(self) -> None:
        """Ping while nothing else is under way; whoever does not answer soon is left out."""
        for _ in range(_PINGS):
            self.ping()
            end_s = time.monotonic() + _FAREWELL_S
            for line in self._lines.values():
                line.answered.wait(max(0.0, end_s - time.monotonic()))

    def rates(self) -> Rates:
        """Return what was measured, and cut packets to that."""
        bandwidth = self._meter.bytes_per_s()
        if bandwidth is not None:
            for line in self._lines.values():
                line.set_rate(bandwidth, len(self._lines))
        trip_s = max((line.trip_s for line in self._lines.values()), default=0.0)
        return Rates(bandwidth, trip_s / 2 if trip_s < float("inf") else None)

    def gather_objects(self, value: object) -> list[object]:
        """Return every rank's value, by rank (see `Mailbox.gather_objects`)."""
        tag = _SETUP_TAG + 2 * self._gathers
        self._gathers += 1
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        others = list(self._lines)
        size = torch.tensor([data.numel()])
        sizes = {r: torch.empty_like(size) for r in others}
        self.exchange(tag, dict.fromkeys(others, size), sizes).result(self.timeout_s)
        rows = {r: torch.empty(int(sizes[r]), dtype=torch.uint8) for r in others}
        self.exchange(tag + 1, dict.fromkeys(others, data), rows).result(self.timeout_s)
        rows[self.rank] = data
        return [pickle.loads(rows[r].numpy().tobytes()) for r in range(self.world_size)]  # noqa: S301 - from our own ranks

    def fail(self, reason: str) -> None:
        """Give up everything, here and on the other ranks."""
        self._on_broken(reason)

    def close(self) -> None:
        """Deliver what was handed over, say goodbye, disconnect. Can be called twice."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, but neither the threads nor a say
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            is_whole = self._failure is None
            under_way = list(self._under_way.values())
            self._under_way.clear()
        for exchange in under_way:
            detail = f"tag {exchange.tag}: the mailbox was closed"
            exchange.settle(CollectiveError("exchange", self.rank, detail))
        if was_closed:
            return
        if is_whole and not under_way:
            self._say_goodbye()
        for line in self._lines.values():
            line.stop()

    def _say_goodbye(self) -> None:
        """See to it that the others have read everything: closing may discard the rest."""
        end_s = time.monotonic() + _FAREWELL_S
        for line in self._lines.values():
            if not line.has_left:
                line.note(BYE, float("inf"))
        for line in self._lines.values():
            if not line.has_left:
                line.acknowledged.wait(max(0.0, end_s - time.monotonic()))


class _Exchange:
    """One exchange: which ranks it waits for, and the future it completes."""

    def __init__(self, tag: int, sources: list[int], targets: list[int]) -> None:
        self.tag = tag
        self.sources = set(sources)
        self.targets = set(targets)
        self.pending: Pending = Pending()
        self.pending.set_running_or_notify_cancel()  # from here on nobody can cancel it

    @property
    def left(self) -> bool:
        return bool(self.sources or self.targets)

    def settle(self, error: CollectiveError | None) -> None:
        if error is not None:
            self.pending.set_exception(error)
        else:
            self.pending.set_result(None)


class _Prioritised:
    """A mailbox at one priority, for reducers, which know nothing of priorities."""

    def __init__(self, mailbox: PriorityMailbox, priority: float) -> None:
        self._mailbox = mailbox
        self._priority = priority
        self.rank = mailbox.rank
        self.world_size = mailbox.world_size

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """See `Mailbox.exchange`."""
        return self._mailbox.exchange(tag, sends, receives, self._priority)

    def gather_objects(self, value: object) -> list[object]:
        """See `Mailbox.gather_objects`."""
        return self._mailbox.gather_objects(value)

    def close(self) -> None:
        """See `Mailbox.close`."""
        self._mailbox.close()


def _bytes(tensor: Tensor, field: str) -> memoryview:
    if not tensor.is_contiguous():
        stride = f"strides {tensor.stride()} of shape {tuple(tensor.shape)}"
        raise SpecError(field, stride, "contiguous; pass tensor.contiguous()")
    if tensor.device.type != "cpu":
        raise SpecError(field, tensor.device, "on the CPU")
    data: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return data
