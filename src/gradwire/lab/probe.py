"""Measures lines with sockets of its own, before anybody trusts their rates."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradwire.errors import CommandError
from gradwire.lab.line import Line
from gradwire.lab.namespace import Namespace
from gradwire.units import format_rate

MACHINE_LIMITED_BYTES_PER_S = 5e9 / 8
"""From here on two processor cores, not the line, may set the pace."""

_ATTEMPTS = 3
_WINDOW_S = 0.3
_WINDOW_BYTES = 200e3
_LONGEST_S = 5.0
_WARM_UP_S = 0.05
_QUEUED_S = 0.02
_LEAST_QUEUED = 3000
_MOST_QUEUED = 2 << 20
_TOGETHER_S = 0.25e-3
_MOST_TOGETHER = 60_000
_ETHERNET_BYTES = 14
_HEADER_BYTES = 28
"""IPv4 20, UDP 8."""

_SO_SNDBUFFORCE = 32
_UDP_SEGMENT = 103
"""Has the kernel cut what is sent into datagrams; from Linux's headers, as the one above."""


@dataclass(frozen=True, slots=True)
class LineCheck:
    """What a line was set to and what it carried, both directions at once.

    Attributes:
        rank: Whose line.
        rate_bytes_per_s: As set.
        sent_bytes_per_s: As measured, in frames.
        received_bytes_per_s: Likewise.

    Example:
        >>> LineCheck(0, 12.5e6, 12.2e6, 12.3e6).complaint(0.1) is None
        True
        >>> LineCheck(1, 12.5e6, 9e6, 12.3e6).complaint(0.1)
        'rank 1 sends at 72 Mbit/s where 100 Mbit/s is set'
    """

    rank: int
    rate_bytes_per_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float

    @property
    def is_machine_limited(self) -> bool:
        """Whether the machine may be what makes it slower than set."""
        return self.rate_bytes_per_s >= MACHINE_LIMITED_BYTES_PER_S

    def complaint(self, tolerance: float) -> str | None:
        """Say which direction is off by more than a share of the rate, or None."""
        least = 0.0 if self.is_machine_limited else 1 - tolerance
        found = {"sends": self.sent_bytes_per_s, "receives": self.received_bytes_per_s}
        wrong = [
            f"{verb} at {format_rate(rate)}"
            for verb, rate in found.items()
            if not least <= rate / self.rate_bytes_per_s <= 1 + tolerance
        ]
        is_set = f"where {format_rate(self.rate_bytes_per_s)} is set"
        return f"rank {self.rank} {' and '.join(wrong)} {is_set}" if wrong else None


def check_lines(
    hub: Namespace, hub_address: str, lines: Sequence[Line], latency_s: float, tolerance: float
) -> tuple[LineCheck, ...]:
    """Measure every limited line against the hub, one after the other.

    Raises:
        CommandError: A line is off by more than `tolerance` in all attempts.
    """
    limited = [line for line in lines if math.isfinite(line.rate_bytes_per_s)]
    return tuple(_check(hub, hub_address, line, latency_s, tolerance) for line in limited)


def _check(
    hub: Namespace, hub_address: str, line: Line, latency_s: float, tolerance: float
) -> LineCheck:
    complaints = []
    for _ in range(_ATTEMPTS):
        check = _measure(hub, hub_address, line, latency_s)
        complaint = check.complaint(tolerance)
        if complaint is None:
            return check
        complaints.append(complaint)
    raise CommandError(
        f"{complaints[-1]}, more than {tolerance:.0%} off in each of {_ATTEMPTS} measurements:"
        " wait until the machine has nothing else to do, set a lower rate, or pass verify=False"
    )


def _measure(hub: Namespace, hub_address: str, line: Line, latency_s: float) -> LineCheck:
    """Flood the line both ways and count what arrives; with TCP, its moods would count too."""
    rate = line.rate_bytes_per_s
    up = _flood(line.inside, hub, hub_address, line)
    with up, _flood(hub, line.inside, line.address, line):
        time.sleep(_WARM_UP_S + 2 * latency_s)
        start, before = time.monotonic(), line.delivered()
        time.sleep(min(max(_WINDOW_S, _WINDOW_BYTES / rate), _LONGEST_S))
        took_s, after = time.monotonic() - start, line.delivered()
    time.sleep(2 * _QUEUED_S)  # the line runs empty
    sent, received = (
        _frames(a[0] - b[0], a[1] - b[1], line.mtu) / took_s
        for b, a in zip(before, after, strict=True)
    )
    return LineCheck(line.rank, rate, sent, received)


def _frames(num_bytes: int, packets: int, mtu: int) -> float:
    """Return the bytes of the full frames that counted packets, in one piece or cut up, make."""
    payload = num_bytes - (_ETHERNET_BYTES + _HEADER_BYTES) * packets
    return payload * (mtu + _ETHERNET_BYTES) / (mtu - _HEADER_BYTES)


@contextlib.contextmanager
def _flood(source: Namespace, sink: Namespace, address: str, line: Line) -> Iterator[None]:
    """Send datagrams as fast as the line takes them; nobody reads them."""
    with sink.entered():
        unread = socket.socket(type=socket.SOCK_DGRAM)
    with source.entered():  # a socket stays in the namespace it was made in
        sender = socket.socket(type=socket.SOCK_DGRAM)
    with unread, sender:
        unread.bind((address, 0))
        sender.connect(unread.getsockname())
        # Less than the line's queue holds, or the sender would not wait but lose.
        queued = int(min(max(line.rate_bytes_per_s * _QUEUED_S, _LEAST_QUEUED), _MOST_QUEUED))
        sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, queued)
        frame = line.mtu - _HEADER_BYTES
        sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, frame)
        sender.settimeout(_LONGEST_S)
        together = int(line.rate_bytes_per_s * _TOGETHER_S / frame)
        datagrams = bytes(frame * min(max(together, 1), _MOST_TOGETHER // frame))
        is_over = threading.Event()

        def send() -> None:
            while not is_over.is_set():
                sender.send(datagrams)

        thread = threading.Thread(target=send, daemon=True, name="gradwire-lab-probe")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
