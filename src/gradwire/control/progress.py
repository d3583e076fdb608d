"""Precision schedules: how the least number of bits follows training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradwire.spec.adaptive import LEVELS, Adaptive

_RELAXED = 0.3
"""The floor falls where the error stays below this part of its bound.

A bit less multiplies the error by about 2.3: the floor must not swing."""


class Schedule(Protocol):
    """Says how many bits a layer gets at least."""

    def floor(self, step: int, relative_error: float) -> int:
        """Return the floor from now on, one of `LEVELS`.

        Args:
            step: Steps done.
            relative_error: Of the exchange, smoothed.
        """


@dataclass(frozen=True, slots=True)
class Constant:
    """The same floor throughout.

    Example:
        >>> Constant(4).floor(100, 0.3)
        4
    """

    bits: int

    def floor(self, step: int, relative_error: float) -> int:
        """See `Schedule.floor`."""
        return self.bits


@dataclass(frozen=True, slots=True)
class Ramp:
    """From one floor to another, level by level, in some steps.

    Early gradients are large and point one way, late ones drown in noise; that
    speaks for rising precision. Updates also shrink, which speaks for falling
    precision. Both are published, so both are here.

    Example:
        >>> [Ramp(3, 6, 90).floor(step, 0.3) for step in (0, 30, 60, 90)]
        [3, 4, 5, 6]
    """

    first: int
    last: int
    steps: int

    def floor(self, step: int, relative_error: float) -> int:
        """See `Schedule.floor`."""
        first, last = LEVELS.index(self.first), LEVELS.index(self.last)
        done = min(1.0, step / self.steps)
        return LEVELS[first + round(done * (last - first))]


class ErrorBounded:
    """Raises the floor while the exchange's relative error exceeds a bound.

    Args:
        least: Lowest floor.
        most: Highest floor.
        bound: Of the relative error.

    Example:
        >>> schedule = ErrorBounded(3, 6, 0.2)
        >>> [schedule.floor(step, error) for step, error in enumerate((0.4, 0.3, 0.15, 0.05))]
        [4, 5, 5, 4]
    """

    def __init__(self, least: int, most: int, bound: float) -> None:
        self._least, self._most = LEVELS.index(least), LEVELS.index(most)
        self._bound = bound
        self._now = self._least

    def floor(self, step: int, relative_error: float) -> int:
        """See `Schedule.floor`."""
        if relative_error > self._bound:
            self._now = min(self._now + 1, self._most)
        elif relative_error < _RELAXED * self._bound:
            self._now = max(self._now - 1, self._least)
        return LEVELS[self._now]


def schedule_of(settings: Adaptive) -> Schedule:
    """Build the schedule that settings ask for.

    Example:
        >>> schedule_of(Adaptive(schedule="constant", floor=4)).floor(0, 1.0)
        4
    """
    least, most = settings.floor, settings.peak_floor
    match settings.schedule:
        case "rising":
            return Ramp(least, most, settings.steps)
        case "falling":
            return Ramp(most, least, settings.steps)
        case "error_bounded":
            return ErrorBounded(least, most, settings.error_bound)
        case "constant":
            return Constant(least)
