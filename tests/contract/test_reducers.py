"""The laws of reducers: agreement, conservation, exactness, bytes, and what follows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.exchange import Layout, mean, reduce_steps
from gradwire.codecs.base import CODECS
from gradwire.errors import SpecError
from gradwire.key import Key
from gradwire.reduce.base import REDUCERS, State, build
from gradwire.spec import (
    AllReduce,
    Broadcast,
    Float,
    LowRank,
    Quantize,
    Sign,
    Sparse,
    TwoPhase,
    parse_reducer,
)
from strategies import SEEDS, WORLD_SIZES, entries, normal, reducer_specs

NAMES = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4", "int3", "int2", "int1", "sign"),
    *("topk:0.1", "threshold:0.1", "random_k:0.1", "low_rank", "low_rank:4"),
    *("none@broadcast", "bf16@two_phase", "fp8@broadcast", "int4@broadcast", "sign@broadcast"),
)
SPECS = {name: parse_reducer(name) for name in NAMES} | {
    "int4 nearest": TwoPhase(Quantize(4, rounding="nearest")),
    "int4 long blocks": TwoPhase(Quantize(4, block_size=1024)),
    "int4 without feedback": TwoPhase(Quantize(4), feedback=False),
    "int4@broadcast without feedback": Broadcast(Quantize(4), feedback=False),
    "low_rank without feedback": LowRank(2, feedback=False),
    "low_rank without warm start": LowRank(2, warm_start=False),
}
WITH_FEEDBACK = {name: spec for name, spec in SPECS.items() if spec.feedback}
# Scalar, vector, less than a block, matrices, a convolution.
SHAPES = [(300,), (), (40, 50), (24, 3, 3, 3), (1, 513)]

each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
each_feedback = pytest.mark.parametrize("spec", WITH_FEEDBACK.values(), ids=WITH_FEEDBACK)
each_world = pytest.mark.parametrize("world_size", [2, 3])
few = settings(max_examples=4)


def noise(numel, world_size, steps, seed=0, scale=1.0):
    """Return gradients by rank and step, different everywhere."""
    return [
        [normal(numel, seed=seed + 97 * rank + step, scale=scale) for step in range(steps)]
        for rank in range(world_size)
    ]


def alike(values, world_size, steps=1):
    return [[values.clone() for _ in range(steps)] for _ in range(world_size)]


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_agreement(traces):
    for trace in traces[1:]:
        for a, b in zip(traces[0].outs, trace.outs, strict=True):
            assert same_bits(a, b)
        for a, b in zip(traces[0].factors, trace.factors, strict=True):
            assert a.keys() == b.keys()
            assert all(same_bits(a[name], b[name]) for name in a)


def assert_conservation(traces, *, is_bfloat16=False):
    """The mean of what ranks sent is the result, at every step and in all."""
    steps = len(traces[0].outs)
    # Roundings of float32, or of bfloat16, of the largest numbers that took part.
    unit = 2.0**-8 if is_bfloat16 else 2.0**-21
    size = max(float(t.abs().max()) for r in traces for t in (*r.inputs, *r.residuals))
    for step in range(steps):
        sent = mean([trace.sent(step) for trace in traces])
        assert (sent - traces[0].outs[step].double()).abs().max() <= unit * size, step
    total = sum(mean([trace.inputs[step] for trace in traces]) for step in range(steps))
    results = sum(out.double() for out in traces[0].outs)
    owed = mean([trace.residuals[-1] for trace in traces])
    assert (results + owed - total).abs().max() <= unit * size * steps


def test_every_registered_reducer_is_tested():
    assert {spec.id for spec in SPECS.values()} == set(REDUCERS)


# Agreement, conservation, bytes


@each_spec
@few
@given(entries(), WORLD_SIZES, SEEDS)
def test_laws_hold_for_any_parameters(spec, drawn, world_size, seed):
    layout = Layout.of([e.shape for e in drawn], gap=seed % 3)
    gradients = noise(layout.residual_numel, world_size, 2, seed)
    traces = reduce_steps(spec, layout, gradients, world_size, seed=seed)
    assert_agreement(traces)
    assert_bytes(spec, layout, traces, world_size)
    if spec.feedback or spec.id == "all_reduce":
        assert_conservation(traces, is_bfloat16=spec == AllReduce("bfloat16"))


@settings(max_examples=40)
@given(reducer_specs(), WORLD_SIZES, SEEDS)
def test_laws_hold_for_any_spec(spec, world_size, seed):
    layout = Layout.of([(30, 31), (5,)])
    gradients = noise(layout.residual_numel, world_size, 2, seed)
    traces = reduce_steps(spec, layout, gradients, world_size, seed=seed)
    assert_agreement(traces)
    assert_bytes(spec, layout, traces, world_size)
    if spec.feedback or spec.id == "all_reduce":
        assert_conservation(traces, is_bfloat16=spec == AllReduce("bfloat16"))


def assert_bytes(spec, layout, traces, world_size):
    for rank, trace in enumerate(traces):
        predicted = spec.transfers(layout.entries, world_size, rank)
        assert all(tuple(recorded) == predicted for recorded in trace.transfers)


@each_feedback
def test_d2_nothing_is_lost_over_many_steps(spec):
    layout = Layout.of(SHAPES)
    gradients = noise(layout.residual_numel, 3, 6)
    traces = reduce_steps(spec, layout, gradients, 3)
    assert_conservation(traces)


@each_spec
def test_reducer_without_feedback_leaves_the_residual_alone(spec):
    layout = Layout.of(SHAPES)
    (first, _) = reduce_steps(spec, layout, noise(layout.residual_numel, 2, 1), 2)
    is_lossless = "float32" in repr(spec)
    assert first.residuals[1].any() == (spec.feedback and not is_lossless)


@each_spec
def test_reducer_works_in_place(spec):
    layout = Layout.of(SHAPES, gap=5)
    gradients = noise(layout.residual_numel, 3, 2)
    apart = reduce_steps(spec, layout, gradients, 3)
    in_place = reduce_steps(spec, layout, gradients, 3, in_place=True)
    for a, b in zip(apart, in_place, strict=True):
        assert all(map(same_bits, a.outs, b.outs))
        assert all(map(same_bits, a.residuals, b.residuals))


@each_spec
def test_one_rank_loses_nothing(spec):
    layout = Layout.of(SHAPES, gap=1)
    (trace,) = reduce_steps(spec, layout, noise(layout.residual_numel, 1, 2), 1)
    assert all(map(same_bits, trace.outs, trace.inputs))
    assert not trace.residuals[-1].any()


@each_spec
def test_part_without_parameters_is_reduced_to_nothing(spec):
    layout = Layout.of([])
    traces = reduce_steps(spec, layout, noise(0, 2, 1), 2)
    assert all(trace.outs[0].numel() == 0 for trace in traces)


# Layout independence


@each_spec
def test_results_do_not_depend_on_the_layout(spec):
    order = [4, 2, 0, 3, 1]
    gradients = noise(sum(math.prod(shape) for shape in SHAPES), 3, 3)
    one = reduce_steps(spec, Layout.of(SHAPES), gradients, 3)
    several = reduce_steps(
        spec, Layout.of(SHAPES, order, gap=3), gradients, 3, parts=[[3, 0], [1], [2, 4]]
    )
    for a, b in zip(one, several, strict=True):
        assert all(map(same_bits, a.outs, b.outs))
        assert all(map(same_bits, a.residuals, b.residuals))


# Exactness


def levels(numel, peak, values):
    """Return values a block-scaled format can hold, with the peak in every block."""
    x = torch.tensor(values)[torch.randint(len(values), (numel,), generator=_generator())]
    x[::256] = peak
    return x


def _generator():
    return torch.Generator().manual_seed(0)


def k_sparse(numel, count):
    x = torch.zeros(numel)
    x[torch.randperm(numel, generator=_generator())[:count]] = 1.0
    return x


EXACT = {
    "none": (AllReduce("float32"), normal(1000)),
    "bfloat16 values": (AllReduce("bfloat16"), levels(1000, 8.0, [-3.0, 0.5, 5.0])),
    "bfloat16 codec": (TwoPhase(Float("bfloat16")), levels(1000, 1.5, [-3.0, 0.5, 1.25])),
    "float16": (TwoPhase(Float("float16")), levels(1000, 1000.0, [-3.0, 0.5, 17.0])),
    "e4m3": (TwoPhase(Float("float8_e4m3")), levels(1000, 448.0, [-240.0, 0.0, 0.5, 1.0])),
    "e5m2": (Broadcast(Float("float8_e5m2")), levels(1000, 57344.0, [-1.25, 0.0, 40.0])),
    "int8": (TwoPhase(Quantize(8)), levels(1000, 127.0, [-126.0, -1.0, 0.0, 64.0])),
    "int4": (TwoPhase(Quantize(4)), levels(1000, -7.0, [-6.0, -1.0, 0.0, 5.0])),
    "int3": (Broadcast(Quantize(3)), levels(1000, 3.0, [-2.0, -1.0, 0.0, 3.0])),
    "int2": (TwoPhase(Quantize(2, 256, "nearest")), levels(1000, 1.0, [-1.0, 0.0, 1.0])),
    "int1": (TwoPhase(Quantize(1), feedback=False), levels(1000, 0.5, [-0.5, 0.5])),
    "constant blocks": (TwoPhase(Sign(256)), levels(1000, 0.25, [-0.25, 0.25])),
    "k-sparse": (Broadcast(Sparse(0.05, "exact")), k_sparse(1000, 50) * normal(1000)),
    "k-sparse, threshold": (Broadcast(Sparse(0.05, "threshold")), k_sparse(1000, 50)),
    "all places": (Broadcast(Sparse(1.0, "random")), normal(1000)),
}


@pytest.mark.parametrize(("spec", "x"), EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_values_the_spec_can_hold_come_back_exactly(spec, x, world_size):
    layout = Layout.of([(x.numel(),)])
    for trace in reduce_steps(spec, layout, alike(x, world_size, steps=2), world_size):
        assert all(torch.equal(out, x) for out in trace.outs)
        assert not trace.residuals[-1].any()


@each_world
@pytest.mark.parametrize(("matrix_rank", "shape"), [(1, (40, 50)), (3, (50, 8)), (9, (6, 70))])
def test_matrices_of_low_rank_come_back_exactly(world_size, matrix_rank, shape):
    # Ranks share the column space, so that their mean has the same rank.
    inner = min(matrix_rank, *shape)
    left = normal(shape[0], inner, seed=1)
    gradients = [
        [(left @ normal(inner, shape[1], seed=10 * rank + step)).view(-1) for step in range(2)]
        for rank in range(world_size)
    ]
    traces = reduce_steps(LowRank(matrix_rank), Layout.of([shape]), gradients, world_size)
    for step in range(2):
        expected = mean([g[step] for g in gradients])
        assert torch.allclose(traces[0].outs[step].double(), expected, atol=1e-4)
        assert all(trace.residuals[step + 1].abs().max() < 1e-4 for trace in traces)


@each_world
def test_sparse_values_of_all_ranks_are_averaged_exactly(world_size):
    layout = Layout.of([(1000,)])
    gradients = [[k_sparse(1000, 50).roll(rank) * (rank + 1)] for rank in range(world_size)]
    traces = reduce_steps(Broadcast(Sparse(0.05)), layout, gradients, world_size)
    assert torch.allclose(traces[0].outs[0].double(), mean([g[0] for g in gradients]))


# Faults


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
        return reducer._start(slot, state, key, torch.device("cpu"))  # noqa: SLF001

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
    draws = any(word in travels_as for word in ("stochastic", "random", "LowRank"))
    assert same_bits(first, other) is not draws


@each_feedback
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


@each_feedback
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


# Keys and warm starts


@pytest.mark.parametrize("name", ["int4", "int4@broadcast", "int1"])
def test_no_key_is_used_twice(name, monkeypatch):
    used, codec = [], CODECS["quantize"]
    encode = codec.encode

    def noting(self, x, segments, key, residual=None, gain=0.0):
        used.extend((key.stream(), s.stream, s.start) for s in segments.items)
        return encode(self, x, segments, key, residual, gain)

    monkeypatch.setattr(codec, "encode", noting)
    layout = Layout.of(SHAPES)
    reduce_steps(parse_reducer(name), layout, noise(layout.residual_numel, 3, 3), 3)
    assert len(used) >= 3 * 3 * len(SHAPES)
    assert len(set(used)) == len(used)


def test_warm_start_survives_and_finds_the_largest_directions():
    u, _, v = torch.linalg.svd(normal(40, 30), full_matrices=False)
    matrix = (u * 0.8 ** torch.arange(30)) @ v
    best = torch.linalg.norm(0.8 ** torch.arange(2, 30).double())

    def errors(spec):
        traces = reduce_steps(spec, Layout.of([(40, 30)]), alike(matrix.view(-1), 2, 25), 2)
        assert len(traces[0].factors[-1]) == spec.warm_start
        return [float((out.view(40, 30) - matrix).norm() / best) for out in traces[0].outs]

    warm = errors(LowRank(2, feedback=False))
    cold = errors(LowRank(2, warm_start=False, feedback=False))
    assert warm[0] > 1.05
    assert warm[-1] < 1.005
    assert min(cold) > 1.01


def test_low_rank_recovers_after_a_step_without_gradient():
    x, layout = normal(1200), Layout.of([(40, 30)])
    gradients = [[torch.zeros(1200), torch.zeros(1200), x] for _ in range(2)]
    traces = reduce_steps(LowRank(2), layout, gradients, 2)
    assert traces[0].outs[2].norm() > 0.1 * x.norm()


def test_low_rank_does_not_overflow_between_finite_values():
    x, layout = normal(1200), Layout.of([(40, 30)])
    plain = reduce_steps(LowRank(2), layout, alike(x, 2, 3), 2)
    for scale in (2.0**100, 2.0**-100):
        traces = reduce_steps(LowRank(2), layout, alike(x * scale, 2, 3), 2)
        for a, b in zip(plain[0].outs, traces[0].outs, strict=True):
            assert torch.allclose(a, b / scale, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 4), (4, 1), (6,), (), (2, 3, 4)])
@given(rank=st.integers(1, 8))
@few
def test_low_rank_beyond_the_matrix_is_exact(shape, rank):
    numel = math.prod(shape)
    if rank < min(LowRank.matrix_shape(shape)):
        rank = 8
    gradients = noise(numel, 2, 2)
    traces = reduce_steps(LowRank(rank), Layout.of([shape]), gradients, 2)
    for step in range(2):
        expected = mean([g[step] for g in gradients])
        assert torch.allclose(traces[0].outs[step].double(), expected, atol=1e-5)
