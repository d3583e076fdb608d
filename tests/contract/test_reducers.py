"""The laws of reducers: agreement, conservation, exactness, bytes, and what follows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from contract.exchange import (
    SHAPES,
    SPECS,
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
from gradwire.codecs.base import CODECS
from gradwire.reduce.base import REDUCERS
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
from strategies import (
    SEEDS,
    WORLD_SIZES,
    entries,
    normal,
    reducer_specs,
)

few = settings(max_examples=4)


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


def is_one_node(spec, world_size):
    """Whether all ranks share a node, and nothing is encoded."""
    return getattr(spec, "ranks_per_node", 0) >= world_size


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
    is_lossless = "float32" in repr(getattr(spec, "inner", spec)) or is_one_node(spec, 2)
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


# Keys


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
