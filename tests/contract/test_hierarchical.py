"""The laws of reducers on two levels: 4 and 8 ranks as 2 nodes, and as more."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from contract.exchange import (
    SHAPES,
    Layout,
    alike,
    assert_agreement,
    assert_conservation,
    mean,
    noise,
    reduce_steps,
    same_bits,
)
from gradwire.spec import Broadcast, Hierarchical, SharedScale, Sparse, parse_reducer
from strategies import SEEDS, entries, normal

GRIDS = {"2 nodes of 2": (4, 2), "2 nodes of 4": (8, 4), "4 nodes of 2": (8, 2)}
INNER = ("none", "bf16", "int8", "int4", "int1", "sign", "fp8", "int4@broadcast", "topk:0.1")
SPECS = {name: (parse_reducer(name), "float32") for name in INNER} | {
    "int4 in bfloat16": (parse_reducer("int4"), "bfloat16"),
    "none in bfloat16": (parse_reducer("none"), "bfloat16"),
    "random": (Broadcast(Sparse(0.1, "random")), "float32"),
    "shared scale": (SharedScale(4), "float32"),
}
WITH_FEEDBACK = {name: s for name, s in SPECS.items() if s[0].feedback}
each_grid = pytest.mark.parametrize(("world_size", "local"), GRIDS.values(), ids=GRIDS)
each_spec = pytest.mark.parametrize(("inner", "form"), SPECS.values(), ids=SPECS)
each_feedback = pytest.mark.parametrize(
    ("inner", "form"), WITH_FEEDBACK.values(), ids=WITH_FEEDBACK
)


def assert_laws(spec, layout, traces):
    assert_agreement(traces)
    for rank, trace in enumerate(traces):
        predicted = spec.transfers(layout.entries, len(traces), rank)
        assert all(tuple(recorded) == predicted for recorded in trace.transfers)
    is_exact = spec.inner == parse_reducer("none") and spec.format == "float32"
    if spec.feedback or is_exact:
        assert_conservation(traces)


@each_grid
@each_spec
def test_laws_hold_on_two_levels(inner, form, world_size, local):
    spec, layout = Hierarchical(inner, local, form), Layout.of(SHAPES, gap=2)
    gradients = noise(layout.residual_numel, world_size, 4)
    assert_laws(spec, layout, reduce_steps(spec, layout, gradients, world_size))


@each_spec
@settings(max_examples=3)
@given(entries(), SEEDS)
def test_laws_hold_for_any_parameters(inner, form, drawn, seed):
    spec, layout = Hierarchical(inner, 2, form), Layout.of([e.shape for e in drawn], gap=seed % 3)
    gradients = noise(layout.residual_numel, 4, 2, seed)
    assert_laws(spec, layout, reduce_steps(spec, layout, gradients, 4, seed=seed, in_place=True))


@each_spec
def test_results_do_not_depend_on_the_layout(inner, form):
    spec, order = Hierarchical(inner, 2, form), [4, 2, 0, 3, 1]
    gradients = noise(sum(math.prod(shape) for shape in SHAPES), 4, 3)
    one = reduce_steps(spec, Layout.of(SHAPES), gradients, 4)
    several = reduce_steps(
        spec, Layout.of(SHAPES, order, gap=3), gradients, 4, parts=[[3, 0], [1], [2, 4]]
    )
    for a, b in zip(one, several, strict=True):
        assert all(map(same_bits, a.outs, b.outs))
        assert all(map(same_bits, a.residuals, b.residuals))


def test_float32_on_both_levels_is_the_mean():
    layout = Layout.of(SHAPES)
    gradients = noise(layout.residual_numel, 8, 2)
    traces = reduce_steps(parse_reducer("none@hierarchical:4"), layout, gradients, 8)
    for step in range(2):
        expected = mean([g[step] for g in gradients])
        assert (traces[0].outs[step].double() - expected).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["none", "int8", "int4", "int4@shared_scale"])
def test_values_that_both_levels_can_hold_come_back_exactly(name):
    x = torch.tensor([-6.0, -1.0, 0.0, 5.0])[torch.arange(1000) % 4]
    x[::256] = -127.0 if name == "int8" else -7.0
    spec = parse_reducer(f"{name}@hierarchical:2")
    for trace in reduce_steps(spec, Layout.of([(1000,)]), alike(x, 4, steps=2), 4):
        assert all(torch.equal(out, x) for out in trace.outs)
        assert not trace.residuals[-1].any()


def test_each_rank_owes_for_its_own_shard_of_the_node():
    spec, layout = Hierarchical(parse_reducer("int4"), 2), Layout.of([(40, 50)])
    traces = reduce_steps(spec, layout, noise(2000, 4, 1), 4)
    for rank, trace in enumerate(traces):
        (cut,) = spec.owned(layout.entries, rank % 2, 2)
        owed = trace.residuals[-1].clone()
        assert owed[cut.start : cut.start + cut.numel].any()
        owed[cut.start : cut.start + cut.numel] = 0
        assert not owed.any()


def test_noise_differs_between_the_ranks_of_a_node():
    # Two shards alike: with the same noise their roundings would be the same.
    x = normal(1024).repeat(2)
    traces = reduce_steps(
        Hierarchical(parse_reducer("int4"), 2), Layout.of([(2048,)]), alike(x, 4), 4
    )
    first, second = traces[0].outs[0].split(1024)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["int4", "sign", "int4 in bfloat16", "shared scale"])
def test_residual_stays_bounded(name):
    inner, form = SPECS[name]
    spec, steps, layout = Hierarchical(inner, 2, form), 40, Layout.of([(16, 32)])
    gradients = noise(512, 4, steps)
    for rank in gradients:
        for values in rank:
            values.add_(normal(512, seed=1000))
    traces = reduce_steps(spec, layout, gradients, 4)
    norms = [float(sum(t.residuals[s].norm() for t in traces)) for s in range(steps + 1)]
    assert max(norms[steps // 2 :]) < 2 * max(norms[: steps // 2])


@each_feedback
@pytest.mark.parametrize("wild", [math.nan, math.inf])
def test_a_value_that_is_not_finite_reaches_all_ranks_and_stays_for_one_step(inner, form, wild):
    spec, layout, place = Hierarchical(inner, 2, form), Layout.of([(40, 50), (300,)]), 777
    gradients = noise(2300, 4, 3)
    gradients[-1][1] = gradients[-1][1].clone()
    gradients[-1][1][place] = wild
    traces = reduce_steps(spec, layout, gradients, 4)
    assert_agreement(traces)
    assert not traces[0].outs[1][place].isfinite()
    assert traces[0].outs[1][2000:].isfinite().all()
    for trace in traces:
        assert all(r.isfinite().all() for r in trace.residuals)
        assert all(trace.outs[step].isfinite().all() for step in (0, 2))
