"""Continuous water-filling against a plain solution by bisection."""

from __future__ import annotations

import math
import random
from itertools import accumulate, pairwise

import pytest

from gradwire.planner.water import Curve, continuous, tighten


def by_bisection(curves, budgets):
    """Fix the prefix that asks for the highest level, then go on behind it: O(L**2)."""
    rooms = tighten(budgets)
    heights = [0.5 * math.log2(c.error / c.size) for c in curves]
    bits, used = [], 0.0

    def at(i, level):
        return min(max(heights[i] - level, curves[i].floor), curves[i].cap)

    while (first := len(bits)) < len(curves):
        best = (-math.inf, first)
        for last in range(first, len(curves)):
            low, high = -100.0, 100.0
            for _ in range(100):
                level = (low + high) / 2
                needed = sum(curves[i].size * at(i, level) for i in range(first, last + 1))
                low, high = (level, high) if needed > rooms[last] - used else (low, level)
            if high >= best[0] - 1e-12:
                best = (high, last)
        for i in range(first, best[1] + 1):
            bits.append(at(i, best[0]))
            used += curves[i].size * bits[-1]
    return bits


def error(curves, bits):
    return sum(c.error * 4**-b for c, b in zip(curves, bits, strict=True))


def problem(rng, layers, *, is_clipped=True):
    curves = [
        Curve(
            rng.uniform(0.5, 5),
            rng.uniform(0.01, 100) * 10 ** rng.uniform(-3, 3),
            rng.choice([0, 1, 2]) if is_clipped else -50,
            rng.choice([2, 4, 6, 8, 16]) if is_clipped else 50,
        )
        for _ in range(layers)
    ]
    sizes = list(accumulate(c.size for c in curves))
    floors = list(accumulate(c.size * max(c.floor, 0) for c in curves))
    budgets = [f + rng.uniform(0, 8) * rng.random() * s for f, s in zip(floors, sizes, strict=True)]
    # No prefix may be unable to hold its floors once budgets are tightened.
    return curves, [max(b, f) for b, f in zip(budgets, floors, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_continuous_optimum_matches_bisection(seed):
    rng = random.Random(seed)
    solved = 0
    for _ in range(150):
        curves, budgets = problem(rng, rng.randint(1, 7), is_clipped=seed != 3)
        floors = accumulate(c.size * max(c.floor, 0) for c in curves)
        if any(b < f - 1e-9 for b, f in zip(tighten(budgets), floors, strict=True)):
            continue
        bits = continuous(curves, budgets)
        used = accumulate(c.size * b for c, b in zip(curves, bits, strict=True))
        assert all(u <= b + 1e-6 for u, b in zip(used, budgets, strict=True))
        expected = error(curves, by_bisection(curves, budgets))
        assert error(curves, bits) == pytest.approx(expected, rel=1e-9)
        solved += 1
    assert solved > 100


def test_levels_of_water_never_rise_towards_the_back():
    rng = random.Random(5)
    curves, budgets = problem(rng, 200)
    budgets = tighten([b + 300 for b in budgets])
    bits = continuous(curves, budgets)
    free = [
        0.5 * math.log2(c.error / c.size) - b
        for c, b in zip(curves, bits, strict=True)
        if c.floor < b < c.cap
    ]
    assert len(free) > 20
    assert all(a >= b - 1e-9 for a, b in pairwise(free))


def test_layers_without_error_stay_at_their_floor():
    curves = [Curve(1.0, 0.0, 1, 8), Curve(1.0, 1.0, 1, 8)]
    assert continuous(curves, [9, 9]) == [1, 8]


def test_budgets_beyond_all_caps_leave_caps():
    assert continuous([Curve(2.0, 1.0, 1, 8)] * 3, [1e9] * 3) == [8, 8, 8]


def test_no_layers_need_no_bits():
    assert continuous([], []) == []
