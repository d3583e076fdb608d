"""History: what steps have cost, kept, summed up and reported."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence

from gradwire.engine.stats import StepStats

_KEPT_STEPS = 100
_SUSPICIOUS_RATIO = 1000.0


class History:
    """The latest steps, and totals over all.

    A step may end on any thread; it is reported when the next one begins, on the
    thread that runs backward.

    Args:
        listeners: Called with each step, in this order.

    Example:
        >>> history = History([lambda stats: print(stats.step, stats.sent_bytes)])
        >>> history.add(StepStats(0, (), 0.0, 0.0, is_finite=True))
        >>> history.report()
        0 0
        >>> history.report()
    """

    def __init__(self, listeners: Sequence[Callable[[StepStats], None]]) -> None:
        self.recent: deque[StepStats] = deque(maxlen=_KEPT_STEPS)
        self.sent_bytes = self.dense_bytes = 0
        self._unreported: deque[StepStats] = deque(maxlen=_KEPT_STEPS)
        self._listeners = (self._warn_if_stale, *listeners)
        self._is_stale = False

    def add(self, stats: StepStats) -> None:
        """Take the statistics of a step that has ended."""
        self.sent_bytes += stats.sent_bytes
        self.dense_bytes += stats.dense_bytes
        self.recent.append(stats)
        self._unreported.append(stats)

    def report(self) -> None:
        """Tell the listeners of the steps that have ended since the last call."""
        while self._unreported:
            stats = self._unreported.popleft()
            for listener in self._listeners:
                listener(stats)

    def _warn_if_stale(self, stats: StepStats) -> None:
        ratio = max((b.gradient_ratio or 0.0 for b in stats.buckets), default=0.0)
        was_stale, self._is_stale = self._is_stale, ratio > _SUSPICIOUS_RATIO
        if self._is_stale and not was_stale:
            warnings.warn(
                f"step {stats.step}: what is owed is {ratio:.0f} times the gradient; if the"
                " loss scale has changed, call rescale(new / old)",
                RuntimeWarning,
                stacklevel=2,
            )
