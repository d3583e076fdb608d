"""Faults that users of gradient compression meet, by number, on every reducer."""

from __future__ import annotations

import math

import pytest
import torch

from contract.exchange import (
    SHAPES,
    SPECS,
    WITH_FEEDBACK,
    Layout,
    alike,
    assert_agreement,
    assert_conservation,
    each_feedback,
    each_spec,
    each_world,
    mean,
    noise,
    reduce_steps,
    same_bits,
)
from gradwire.errors import SpecError
from gradwire.key import Key
from gradwire.reduce.base import State, build
from gradwire.spec import (
    AllReduce,
    Broadcast,
    LowRank,
    Quantize,
    Sign,
    Sparse,
    TwoPhase,
)
from strategies import (
    normal,
)

ONE_NODE = SPECS["int4@hierarchical:4"]
"""With up to four ranks it encodes nothing."""

OWING = {name: spec for name, spec in WITH_FEEDBACK.items() if spec is not ONE_NODE}
each_owing = pytest.mark.parametrize("spec", OWING.values(), ids=OWING)


@each_spec
@each_world
def test_a1_the_result_is_a_mean_and_not_a_sum(spec, world_size):
    layout = Layout.of([(16, 32)])
    gradients = [[torch.full((512,), rank + 1.0)] * 20 for rank in range(world_size)]
    traces = reduce_steps(spec, layout, gradients, world_size)
    expected = (1 + world_size) / 2
    if spec == AllReduce("float32"):
        assert all(torch.equal(out, torch.full((512,), expected)) for out in traces[0].outs)
    waiting = mean([trace.residuals[-1] for trace in traces]) / 20
    average = (mean(traces[0].outs) + waiting).mean()
    assert abs(average - expected) < 0.02 * expected


@each_spec
def test_b2_zeros_stay_zeros(spec):
    layout = Layout.of(SHAPES)
    zeros = torch.zeros(layout.residual_numel)
    for trace in reduce_steps(spec, layout, alike(zeros, 3, steps=2), 3):
        assert all(torch.equal(out, zeros) for out in trace.outs)
        assert torch.equal(trace.residuals[-1], zeros)


@each_feedback
@pytest.mark.parametrize("scale", [1e-40, 3e-38])
def test_b4_scales_that_underflow_lose_nothing(spec, scale):
    layout = Layout.of([(8, 8)])
    x = torch.linspace(-1, 1, 64) * scale
    traces = reduce_steps(spec, layout, alike(x, 2, steps=6), 2)
    assert all(out.isfinite().all() for out in traces[0].outs)
    results = sum(out.double() for out in traces[0].outs)
    missing = results + mean([trace.residuals[-1] for trace in traces]) - 6 * x.double()
    assert missing.abs().max() <= 6 * 2.0**-149 * 8 + 2.0**-20 * scale


def test_b5_sign_of_zero_averages_to_zero_and_padding_is_not_read():
    g = torch.zeros(13)
    g[4] = 1.0
    traces = reduce_steps(TwoPhase(Sign()), Layout.of([(13,)]), alike(g, 2, steps=200), 2)
    average = mean(traces[0].outs)
    zeros = torch.arange(13) != 4
    # What is missing from the average is the residual, spread over the steps.
    bound = max(float(r.abs().max()) for t in traces for r in t.residuals) / 200 * (1 + 1e-5)
    assert average[zeros].abs().max() <= bound < 0.05
    assert abs(average[4] - 1) <= bound


def test_c2_start_factors_agree_between_ranks_and_differ_otherwise():
    layout = Layout.of([(30, 20), (30, 20)])
    reducer = build(LowRank(2, warm_start=False))
    first, second = layout.slots

    def start(slot, step, rank, seed=7):
        state = State(None, {})
        key = Key(seed, step, rank)
        return reducer._start(slot, state, key, torch.device("cpu"))

    assert torch.equal(start(first, 3, rank=0), start(first, 3, rank=1))
    assert not torch.equal(start(first, 3, rank=0), start(second, 3, rank=0))
    assert not torch.equal(start(first, 3, rank=0), start(first, 4, rank=0))
    assert not torch.equal(start(first, 3, rank=0), start(first, 3, rank=0, seed=8))


