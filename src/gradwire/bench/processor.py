"""How busy other programs keep this machine's cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path


class ForeignLoad:
    """Counts cores used by programs that are not ours, since it was made.

    What the kernel does for the network belongs to nobody, and is not counted.

    Args:
        process_ids: Leaders of our sessions; this process is ours too.

    Example:
        >>> 0 <= ForeignLoad([]).cores() <= (os.cpu_count() or 1)
        True
    """

    def __init__(self, process_ids: Sequence[int]) -> None:
        self._ours = frozenset(process_ids)
        self._start = self._read()

    def cores(self, least_s: float = 0.0) -> float:
        """Return the mean number of cores; 0 where the system does not tell.

        Args:
            least_s: How long it was at least, should we have heard late of its
                begin: a tick of the clock in no time would be many cores.
        """
        now_s, all_s, own_s = (b - a for a, b in zip(self._start, self._read(), strict=True))
        now_s = max(now_s, least_s)
        return max(0.0, (all_s - own_s) / now_s) if now_s else 0.0

    def _read(self) -> tuple[float, float, float]:
        stat = Path("/proc/stat")
        if not stat.is_file():
            return time.monotonic(), 0.0, 0.0
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        user, nice, system = (int(x) for x in stat.read_text(encoding="ascii").split()[1:4])
        own = sum(map(self._ticks, Path("/proc").glob("[0-9]*/stat")))
        return time.monotonic(), (user + nice + system) * tick_s, own * tick_s

    def _ticks(self, stat: Path) -> int:
        """Return what a process has used, 0 if it is not ours."""
        try:
            text = stat.read_text(encoding="ascii", errors="replace")
        except OSError:  # it has ended
            return 0
        fields = text.rpartition(")")[2].split()
        is_ours = int(fields[3]) in self._ours or int(stat.parent.name) == os.getpid()
        return int(fields[11]) + int(fields[12]) if is_ours else 0
