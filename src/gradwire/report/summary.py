"""From steps to what a reader compares: medians, spreads, gains, losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradwire.report.model import BASELINE, DemoResult, MethodResult, Step, Validation

WINDOW = 5
"""Steps over which training loss is smoothed (trailing mean)."""

TOLERANCE = 0.01
"""Losses closer than this, relatively, count as reached: a seed moves them more."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and half the distance between the quartiles, both in one unit.

    Example:
        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
        Spread(median=3.0, half_iqr=1.0)
    """

    median: float
    half_iqr: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        if len(values) == 1:
            return cls(values[0], 0.0)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, (high - low) / 2)


def format_milliseconds(seconds: float, like_s: float | None = None) -> str:
    """Write a time in milliseconds with about three digits; the unit is the reader's.

    Args:
        seconds: The time.
        like_s: The time whose number of decimals it takes; its own by default.

    Example:
        >>> format_milliseconds(0.0421), format_milliseconds(0.0004, like_s=0.0421)
        ('42.1', '0.4')
    """
    like_ms = 1e3 * abs(seconds if like_s is None else like_s)
    digits = sum(like_ms < limit for limit in (100, 10))
    return f"{1e3 * seconds:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Target:
    """When a method came within `TOLERANCE` of the loss that plain DDP ended with.

    Attributes:
        loss: That loss, smoothed.
        reached_s: Training time until then; None if it was not reached.
    """

    loss: float
    reached_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One method's numbers, times in seconds; the validation is its last."""

    method: MethodResult
    step_s: Spread
    forward_s: Spread
    backward_s: Spread
    exposed_s: Spread
    optimiser_s: Spread
    sent_bytes: Spread
    training_s: float
    final_loss: float
    validation: Validation
    target: Target


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one method gained or lost against another.

    Attributes:
        speedup: The other's median step time over this one's; above 1 is a gain.
        is_time_clear: Whether the medians differ by more than both half spreads.
        loss_change: Mean difference of training loss over the last steps;
            above 0 is worse. Both methods saw the same batches in those steps.
        is_loss_clear: Whether that mean exceeds its standard deviation.
    """

    subject: Summary
    other: Summary
    speedup: float
    is_time_clear: bool
    loss_change: float
    is_loss_clear: bool


def smoothed_losses(steps: Sequence[Step]) -> list[float]:
    """Return the trailing mean of the training loss, over `WINDOW` steps at most.

    Example:
        >>> smoothed_losses([Step(i, loss, 0, 0, 0, 0, 0) for i, loss in enumerate([4.0, 2.0])])
        [4.0, 3.0]
    """
    losses = [s.loss for s in steps]
    return [
        statistics.fmean(losses[max(0, end - WINDOW) : end]) for end in range(1, len(losses) + 1)
    ]


def training_times(steps: Sequence[Step]) -> list[float]:
    """Return the training time, in seconds, at the end of each step."""
    return list(accumulate(s.total_s for s in steps))


def summarise(result: DemoResult) -> list[Summary]:
    """Return each method's summary, in the order they ran."""
    baseline = next(m for m in result.methods if m.name == BASELINE)
    goal = smoothed_losses(baseline.steps)[-1] * (1 + TOLERANCE)
    return [_summary(m, goal, result.settings.untimed_steps) for m in result.methods]


def _summary(method: MethodResult, goal: float, untimed_steps: int) -> Summary:
    timed = method.steps[untimed_steps:] or method.steps
    losses, times = smoothed_losses(method.steps), training_times(method.steps)
    first = next((i for i, loss in enumerate(losses) if loss <= goal), None)

    def spread(part: Callable[[Step], float]) -> Spread:
        return Spread.of([part(s) for s in timed])

    return Summary(
        method=method,
        step_s=spread(lambda s: s.total_s),
        forward_s=spread(lambda s: s.forward_s),
        backward_s=spread(lambda s: s.backward_s),
        exposed_s=spread(lambda s: s.exposed_s),
        optimiser_s=spread(lambda s: s.optimiser_s),
        sent_bytes=spread(lambda s: s.sent_bytes),
        training_s=times[-1],
        final_loss=losses[-1],
        validation=method.validations[-1],
        target=Target(goal, None if first is None else times[first]),
    )


def compare(subject: Summary, other: Summary) -> Comparison:
    """Compare one method with another, step time and loss."""
    difference = abs(subject.step_s.median - other.step_s.median)
    last = [
        mine.loss - theirs.loss
        for mine, theirs in zip(
            subject.method.steps[-WINDOW:], other.method.steps[-WINDOW:], strict=True
        )
    ]
    change = statistics.fmean(last)
    deviation = statistics.stdev(last) if len(last) > 1 else math.inf
    return Comparison(
        subject,
        other,
        speedup=other.step_s.median / subject.step_s.median,
        is_time_clear=difference > subject.step_s.half_iqr + other.step_s.half_iqr,
        loss_change=change,
        is_loss_clear=abs(change) > deviation,
    )


def comparisons(summaries: Sequence[Summary]) -> list[Comparison]:
    """Compare each gradwire method with plain DDP and with PyTorch's fastest hook."""
    hooks = [s for s in summaries if s.method.family == "hook"]
    others = [s for s in summaries if s.method.name == BASELINE]
    others += sorted(hooks, key=lambda s: s.step_s.median)[:1]
    subjects = [s for s in summaries if s.method.family == "gradwire"]
    return [compare(subject, other) for subject in subjects for other in others]
