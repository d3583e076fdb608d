"""A straight line through measured times, and how far they lie from it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gradwire.errors import SpecError
from gradwire.hardware import Line

_ROUNDS = 10
_OUTLYING = 2.0
"""Measurements farther from the line than so many medians lose weight."""
_CLOSE = 0.02
"""Measurements closer than this share of their time keep theirs."""


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit `fixed_s + num_bytes * s_per_byte` to measured times.

    Least squares of the *relative* distances, so that small sizes fix the
    fixed cost and large ones the slope; repeated with less weight for
    measurements that lie far off, which a busy machine makes. Neither part is
    negative.

    Args:
        points: Size in bytes and time in seconds of each measurement.

    Raises:
        SpecError: There are none, or a time is not above 0.

    Source:
        Iteratively reweighted least squares with Huber's weights (Huber, 1964).

    Example:
        >>> line = fit_line([(1000, 3.0), (2000, 4.0), (3000, 5.0)])
        >>> round(line.fixed_s, 6), round(line.s_per_byte, 6), line.spread
        (2.0, 0.001, 0.0)
    """
    if not points or not all(time_s > 0 for _, time_s in points):
        raise SpecError("measurements", list(points)[:3], "times above 0, at least one")
    weights = [1 / time_s**2 for _, time_s in points]
    line = _solve(points, weights)
    for _ in range(_ROUNDS):
        far = [abs(t - line.time_s(size)) / t for size, t in points]
        limit = max(_CLOSE, _OUTLYING * median(far))
        weights = [
            min(1.0, limit / f) / t**2 if f > 0 else 1 / t**2
            for f, (_, t) in zip(far, points, strict=True)
        ]
        line = _solve(points, weights)
    spread = median(abs(t - line.time_s(size)) / t for size, t in points)
    return line._replace(spread=round(spread, 4))


def _solve(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> Line:
    """Return the line of least weighted squares, neither part below 0."""
    total = sum(weights)
    sizes = [size for size, _ in points]
    mean_size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_s = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    variance = sum(w * (x - mean_size) ** 2 for w, x in zip(weights, sizes, strict=True))
    if variance == 0:
        return Line(mean_s, 0.0)
    slope = (
        sum(w * (x - mean_size) * (t - mean_s) for w, (x, t) in zip(weights, points, strict=True))
        / variance
    )
    fixed_s = mean_s - slope * mean_size
    if slope < 0:
        return Line(mean_s, 0.0)
    if fixed_s < 0:
        square = sum(w * x * x for w, x in zip(weights, sizes, strict=True))
        return Line(0.0, sum(w * x * t for w, (x, t) in zip(weights, points, strict=True)) / square)
    return Line(fixed_s, slope)
