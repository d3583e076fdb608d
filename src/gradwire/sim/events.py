"""EventQueue: calls in order of time, the same order in every run."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Call = Callable[[], None]


class EventQueue:
    """A clock that jumps from one event to the next.

    Events of one time run in the order in which they were entered.

    Example:
        >>> queue, seen = EventQueue(), []
        >>> queue.at(2.0, lambda: seen.append("late"))
        >>> queue.at(1.0, lambda: seen.append("early"))
        >>> queue.run()
        >>> seen, queue.now_s, queue.processed
        (['early', 'late'], 2.0, 2)
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.processed = 0
        self._entered = 0
        self._heap: list[tuple[float, int, Call]] = []
        self._settling: list[Call] = []

    def at(self, time_s: float, call: Call) -> None:
        """Call at a time; at once where it has passed."""
        self._entered += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._entered, call))

    def after(self, delay_s: float, call: Call) -> None:
        """Call in so many seconds."""
        self.at(self.now_s + delay_s, call)

    def settle(self, call: Call) -> None:
        """Call once everything that happens at this time has happened."""
        self._settling.append(call)

    def run(self) -> None:
        """Work until nothing is left to happen."""
        while self._heap or self._settling:
            if self._settling and (not self._heap or self._heap[0][0] > self.now_s):
                calls, self._settling = self._settling, []
                for call in calls:
                    call()
                continue
            self.now_s, _, event = heapq.heappop(self._heap)
            self.processed += 1
            event()
