"""Recorder: counts what really goes over the wire."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire.comm.base import Mailbox, Pending, SummingMailbox
from gradwire.layout import shard


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank exchanged.

    Attributes:
        sent_bytes: Bytes handed to the network, all destinations together.
        received_bytes: Bytes taken from it.
        exchanges: Exchanges completed.
        exchange_s: By exchange, seconds from its start to its completion, in
            the order of completion. They overlap: their sum is no time spent.
    """

    sent_bytes: int
    received_bytes: int
    exchanges: int
    exchange_s: tuple[float, ...]


class Recorder:
    """A mailbox that counts the exchanges of the one it wraps.

    Bytes are counted from the tensors handed over, when their exchange has
    succeeded.

    Args:
        mailbox: What moves the bytes.

    Example:
        >>> import torch
        >>> from gradwire.comm.local import run_ranks
        >>> def swap(mailbox):
        ...     recorder = Recorder(mailbox)
        ...     peer = 1 - recorder.rank
        ...     recorder.exchange(0, {peer: torch.ones(5)}, {peer: torch.zeros(5)}).result()
        ...     return recorder.take().sent_bytes
        >>> run_ranks(2, swap)
        [20, 20]
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._sent_bytes = 0
        self._received_bytes = 0
        self._exchange_s: list[float] = []
        self.rank = mailbox.rank
        self.world_size = mailbox.world_size

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """Pass an exchange on, and count it once complete (see `Mailbox.exchange`)."""
        sent_bytes, received_bytes = _num_bytes(sends.values()), _num_bytes(receives.values())
        return self._count(self._mailbox.exchange(tag, sends, receives), sent_bytes, received_bytes)

    def all_reduce(self, data: Tensor) -> Pending:
        """Pass a sum on to a mailbox that can; counted are the bytes a direct one takes."""
        assert isinstance(self._mailbox, SummingMailbox)
        own = shard(data.numel(), 1, self.rank, self.world_size).numel
        num_bytes = data.element_size() * (data.numel() + (self.world_size - 2) * own)
        return self._count(self._mailbox.all_reduce(data), num_bytes, num_bytes)

    def _count(self, pending: Pending, sent_bytes: int, received_bytes: int) -> Pending:
        recorded: Pending = Pending()
        recorded.set_running_or_notify_cancel()
        start = time.perf_counter()

        def count(done: Pending) -> None:
            error = done.exception()
            if error is not None:
                recorded.set_exception(error)
                return
            with self._lock:
                self._sent_bytes += sent_bytes
                self._received_bytes += received_bytes
                self._exchange_s.append(time.perf_counter() - start)
            recorded.set_result(None)

        pending.add_done_callback(count)
        return recorded

    def take(self) -> Traffic:
        """Return what was counted since the last call, and start again from zero."""
        with self._lock:
            seconds, self._exchange_s = tuple(self._exchange_s), []
            sent_bytes, self._sent_bytes = self._sent_bytes, 0
            received_bytes, self._received_bytes = self._received_bytes, 0
        return Traffic(sent_bytes, received_bytes, len(seconds), seconds)

    def gather_objects(self, value: object) -> list[object]:
        """See `Mailbox.gather_objects`; not counted."""
        return self._mailbox.gather_objects(value)

    def close(self) -> None:
        """Close the wrapped mailbox."""
        self._mailbox.close()


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
