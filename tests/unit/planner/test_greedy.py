"""Whole bits of equal chunks against brute force; prefix sums against a simulation."""

from __future__ import annotations

import itertools
import random
import sys
from itertools import accumulate

import pytest

from gradwire.errors import SpecError
from gradwire.planner.greedy import chunks, excess, spend
from gradwire.planner.water import Curve


def best_bits(curves, budgets):
    ranges = [range(int(c.floor), int(c.cap) + 1) for c in curves]
    return min(
        sum(c.error * 4.0**-b for c, b in zip(curves, bits, strict=True))
        for bits in itertools.product(*ranges)
        if excess(bits, budgets) <= 0
    )


@pytest.mark.parametrize("seed", range(3))
def test_chunks_match_brute_force(seed):
    rng = random.Random(seed)
    for _ in range(500):
        count = rng.randint(1, 4)
        curves = [Curve(1, 10 ** rng.uniform(-3, 3), rng.randint(0, 1), 3) for _ in range(count)]
        floors = accumulate(int(c.floor) for c in curves)
        budgets = [f + rng.randint(0, 3) for f in floors]
        bits = chunks(curves, budgets)
        assert excess(bits, budgets) <= 0
        found = sum(c.error * 4.0**-b for c, b in zip(curves, bits, strict=True))
        assert found == pytest.approx(best_bits(curves, budgets), rel=1e-12)


def test_chunks_refuse_floors_that_do_not_fit():
    with pytest.raises(SpecError, match=r"enough for floors of \[2, 2\] bits"):
        chunks([Curve(1, 1.0, 2, 8)] * 2, [4, 3])


def earliest_deadline_first(sizes, ready, due):
    """Run transfers tick by tick, the most urgent first; say whether all are in time."""
    left, now = list(sizes), 0
    while any(left):
        if any(n and due[i] <= now for i, n in enumerate(left)):
            return False
        waiting = [i for i, n in enumerate(left) if n and ready[i] <= now]
        if waiting:
            left[min(waiting, key=lambda i: due[i])] -= 1
        now += 1
    return True


def test_prefix_budgets_are_exactly_what_fits_on_a_link():
    rng, counts = random.Random(0), [0, 0]
    for _ in range(4000):
        layers = rng.randint(1, 5)
        backward = [rng.randint(0, 4) for _ in range(layers)]
        forward = [rng.randint(0, 4) for _ in range(layers)]
        ready = [sum(backward[i:]) for i in range(layers)]
        due = [sum(backward) + rng.choice([0, 2]) + sum(forward[:i]) for i in range(layers)]
        due = [max(due[: i + 1]) for i in range(layers)]
        sizes = [rng.randint(0, 4) for _ in range(layers)]
        fits = excess(sizes, [d - r for d, r in zip(due, ready, strict=True)]) <= 0
        assert fits == earliest_deadline_first(sizes, ready, due)
        counts[fits] += 1
    assert min(counts) > 500


def test_steps_cost_the_logarithm_of_the_layers():
    """Operations on the tree of rooms, not seconds, so that the machine does not matter."""
    rng, per_layer = random.Random(1), {}
    for layers in (256, 1024, 4096):
        calls = 0

        def count(frame, event, _argument):
            nonlocal calls
            calls += event == "call" and frame.f_code.co_name == "_join"

        slopes = [[-rng.uniform(1, 9) * 4.0**-b for b in range(7)] for _ in range(layers)]
        costs = [range(8)] * layers
        budgets = list(accumulate([3] * layers))
        sys.setprofile(count)
        try:
            spend([0] * layers, costs, slopes, budgets)
        finally:
            sys.setprofile(None)
        per_layer[layers] = calls / layers
    # Three steps a layer, each the depth of the tree: 8, 10 and 12.
    assert per_layer[1024] / per_layer[256] < 1.4
    assert per_layer[4096] / per_layer[256] < 1.7
