"""What a sweep says: winners, break-even rates, scaling and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from gradwire.sim.base import Engine
from gradwire.sim.sweep import BASELINE, Point, PointKey, SweepResult, SweptWorkload

TIE = 0.01
"""Plans whose steps differ by less share the first place; the first in the list gets it."""
_S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Slice:
    """One workload with one engine.

    Attributes:
        points: Of the whole sweep.

    Example:
        >>> from gradwire.sim.sweep import Grid
        >>> grid = Grid((2,), (1e8, 1e9), ("int4",))
        >>> points = tuple(
        ...     Point("tiny", "ddp", 2, rate, plan, step_s, 0.0, 0, None)
        ...     for rate, plan, step_s in (
        ...         (1e8, "none", 3.0), (1e8, "int4", 1.0), (1e9, "none", 1.0), (1e9, "int4", 1.2)
        ...     )
        ... )
        >>> work = SweptWorkload("tiny", "", 8, 10, 0.5)
        >>> [part] = slices(SweepResult(grid, (work,), "toy", "", points))
        >>> part.winner(2, 1e8), part.winner(2, 1e9)
        ('int4', 'none')
        >>> f"{part.break_even_bytes_per_s('int4', 2):.2g}"
        '8.3e+08'
    """

    result: SweepResult
    workload: SweptWorkload
    engine: Engine
    points: Mapping[PointKey, Point]

    def step_s(self, ranks: int, rate_bytes_per_s: float, plan: str) -> float | None:
        """Return the time of a step, or None where the point is missing."""
        key = PointKey(self.workload.name, self.engine, ranks, rate_bytes_per_s, plan)
        point = self.points.get(key)
        return None if point is None else point.step_s

    def winner(self, ranks: int, rate_bytes_per_s: float) -> str | None:
        """Return the first plan that is within 1 % of the fastest."""
        times = {
            plan: step_s
            for plan in self.result.grid.plans
            if (step_s := self.step_s(ranks, rate_bytes_per_s, plan)) is not None
        }
        if not times:
            return None
        limit = min(times.values()) * (1 + TIE)
        return next(plan for plan, step_s in times.items() if step_s <= limit)

    def speed_up(self, plan: str, ranks: int, rate_bytes_per_s: float) -> float | None:
        """Return the baseline's step over the plan's."""
        dense = self.step_s(ranks, rate_bytes_per_s, BASELINE)
        step_s = self.step_s(ranks, rate_bytes_per_s, plan)
        return None if dense is None or step_s is None else dense / step_s

    def break_even_bytes_per_s(self, plan: str, ranks: int) -> float | None:
        """Return the rate below which a plan is faster than the baseline by 1 %.

        Between two rates of the grid, the speed-up is taken as straight over
        the logarithm of the rate. Infinite where the plan still pays at the
        highest rate, 0 where it does not at the lowest.
        """
        rates = sorted(self.result.grid.rates_bytes_per_s)
        gains = [self.speed_up(plan, ranks, rate) for rate in rates]
        known = [
            (math.log(rate), gain - 1 - TIE)
            for rate, gain in zip(rates, gains, strict=True)
            if gain is not None
        ]
        if not known:
            return None
        if known[-1][1] > 0:
            return math.inf
        for (low, gain), (high, loss) in reversed(list(pairwise(known))):
            if gain > 0 >= loss:
                return math.exp(low + (high - low) * gain / (gain - loss))
        return 0.0

    def efficiency(self, plan: str, ranks: int, rate_bytes_per_s: float) -> float | None:
        """Return the throughput over that of as many ranks without communication."""
        step_s = self.step_s(ranks, rate_bytes_per_s, plan)
        return None if step_s is None else self.workload.compute_s / step_s

    def train_hours(self, plan: str, ranks: int, rate_bytes_per_s: float) -> float | None:
        """Return the time to see all samples, with as many steps as the baseline."""
        step_s, samples = self.step_s(ranks, rate_bytes_per_s, plan), self.result.samples
        if step_s is None or samples is None:
            return None
        return samples / (self.workload.batch_size * ranks) * step_s / _S_PER_HOUR

    def euros(self, plan: str, ranks: int, rate_bytes_per_s: float) -> float | None:
        """Return the price of that time."""
        hours = self.train_hours(plan, ranks, rate_bytes_per_s)
        price = self.result.euro_per_rank_hour
        return None if hours is None or price is None else hours * ranks * price


def slices(result: SweepResult) -> list[Slice]:
    """Return a slice for each workload and engine."""
    points = result.by_key()
    return [
        Slice(result, workload, engine, points)
        for workload in result.workloads
        for engine in result.grid.engines
    ]


def share_won(part: Slice) -> dict[str, float]:
    """Return the share of cells of the map that each plan wins."""
    grid = part.result.grid
    won = [part.winner(n, rate) for n in grid.ranks for rate in grid.rates_bytes_per_s]
    known = [plan for plan in won if plan is not None]
    return {plan: known.count(plan) / len(known) for plan in grid.plans} if known else {}