def test_c2_start_factors_leave_the_users_random_state_alone():
    before = torch.random.get_rng_state()
    reduce_steps(LowRank(2), Layout.of([(30, 20)]), noise(600, 2, 1), 2)
    assert torch.equal(torch.random.get_rng_state(), before)


@each_spec
def test_c4_a_run_repeats_with_its_seed(spec):
    layout = Layout.of(SHAPES)
    gradients = noise(layout.residual_numel, 2, 2)
    first, again, other = (
        reduce_steps(spec, layout, gradients, 2, seed=seed)[0].outs[-1] for seed in (5, 5, 6)
    )
    assert same_bits(first, again)
    travels_as = f"{spec} {getattr(spec, 'mean_codec', None)}"
    words = ("stochastic", "random", "LowRank", "BitPlanes", "SharedScale")
    draws = any(word in travels_as for word in words) and spec is not ONE_NODE
    assert same_bits(first, other) is not draws


@each_owing
def test_d3_feedback_is_used(spec):
    layout, x = Layout.of([(20, 30)]), normal(600)
    traces = reduce_steps(spec, layout, alike(x, 2, steps=60), 2)
    assert traces[0].residuals[1].any()
    errors = [float((out - x).norm()) for out in traces[0].outs]
    assert float((mean(traces[0].outs) - x).norm()) < min(errors)


@pytest.mark.parametrize("reducer", [TwoPhase, Broadcast])
@pytest.mark.parametrize("codec", [Quantize(1), Quantize(2), Quantize(1, rounding="nearest")])
def test_feedback_is_refused_where_the_residual_would_grow_without_end(reducer, codec):
    with pytest.raises(SpecError, match="loses too much: use more bits, Sign, feedback=False"):
        reducer(codec)
    assert not reducer(codec, feedback=False).feedback


@each_owing
def test_residual_stays_bounded(spec):
    world_size, steps = 3, 60
    layout = Layout.of([(16, 32)])
    gradients = noise(512, world_size, steps)
    for rank in gradients:
        for values in rank:
            values.add_(normal(512, seed=1000))
    traces = reduce_steps(spec, layout, gradients, world_size)
    norms = [float(sum(t.residuals[s].norm() for t in traces)) for s in range(steps + 1)]
    assert max(norms[steps // 2 :]) < 2 * max(norms[: steps // 2])


def test_h1_ranks_that_select_unlike_numbers_of_values_are_averaged():
    few_values, many = torch.zeros(20_000), normal(20_000)
    few_values[[3, 500, 19_999]] = torch.tensor([5.0, -7.0, 11.0])
    traces = reduce_steps(
        Broadcast(Sparse(0.05, "threshold")), Layout.of([(20_000,)]), [[few_values], [many]], 2
    )
    assert_agreement(traces)
    assert_conservation(traces)
    assert not traces[0].residuals[1].any()
    sent = traces[1].sent(0)
    assert 900 < (sent != 0).sum() <= 1258
    assert torch.allclose(traces[0].outs[0].double(), (few_values + sent) / 2)


# Values that are not finite


@each_spec
@each_world
@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_value_that_is_not_finite_reaches_all_ranks_and_stays_for_one_step(
    spec, world_size, wild
):
    layout, place = Layout.of([(40, 50), (300,)]), 777
    gradients = noise(2300, world_size, 4)
    gradients[-1][1] = gradients[-1][1].clone()
    gradients[-1][1][place] = wild
    traces = reduce_steps(spec, layout, gradients, world_size)
    assert_agreement(traces)
    assert not traces[0].outs[1][place].isfinite()
    assert traces[0].outs[1][2000:].isfinite().all()
    for trace in traces:
        assert all(r.isfinite().all() for r in trace.residuals)
        assert all(f.isfinite().all() for kept in trace.factors for f in kept.values())
        assert all(trace.outs[step].isfinite().all() for step in (0, 2, 3))
    assert traces[-1].residuals[2][place] == traces[-1].residuals[1][place]
    if spec.feedback:
        for trace in traces:  # what came before is settled; the law holds from here on
            del trace.inputs[:2], trace.outs[:2]
            trace.residuals = trace.residuals[2:]
        for step in range(2):
            sent = mean([trace.sent(step) for trace in traces])
            assert torch.allclose(sent, traces[0].outs[step].double(), atol=1e-5)
