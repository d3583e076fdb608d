"""The kernel's threads that carry packets, raised with the workers they serve."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class PacketThreads:
    """Raises the priority of `ksoftirqd`, which takes over where packets are many.

    Workers above everything else on the machine would starve it: with two
    ranks that computed on two cores, an all-reduce of 4 KiB took over a second.

    Args:
        nice: Priority, as the workers have it; 0 leaves all as it is.
    """

    def __init__(self, nice: int) -> None:
        self._nice = nice
        self._before: dict[int, int] = {}

    def raise_all(self) -> None:
        """Raise each of them."""
        for pid in _packet_threads() if self._nice else ():
            before = os.getpriority(os.PRIO_PROCESS, pid)
            if before > self._nice:
                os.setpriority(os.PRIO_PROCESS, pid, self._nice)
                self._before[pid] = before

    def restore(self) -> None:
        """Give each the priority that it had. Can be called twice."""
        while self._before:
            pid, before = self._before.popitem()
            with suppress(ProcessLookupError):  # its core was taken away
                os.setpriority(os.PRIO_PROCESS, pid, before)


def _packet_threads() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            if path.read_text(encoding="utf-8", errors="replace").startswith("ksoftirqd/"):
                found.append(int(path.parent.name))
    return found
