"""A mailbox as slow as a given link: to train as on a network that is not there."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm.base import Mailbox, Pending
from gradwire.errors import SpecError
from gradwire.spec import check_number


@dataclass(frozen=True, slots=True)
class Link:
    """The full-duplex line between each rank and an ideal switch.

    Attributes:
        rate_bytes_per_s: Payload rate, each way; infinity for no limit.
        latency_s: From the departure of a byte at one rank to its arrival at
            another.

    Example:
        >>> Link(12.5e6, 0.01).is_unlimited
        False
    """

    rate_bytes_per_s: float = math.inf
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse lines that carry nothing or deliver early."""
        check_number("Link.rate_bytes_per_s", self.rate_bytes_per_s, "a number above 0")
        check_number("Link.latency_s", self.latency_s, "a finite number of at least 0")
        if not self.rate_bytes_per_s > 0:
            raise SpecError("Link.rate_bytes_per_s", self.rate_bytes_per_s, "above 0")
        if not 0 <= self.latency_s < math.inf:
            raise SpecError("Link.latency_s", self.latency_s, "a finite number of at least 0")

    @property
    def is_unlimited(self) -> bool:
        """Whether transfers take no time at all."""
        return math.isinf(self.rate_bytes_per_s) and self.latency_s == 0


class Port:
    """One rank's end of a link: when bytes leave, and when they have arrived.

    Each direction carries one message after the other; latencies overlap.

    Args:
        link: Rate and latency.

    Example:
        >>> port = Port(Link(rate_bytes_per_s=100.0, latency_s=0.5))
        >>> port.send(0.0, 100), port.send(0.0, 100)  # one after the other
        (1.0, 2.0)
        >>> port.receive(1.0, 100), port.receive(1.0, 100)  # from two ranks at once
        (1.5, 2.5)
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._lock = threading.Lock()
        self._egress_free_s = self._ingress_free_s = -math.inf

    def send(self, now_s: float, num_bytes: float) -> float:
        """Return when the last byte of a message leaves that is handed over now."""
        with self._lock:
            start_s = max(now_s, self._egress_free_s)
            self._egress_free_s = start_s + num_bytes / self.link.rate_bytes_per_s
            return self._egress_free_s

    def receive(self, departed_s: float, num_bytes: float) -> float:
        """Return when the last byte arrives of a message whose last byte left then."""
        duration_s = num_bytes / self.link.rate_bytes_per_s
        with self._lock:
            start_s = max(departed_s - duration_s, self._ingress_free_s)
            self._ingress_free_s = start_s + duration_s
            return self._ingress_free_s + self.link.latency_s


class Alarm:
    """Calls functions at given times of the monotonic clock, from one thread.

    Example:
        >>> alarm, rang = Alarm(), threading.Event()
        >>> alarm.at(time.monotonic() + 0.01, rang.set)
        >>> rang.wait(5)
        True
        >>> alarm.close()
    """

    def __init__(self) -> None:
        self._queue = _AlarmQueue()
        self._closer = weakref.finalize(self, self._queue.close)

    def at(self, due_s: float, call: Callable[[], None]) -> None:
        """Call then, or at once if that time has passed or the alarm was closed."""
        self._queue.put(due_s, call)

    def close(self) -> None:
        """Call at once what is still due, and end the thread. Can be called twice."""
        self._closer()


class _AlarmQueue:
    """What the thread knows; apart from `Alarm`, so that dropping that ends the thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gradwire-alarm", daemon=True)
        self._thread.start()

    def put(self, due_s: float, call: Callable[[], None]) -> None:
        with self._changed:
            if not self._closed:
                heapq.heappush(self._calls, (due_s, next(self._serial), call))
                self._changed.notify()
                return
        call()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # an idle thread keeps nothing alive

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                if self._calls:
                    wait_s = self._calls[0][0] - time.monotonic()
                    if wait_s <= 0 or self._closed:
                        return heapq.heappop(self._calls)[2]
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                elif self._closed:
                    return None
                else:
                    self._changed.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()


class ShapedMailbox:
    """A mailbox whose exchanges last as long as they would on a link.

    With each message goes the time its last byte would leave its sender, who
    sends one after the other; the receiver takes in one after the other, too.
    The real transfer runs meanwhile. Ranks must share a clock, that is, run
    on one machine, and use equal links.

    Args:
        mailbox: What moves the bytes; quickly, compared with the link.
        link: The line to imitate.

    Example:
        >>> from gradwire.comm.local import run_ranks
        >>> def seconds(mailbox):
        ...     shaped, peer = ShapedMailbox(mailbox, Link(1000.0)), 1 - mailbox.rank
        ...     start = time.monotonic()
        ...     shaped.exchange(0, {peer: torch.ones(25)}, {peer: torch.ones(25)}).result()
        ...     shaped.close()
        ...     return round(time.monotonic() - start, 1)
        >>> run_ranks(2, seconds)
        [0.1, 0.1]
    """

    def __init__(self, mailbox: Mailbox, link: Link) -> None:
        self._mailbox = mailbox
        self._port = Port(link)
        self._alarm = Alarm()
        self.rank = mailbox.rank
        self.world_size = mailbox.world_size

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """Send and receive, taking the link's time (see `Mailbox.exchange`)."""
        if self._port.link.is_unlimited:
            return self._mailbox.exchange(tag, sends, receives)
        now_s = time.monotonic()
        left = {r: self._port.send(now_s, x.nbytes) for r, x in sends.items() if x.numel()}
        stamps = {r: torch.tensor([t], dtype=torch.float64) for r, t in left.items()}
        boxes = {r: torch.empty(1, dtype=torch.float64) for r, x in receives.items() if x.numel()}
        shaped: Pending = Pending()
        shaped.set_running_or_notify_cancel()

        def arrived(done: Pending) -> None:
            error = done.exception()
            if error is not None:
                shaped.set_exception(error)
                return
            departures = sorted((float(boxes[r]), receives[r].nbytes) for r in boxes)
            arrivals = [self._port.receive(t, num_bytes) for t, num_bytes in departures]
            due_s = max([*left.values(), *arrivals], default=now_s)
            self._alarm.at(due_s, lambda: shaped.set_result(None))

        # The times are posted first, hence received once the data are.
        self._mailbox.exchange(2 * tag, stamps, boxes)
        self._mailbox.exchange(2 * tag + 1, sends, receives).add_done_callback(arrived)
        return shaped

    def gather_objects(self, value: object) -> list[object]:
        """See `Mailbox.gather_objects`; takes no time of the link."""
        return self._mailbox.gather_objects(value)

    def close(self) -> None:
        """Close the wrapped mailbox and end the thread."""
        self._mailbox.close()
        self._alarm.close()
