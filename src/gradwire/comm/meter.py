"""Meter: the rate of a link, from the packets that were sent."""

from __future__ import annotations

import threading
from collections import deque

BUFFERED_BYTES = 1 << 17
"""What a burst begins with goes into the kernel's buffers, and says nothing of the network."""

_PAUSE_S = 0.001
_METERED = 64


class Meter:
    """Rate of what was sent, over the time in which there was something to send.

    Args:
        buffered_bytes: What the beginning of each burst leaves out.

    Example:
        >>> meter = Meter(0)
        >>> meter.add(0.0, 0.5, 100)
        >>> meter.bytes_per_s()
        200.0
    """

    def __init__(self, buffered_bytes: int) -> None:
        self._buffered_bytes = buffered_bytes
        self._lock = threading.Lock()
        self._packets: deque[tuple[float, float, int]] = deque(maxlen=_METERED)

    def add(self, start_s: float, end_s: float, size: int) -> None:
        """Note a packet: when it was taken up and handed over, and its bytes."""
        if size:
            with self._lock:
                self._packets.append((start_s, end_s, size))

    def bytes_per_s(self) -> float | None:
        """Return the rate of the latest packets, None before there are any.

        The beginning of each burst is left out where more is known.
        """
        with self._lock:
            packets = sorted(self._packets)
        rate = self._rate(packets, self._buffered_bytes)
        return self._rate(packets, 0) if rate is None else rate

    @staticmethod
    def _rate(packets: list[tuple[float, float, int]], buffered_bytes: int) -> float | None:
        total_bytes, total_s = 0, 0.0
        burst_bytes, reached_s = 0, float("-inf")
        for start_s, end_s, size in packets:
            if start_s > reached_s + _PAUSE_S:
                burst_bytes, reached_s = 0, start_s
            if burst_bytes >= buffered_bytes:
                total_bytes += size
                total_s += max(0.0, end_s - max(start_s, reached_s))
            burst_bytes += size
            reached_s = max(reached_s, end_s)
        return total_bytes / total_s if total_s > 0 else None
