"""Bits: how precise each layer can be while its transfer stays hidden.

Layers come in order of use, front first. Layer `l` may travel from the moment
its gradient is ready until its next forward begins. These windows are nested,
the first layer's innermost, so with the front first on the link a choice is in
time exactly if, for every `k`, the costs of layers `0..k` sum to no more than
the budget of prefix `k`. Within those budgets the summed error is least.

Costs and budgets are in one unit, as a rule bytes on the wire.

Source:
    Derived in docs/explanation/aqgb.md. Nested resource allocation by
    decomposition: Vidal, Jaillet and Maculan (SIAM J. Optim. 26, 2016).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple

from gradwire.errors import SpecError
from gradwire.planner.greedy import Rooms, excess, spend
from gradwire.planner.water import tighten

_ROUNDS = 8
"""Halvings of the price before single steps are tried."""


class Option(NamedTuple):
    """One way to send a layer.

    Attributes:
        bits: Its level; None for a way out of another kind.
        cost: What it takes from the budgets; a whole number.
        error: Squared error it leaves.
        name: Which way: `"bits"` or `"sparse"`.
    """

    bits: int | None
    cost: int
    error: float
    name: str = "bits"


@dataclass(frozen=True, slots=True)
class Demand:
    """What can be chosen for one layer.

    Attributes:
        options: From the floor up, each dearer and better than the one before,
            with ever less gain for the cost; see `hull`.
        reliefs: Cheaper than the floor and worse: for layers that would stall.
        costs: Of the options.
        slopes: Error per cost that each step to the next option adds: negative
            and rising.
        falls: From the floor down: the way to go next, and the error it adds
            for the cost it saves.
    """

    options: tuple[Option, ...]
    reliefs: tuple[Option, ...] = ()
    costs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)
    falls: tuple[tuple[float, Option], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", tuple(o.cost for o in self.options))
        object.__setattr__(self, "slopes", tuple(_slope(*pair) for pair in pairwise(self.options)))
        # The floor comes first even where a relief is better in everything.
        ways = (self.options[0], *_below(self.options[0], hull(self.reliefs)))
        falls = tuple((-_slope(lower, upper), lower) for upper, lower in pairwise(ways))
        object.__setattr__(self, "falls", falls)


class Allocation(NamedTuple):
    """The choice for every layer.

    Attributes:
        options: One for each layer.
        excess: By how much every budget has to be raised for it to fit: the
            stall, in units of cost.
        error: Of all layers, each times its weight.
    """

    options: tuple[Option, ...]
    excess: int
    error: float


def _below(floor: Option, reliefs: Sequence[Option]) -> list[Option]:
    """Return the reliefs to go down to from a floor, each with more error for its savings."""
    ways = list(reversed(reliefs))
    while len(ways) > 1 and _slope(ways[1], floor) <= _slope(ways[1], ways[0]):
        ways.pop(0)  # a step right to the next one is cheaper
    return ways


def hull(options: Iterable[Option]) -> tuple[Option, ...]:
    """Drop options that others, or mixtures of two, beat in cost and error.

    Example:
        >>> options = Option(1, 10, 0.36), Option(2, 20, 0.65), Option(3, 30, 0.17)
        >>> [option.bits for option in hull(options)]
        [1, 3]
    """
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.cost, o.error)):
        if kept and option.error >= kept[-1].error:
            continue
        while len(kept) > 1 and _slope(kept[-1], option) <= _slope(kept[-2], kept[-1]):
            kept.pop()
        kept.append(option)
    return tuple(kept)


def _slope(first: Option, second: Option) -> float:
    return (second.error - first.error) / (second.cost - first.cost)


def solve(
    demands: Sequence[Demand],
    budgets: Sequence[int],
    price: float = math.inf,
    most_error: float = math.inf,
    weights: Sequence[float] | None = None,
) -> Allocation:
    """Choose an option for each layer: least error, in time, at the least stall.

    Where the floors do not fit, layers that force a stall take a relief if
    its error is below `price` times the cost it saves; what is left stalls.

    Args:
        demands: The layers, front first.
        budgets: Of each prefix; may be negative.
        price: Error worth one unit of stall; infinite to stall only where no
            relief helps, 0 for floors whatever they cost.
        most_error: Error of all layers together, others at their floors, that
            no relief may lead beyond.
        weights: What each layer's errors are multiplied by, above 0; None for 1.

    Raises:
        SpecError: Not one budget for each layer.

    Example:
        >>> layer = Demand((Option(2, 20, 6.0), Option(3, 30, 1.5), Option(4, 40, 0.4)))
        >>> [option.bits for option in solve([layer, layer], [25, 70]).options]
        [2, 4]
    """
    if len(budgets) != len(demands):
        raise SpecError("budgets", len(budgets), f"one for each of {len(demands)} layers")
    scales = weights or [1.0] * len(demands)
    chosen = [demand.options[0] for demand in demands]
    if price > 0 and excess([o.cost for o in chosen], budgets) > 0:
        chosen = _relieve(demands, scales, budgets, (price, most_error))
    raised = max(0, math.ceil(excess([o.cost for o in chosen], budgets)))
    rooms = tighten([budget + raised for budget in budgets])
    rows = [d if o is d.options[0] else Demand((o,)) for d, o in zip(demands, chosen, strict=True)]
    places = _start(rows, scales, rooms)
    spend(places, [row.costs for row in rows], [row.slopes for row in rows], rooms, scales)
    picked = tuple(row.options[place] for row, place in zip(rows, places, strict=True))
    return Allocation(picked, raised, sum(o.error * w for o, w in zip(picked, scales, strict=True)))


def _relieve(
    demands: Sequence[Demand],
    weights: Sequence[float],
    budgets: Sequence[float],
    limits: tuple[float, float],
) -> list[Option]:
    """Give reliefs that are worth it to layers that would stall."""
    chosen = _fit(demands, weights, budgets, limits)
    stall = max(0, excess([o.cost for o in chosen], budgets))
    if stall:  # with a stall, some reliefs were for nothing
        chosen = _fit(demands, weights, [budget + stall for budget in budgets], limits)
    rooms = Rooms([o.cost for o in chosen], [budget + stall for budget in budgets])
    relieved = [i for i, d in enumerate(demands) if chosen[i] is not d.options[0]]
    for i in sorted(relieved, key=lambda i: -chosen[i].error * weights[i]):
        now = chosen[i]  # it may have saved more than was needed
        room = now.cost + rooms.after(i)
        ways = [o for o in (demands[i].options[0], *demands[i].reliefs) if o.cost <= room]
        # None fits where the limit of the error kept the layers from fitting.
        best = min(ways, key=lambda o: o.error, default=now)
        if best.error < now.error:
            rooms.take(i, best.cost - now.cost)
            chosen[i] = best
    return chosen


def _fit(
    demands: Sequence[Demand],
    weights: Sequence[float],
    budgets: Sequence[float],
    limits: tuple[float, float],
) -> list[Option]:
    """Take the cheapest reliefs until each prefix fits, front first.

    A layer moves down its reliefs step by step, each the one with the least
    error for the cost it saves. `limits` are the most that saving one unit of
    cost may add, and the most error of all layers.
    """
    price, most_error = limits
    chosen = [demand.options[0] for demand in demands]
    steps = [0] * len(demands)
    heap: list[tuple[float, int]] = []
    used, error = 0, sum(o.error * w for o, w in zip(chosen, weights, strict=True))

    def offer(i: int) -> None:
        falls = demands[i].falls
        if steps[i] < len(falls) and falls[steps[i]][0] * weights[i] < price:
            heapq.heappush(heap, (falls[steps[i]][0] * weights[i], i))

    for i, budget in enumerate(budgets):
        used += chosen[i].cost
        offer(i)
        while used > budget and heap:
            _, taken = heapq.heappop(heap)
            option = demands[taken].falls[steps[taken]][1]
            added = (option.error - chosen[taken].error) * weights[taken]
            if added > 0 and error + added > most_error:
                continue
            used -= chosen[taken].cost - option.cost
            error += added
            chosen[taken] = option
            steps[taken] += 1
            offer(taken)
    return chosen


def _start(
    demands: Sequence[Demand], weights: Sequence[float], budgets: Sequence[float]
) -> list[int]:
    """Take all steps whose gain is so large that they fit for certain.

    The price of cost is halved into a narrow range for each part of the
    layers, as in `gradwire.planner.water`; at its upper end the steps fit.
    """
    places = [0] * len(demands)
    rows = [(d.slopes, d.costs, w) for d, w in zip(demands, weights, strict=True)]
    gains = [-slopes[i] * w for slopes, _, w in rows if slopes for i in (0, -1)]
    if not gains:
        return places
    parts = [(0, len(demands), math.log2(min(gains)), math.log2(max(gains)) + 1, 0, 0.0)]
    while parts:
        first, last, low, high, round_, used = parts.pop()
        if round_ == _ROUNDS or high <= low:
            price = -(2.0**high)
            places[first:last] = [bisect_left(s, price / w) for s, _, w in rows[first:last]]
            continue
        middle = (low + high) / 2
        price = -(2.0**middle)
        costs = [c[bisect_left(s, price / w)] for s, c, w in rows[first:last]]
        over = list(map(sub, accumulate(costs, initial=used), (used, *budgets[first:last])))
        cut = first + over.index(max(over))
        if cut > first:
            parts.append((first, cut, middle, high, round_ + 1, used))
        if cut < last:
            spent = budgets[cut - 1] if cut > first else used
            parts.append((cut, last, low, middle, round_ + 1, spent))
    return places
