"""What a level is said to lose and to cost is what it does."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs.base import Segments, build
from gradwire.control.levels import NORMAL_ERROR, Shares, bf16_bytes, codec, demand, share
from gradwire.key import Key
from gradwire.spec import LEVELS, Broadcast, Entry, TwoPhase, sent_bytes
from strategies import normal

SIZE = 256 * 1024


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("bits", LEVELS[:-1])
def test_factor_is_the_measured_error_over_a(bits, feedback):
    x, out, whole = normal(SIZE), torch.empty(SIZE), Segments.whole(SIZE)
    peaks = x.view(-1, 256).abs().amax(1)
    error = 2 / 3 * float((256 * peaks**2).sum())  # A, as LayerStats defines it
    assert error == pytest.approx(NORMAL_ERROR * float(x.square().sum()), rel=0.02)
    encoder = build(codec(bits, feedback=feedback))
    encoder.decode(encoder.encode(x, whole, Key(0, 0, 0))[None], whole, out)
    lost = float((out - x).square().sum())
    lost /= float(x.square().sum())
    assert lost == pytest.approx(share(bits, Shares(), feedback=feedback), rel=0.05)


@pytest.mark.parametrize("exchange", ["broadcast", "two_phase"])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_costs_are_the_bytes_of_the_spec(exchange, world_size):
    kind = {"broadcast": Broadcast, "two_phase": TwoPhase}[exchange]
    options = demand(5000, world_size, exchange, (3, 16), feedback=True, force=True).options
    for price in options:
        spec = kind(codec(price.bits, feedback=True))
        assert price.cost == sent_bytes(spec, [Entry(0, (5000,))], world_size)
    # A broadcast moves N - 1 payloads, two phases 2 (N - 1) / N.
    assert len(options) >= 5


def test_options_rise_in_cost_and_fall_in_error_with_less_and_less_gain():
    for world_size in (2, 4):
        chosen = demand(50_000, world_size, "two_phase", (1, 32), feedback=True, force=False)
        costs, slopes = chosen.costs, chosen.slopes
        assert list(costs) == sorted(set(costs))
        assert list(slopes) == sorted(slopes)
        assert slopes[-1] < 0


def test_broadcast_options_stay_below_bf16_unless_forced():
    for force, most in ((False, 5), (True, 8)):
        chosen = demand(100_000, 6, "broadcast", (3, 8), feedback=True, force=force)
        options = chosen.options
        assert options[-1].bits == most
        assert (options[-1].cost < bf16_bytes(100_000, 6)) is not force
