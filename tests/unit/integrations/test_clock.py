"""What the hook's times amount to."""

import pytest

from gradwire.engine.stats import BucketStats, StepStats
from gradwire.integrations.clock import Seen, workload_of
from gradwire.workload import parameter

A, B, C = (parameter(n, (100, 100)) for n in "abc")
NAMED = {p.name: p for p in (A, B, C)}


def _seen(stats=None):
    ready = [(("c", "b"), 0.5), (("a",), 0.7)]
    return Seen(0.0, 0.1, 0.3, ready, stats)


def test_buckets_become_layers_in_the_order_of_forward():
    work = workload_of([_seen()] * 3, 1.0, NAMED, 1e12)
    assert [layer.name for layer in work.layers] == ["a", "b", "c"]
    assert work.forward_s == pytest.approx(0.2)
    assert work.backward_s == pytest.approx(0.4)
    assert work.layers[2].backward_s == pytest.approx(0.1)  # half of its bucket
    assert work.compute_s == pytest.approx(0.8 + 0.2)  # the rest is the optimiser's
    assert [p.name for b in work.buckets(80_000) for p in b.parameters] == ["c", "b", "a"]


def test_what_was_exposed_is_no_computation():
    buckets = tuple(
        BucketStats(i, 1, 8, 8, 8, encode_s=0.05, exchange_s=0.1, decode_s=0.05, exposed_s=e)
        for i, e in ((0, 0.0), (1, 0.2))
    )
    stats = StepStats(0, buckets, exposed_s=0.2, wire_s=0.1, is_finite=True)
    work = workload_of([_seen(stats)], 1.0, NAMED, 1e12)
    assert work.backward_s == pytest.approx(0.4)
    assert work.optimiser_s == pytest.approx(1.0 - 0.2 - 0.4 - 0.2)


def test_copies_into_buckets_are_no_computation():
    work = workload_of([_seen()], 1.0, NAMED, 1.6e6)
    assert work.layers[2].backward_s == pytest.approx((0.2 - 0.1) / 2)


def test_steps_with_other_buckets_do_not_count():
    rebuilt = Seen(0.0, 0.0, 0.0, [(("c", "b", "a"), 9.0)])
    work = workload_of([rebuilt, _seen()], 1.0, NAMED, 1e12)
    assert work.backward_s == pytest.approx(0.4)
