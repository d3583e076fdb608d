"""Meter: the rate of a link, from the packets that were sent."""

from __future__ import annotations

import threading
from collections import deque
from itertools import accumulate

BUFFERED_BYTES = 1 << 17
"""What a burst begins with goes into the kernel's buffers, and says nothing of the network."""

_PAUSE_S = 0.001
_PIECE_BYTES = 1 << 17
_BUSY_S = 0.25
_FEW = 4
_METERED = 256


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

        The median over pieces of equal size: a sender that had to wait for a core
        looks slow for a moment, and one whose packets went into a buffer fast. The
        beginning of each burst is left out where more is known.
        """
        with self._lock:
            packets = sorted(self._packets)
        sent = self._sent(packets, self._buffered_bytes) or self._sent(packets, 0)
        if not sent:
            return None
        pieces = _cut(sent)
        if len(pieces) < _FEW:
            total_s, total_bytes = map(sum, zip(*sent, strict=True))
            return total_bytes / total_s
        half = sum(size for _, size in pieces) / 2
        below = accumulate(size for _, size in sorted(pieces))
        return next(
            rate for (rate, _), size in zip(sorted(pieces), below, strict=True) if size >= half
        )

    @staticmethod
    def _sent(
        packets: list[tuple[float, float, int]], buffered_bytes: int
    ) -> list[tuple[float, int]]:
        """Return how long the latest packets took beyond those before, and their bytes."""
        sent: list[tuple[float, int]] = []
        burst_bytes, reached_s = 0, float("-inf")
        for start_s, end_s, size in packets:
            if start_s > reached_s + _PAUSE_S:
                burst_bytes, reached_s = 0, start_s
            if burst_bytes >= buffered_bytes:
                sent.append((max(0.0, end_s - max(start_s, reached_s)), size))
            burst_bytes += size
            reached_s = max(reached_s, end_s)
        return sent if any(span_s for span_s, _ in sent) else []


def _cut(sent: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return rate and bytes of pieces, from the latest `_BUSY_S` of sending."""
    pieces: list[tuple[float, int]] = []
    all_s = took_s = 0.0
    took_bytes = 0
    for span_s, size in reversed(sent):
        took_s, took_bytes, all_s = took_s + span_s, took_bytes + size, all_s + span_s
        if took_bytes >= _PIECE_BYTES and took_s > 0:
            pieces.append((took_bytes / took_s, took_bytes))
            took_s, took_bytes = 0.0, 0
            if all_s > _BUSY_S:
                break
    return pieces
