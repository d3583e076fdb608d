"""Whole layers: against brute force, the continuous bound, and reliefs from stalls."""

from __future__ import annotations

import itertools
import math
import random
import sys
from itertools import accumulate

import pytest

from gradwire.errors import SpecError
from gradwire.planner.bits import Allocation, Demand, Option, hull, solve
from gradwire.planner.greedy import excess
from gradwire.planner.water import Curve, continuous

LEVELS = (2, 3, 4, 5, 6, 8, 16)


def layer(numel, error, levels=LEVELS, reliefs=()):
    options = tuple(Option(b, numel * b // 8 + numel // 64, error * 4.0**-b) for b in levels)
    return Demand(options, tuple(reliefs))


def random_layers(rng, count, levels=LEVELS):
    sizes = [rng.choice([256, 1000, 4096, 30_000]) for _ in range(count)]
    return [layer(n, n * 10 ** rng.uniform(-3, 3), levels) for n in sizes]


def random_budgets(rng, demands):
    floors = accumulate(d.options[0].cost for d in demands)
    dearest = accumulate(d.options[-1].cost for d in demands)
    return [int(f + rng.random() ** 2 * (m - f)) for f, m in zip(floors, dearest, strict=True)]


@pytest.mark.parametrize("seed", range(3))
def test_whole_layers_are_near_brute_force(seed):
    rng, gaps = random.Random(seed), []
    for _ in range(250):
        demands = random_layers(rng, rng.randint(1, 4), (2, 3, 4, 8))
        budgets = random_budgets(rng, demands)
        found = solve(demands, budgets)
        assert excess((o.cost for o in found.options), budgets) <= found.excess == 0
        best = min(
            sum(o.error for o in options)
            for options in itertools.product(*(d.options for d in demands))
            if excess((o.cost for o in options), budgets) <= 0
        )
        gaps.append(found.error / best)
    gaps.sort()
    assert gaps[0] > 1 - 1e-9
    assert gaps[len(gaps) // 2] == pytest.approx(1)
    assert sum(gaps) / len(gaps) < 1.25  # few layers round worst


def test_whole_layers_are_near_the_continuous_bound_where_there_are_many():
    rng = random.Random(3)
    levels = tuple(range(2, 17))
    for _ in range(20):
        demands = random_layers(rng, 60, levels)
        budgets = random_budgets(rng, demands)
        curves = [
            Curve(
                (d.options[-1].cost - d.options[0].cost) / 14,
                d.options[0].error * 16,
                2,
                16,
            )
            for d in demands
        ]
        bases = accumulate(
            d.options[0].cost - 2 * c.size for d, c in zip(demands, curves, strict=True)
        )
        free = [b - base for b, base in zip(budgets, bases, strict=True)]
        bits = continuous(curves, free)
        bound = sum(c.error * 4**-b for c, b in zip(curves, bits, strict=True))
        found = solve(demands, budgets).error
        assert bound * (1 - 1e-3) <= found <= 1.7 * bound  # half a bit a layer would be 2


def test_more_budget_never_gives_more_error():
    rng = random.Random(4)
    demands = random_layers(rng, 30)
    budgets = random_budgets(rng, demands)
    errors = [
        solve(demands, [b + more for b in budgets]).error for more in range(0, 400_000, 20_000)
    ]
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(errors))
    assert errors[0] > 10 * errors[-1]


def test_stall_is_the_least_that_makes_the_floor_fit():
    demands = [layer(1000, 1.0), layer(8000, 1.0)]
    floors = [d.options[0].cost for d in demands]
    budgets = [floors[0] - 40, sum(floors) + 10]
    found = solve(demands, budgets, price=0)
    assert found.excess == 40
    assert [o.bits for o in found.options] == [2, 2]
    assert excess((o.cost for o in found.options), budgets) == 40


def test_budgets_of_another_length_are_refused():
    with pytest.raises(SpecError, match="one for each of 2 layers"):
        solve([layer(256, 1.0)] * 2, [5])


def test_hull_keeps_what_nothing_beats():
    options = [
        Option(b, c, e) for b, c, e in ((1, 10, 8.0), (2, 20, 7.9), (3, 30, 1), (4, 40, 1.5))
    ]
    assert [o.bits for o in hull(options)] == [1, 3]


# Reliefs


EMBEDDING = layer(
    100_000,
    1e6,
    reliefs=(
        Option(None, 4000, 9e5, "sparse"),
        Option(1, 12_500, 4e5),
    ),
)


@pytest.mark.parametrize(
    ("room", "price", "names"),
    [
        (30_000, 1e9, ["bits", 2]),  # the floor fits
        (14_000, 1e9, ["bits", 1]),  # fewer bits are enough, and the cheapest error
        (5_000, 1e9, ["sparse", None]),  # nothing else fits
        (14_000, 1e-3, ["bits", 2]),  # a stall costs less than any relief
    ],
)
def test_layer_that_forces_a_stall_takes_the_relief_that_costs_least(room, price, names):
    rest = layer(50_000, 1e3)
    found = solve([EMBEDDING, rest], [room, 10**9], price)
    assert [found.options[0].name, found.options[0].bits] == names
    assert found.options[1].bits == 16
    assert found.excess == max(0, found.options[0].cost - room)


def test_relief_that_beats_the_floor_is_taken_where_the_floor_does_not_fit():
    better = Option(1, 12_500, 0.5 * layer(100_000, 1e6).options[0].error)
    front = layer(100_000, 1e6, reliefs=(better,))
    assert solve([front], [14_000]).options[0].bits == 1
    assert solve([front], [front.options[0].cost]).options[0].bits == 2


def test_relief_that_lowers_an_error_above_its_bound_is_taken():
    better = Option(1, 12_500, 1.0)
    front = layer(100_000, 1e6, reliefs=(better,))
    assert solve([front], [14_000], most_error=10.0).options[0].bits == 1


def test_relief_is_given_to_the_layers_inside_the_tight_window_only():
    ways = (Option(1, 1250, 1.0),)
    small = layer(10_000, 1.0, reliefs=ways)
    found = solve([small, small, small], [10**6, 2 * small.options[0].cost - 100, 10**7])
    assert min(o.bits for o in found.options[:2]) == 1
    assert found.options[2].bits == 16
    assert found.excess == 0


def test_reliefs_are_near_the_best_choice():
    """Stall and error together, against all combinations of floors and reliefs."""
    rng, ratios = random.Random(8), []
    for _ in range(300):
        demands = [
            layer(
                n,
                error,
                (3,),
                [
                    Option(1, n // 8, error * rng.uniform(0.02, 0.3)),
                    Option(None, n // 50, error * rng.uniform(0.3, 1)),
                ],
            )
            for n, error in ((rng.choice([1000, 9000]), rng.uniform(0.1, 10)) for _ in range(4))
        ]
        floors = list(accumulate(d.options[0].cost for d in demands))
        budgets = [int(f * rng.uniform(0.2, 1.1)) for f in floors]
        price = 10 ** rng.uniform(-6, -2)

        def total(options, budgets=budgets, price=price):
            stall = max(0, excess((o.cost for o in options), budgets))
            return sum(o.error for o in options) + price * stall

        ways = [(*d.options, *d.reliefs) for d in demands]
        best = min(map(total, itertools.product(*ways)))
        ratios.append(total(solve(demands, budgets, price).options) / best)
    assert min(ratios) > 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.1
    assert sorted(ratios)[280] < 1.6


# Cost


def calls_of(function):
    """Count the calls and lines of Python that a function takes."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "line")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def test_solving_costs_little_more_than_in_proportion_to_the_layers():
    rng, counts = random.Random(7), {}
    for count in (250, 1000):
        demands = random_layers(rng, count)
        budgets = [
            int(x) for x in accumulate(d.options[2].cost * rng.uniform(0.8, 1.2) for d in demands)
        ]
        counts[count] = calls_of(lambda d=demands, b=budgets: solve(d, b)) / count
    assert counts[1000] < 1.5 * counts[250]
    assert counts[1000] < 250  # of Python's lines a layer: 10 ms for 1,000 at 40 ns


def test_result_is_the_same_every_time():
    rng = random.Random(9)
    demands = random_layers(rng, 50)
    budgets = random_budgets(rng, demands)
    assert solve(demands, budgets) == solve(demands, budgets)
    assert isinstance(solve(demands, budgets), Allocation)
    assert math.isfinite(solve(demands, budgets).error)


def test_weights_are_factors_on_errors():
    rng = random.Random(11)
    for _ in range(100):
        demands = random_layers(rng, 12)
        weights = [10 ** rng.uniform(-2, 2) for _ in demands]
        weighted = [
            Demand(tuple(o._replace(error=o.error * w) for o in d.options))
            for d, w in zip(demands, weights, strict=True)
        ]
        budgets = random_budgets(rng, demands)
        one, other = solve(weighted, budgets), solve(demands, budgets, weights=weights)
        assert [o.bits for o in one.options] == [o.bits for o in other.options]
        assert one.error == pytest.approx(other.error)


def test_limit_of_the_error_that_keeps_layers_from_fitting_ends_in_a_stall():
    for seed in range(200):
        rng = random.Random(seed)
        layers = [
            Demand(
                (Option(2, rng.randint(10, 30), 2.0),),
                (Option(1, rng.randint(2, 9), rng.uniform(3.0, 9.0)),),
            )
            for _ in range(6)
        ]
        budgets = sorted(rng.randint(-20, 90) for _ in range(6))
        found = solve(layers, budgets, 10.0, rng.uniform(12.0, 25.0))
        costs = [o.cost for o in found.options]
        assert excess(costs, [b + found.excess for b in budgets]) <= 0
