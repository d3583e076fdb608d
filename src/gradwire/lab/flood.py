"""Floods lines and counts what arrives.

A program of its own, so that it has the workers' priority.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from gradwire.lab.counters import interface_row
from gradwire.lab.namespace import Namespace

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
class Target:
    """A line to measure, against the hub.

    Attributes:
        hub: File descriptor of the hub's namespace.
        inside: That of the rank's namespace.
        hub_address: IPv4 address of the hub.
        address: That of the rank.
        port: The rank's interface in the hub.
        rate_bytes_per_s: As set, each way.
        latency_s: One way.
        mtu: Bytes of payload and IP headers in a frame.

    Example:
        >>> Target(4, 5, "10.77.0.254", "10.77.0.1", "port0", 12.5e6, 0.0, 1500).port
        'port0'
    """

    hub: int
    inside: int
    hub_address: str
    address: str
    port: str
    rate_bytes_per_s: float
    latency_s: float
    mtu: int


def command(targets: list[Target]) -> list[str]:
    """Return the command that measures lines; it needs their file descriptors.

    It writes a JSON array of what each rank sends and receives, in bytes of
    frames per second.

    Example:
        >>> command([])[-2:]
        ['gradwire.lab.flood', '[]']
    """
    lines = json.dumps([asdict(target) for target in targets])
    return [sys.executable, "-m", "gradwire.lab.flood", lines]


def measure(target: Target) -> tuple[float, float]:
    """Return what a rank sends and receives at once, in bytes of frames per second.

    With datagrams: with TCP, its ups and downs would be measured along.
    """
    rate, hub, inside = target.rate_bytes_per_s, Namespace(target.hub), Namespace(target.inside)

    def arrived() -> list[tuple[int, int]]:
        with hub.entered():
            sent = interface_row(target.port)
        with inside.entered():
            received = interface_row("eth0")
        return [(row[0], row[1]) for row in (sent, received)]

    with (
        _flow(inside, hub, target.hub_address, target),
        _flow(hub, inside, target.address, target),
    ):
        time.sleep(_WARM_UP_S + 2 * target.latency_s)
        start, before = time.monotonic(), arrived()
        time.sleep(min(max(_WINDOW_S, _WINDOW_BYTES / rate), _LONGEST_S))
        took_s, after = time.monotonic() - start, arrived()
    time.sleep(2 * _QUEUED_S)  # the line runs empty
    sent, received = (
        _frames(a[0] - b[0], a[1] - b[1], target.mtu) / took_s
        for b, a in zip(before, after, strict=True)
    )
    return sent, received


def _frames(num_bytes: int, packets: int, mtu: int) -> float:
    """Return the bytes of the full frames that counted packets, in one piece or cut up, make."""
    payload = num_bytes - (_ETHERNET_BYTES + _HEADER_BYTES) * packets
    return payload * (mtu + _ETHERNET_BYTES) / (mtu - _HEADER_BYTES)


@contextlib.contextmanager
def _flow(source: Namespace, sink: Namespace, address: str, target: Target) -> Iterator[None]:
    """Send datagrams as fast as the line takes them; nobody reads them."""
    with sink.entered():
        unread = socket.socket(type=socket.SOCK_DGRAM)
    with source.entered():  # a socket stays in the namespace it was made in
        sender = socket.socket(type=socket.SOCK_DGRAM)
    with unread, sender:
        unread.bind((address, 0))
        sender.connect(unread.getsockname())
        # Less than the line's queue holds, or the sender would not wait but lose.
        queued = int(min(max(target.rate_bytes_per_s * _QUEUED_S, _LEAST_QUEUED), _MOST_QUEUED))
        sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, queued)
        frame = target.mtu - _HEADER_BYTES
        sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, frame)
        sender.settimeout(_LONGEST_S)
        together = int(target.rate_bytes_per_s * _TOGETHER_S / frame)
        datagrams = bytes(frame * min(max(together, 1), _MOST_TOGETHER // frame))
        is_over = threading.Event()

        def send() -> None:
            while not is_over.is_set():
                sender.send(datagrams)

        thread = threading.Thread(target=send, daemon=True, name="gradwire-lab-flood")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


if __name__ == "__main__":
    json.dump([measure(Target(**line)) for line in json.loads(sys.argv[1])], sys.stdout)
