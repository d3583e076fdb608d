"""Gate: lets a rank's phases through within limits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Done = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way at once; what waits goes by priority, then age.

    Attributes:
        phases: Of each rank.
        in_flight_bytes: Of each rank; a phase that is larger goes alone.
    """

    phases: int | None = None
    in_flight_bytes: float | None = None


class Gate:
    """Lets phases through within limits.

    Args:
        limits: What may be under way.

    Example:
        >>> gate, seen = Gate(Limits(phases=1)), []
        >>> for name in "ab":
        ...     gate.enter(0, 10.0, lambda name=name: seen.append(name))
        >>> seen
        ['a']
        >>> gate.leave(10.0)
        >>> seen
        ['a', 'b']
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[tuple[int, int, float, Done]] = []
        self._entered = 0
        self._phases = 0
        self._num_bytes = 0.0

    def enter(self, priority: int, num_bytes: float, start: Done) -> None:
        """Call `start` as soon as the limits allow."""
        self._entered += 1
        heapq.heappush(self._waiting, (priority, self._entered, num_bytes, start))
        self._admit()

    def leave(self, num_bytes: float) -> None:
        """Make room: a phase has ended."""
        self._phases -= 1
        self._num_bytes -= num_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][2]):
            _, _, num_bytes, start = heapq.heappop(self._waiting)
            self._phases += 1
            self._num_bytes += num_bytes
            start()

    def _has_room(self, num_bytes: float) -> bool:
        most, credit = self._limits.phases, self._limits.in_flight_bytes
        if self._phases == 0:
            return True
        if most is not None and self._phases >= most:
            return False
        return credit is None or self._num_bytes + num_bytes <= credit
