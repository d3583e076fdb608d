"""Hierarchical reducers in the planner."""

from __future__ import annotations

import pytest

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.plan import DENSE, Parameter, Plan
from gradwire.planner.cost import reduction_cost
from gradwire.planner.levels import hierarchical_cost, two_level_candidates
from gradwire.planner.select import select_plan
from gradwire.planner.step import Setting, predict
from gradwire.spec import Entry, Hierarchical, Quantize, SharedScale, TwoPhase, parse_reducer
from gradwire.workload import Layer, Workload, parameter

FAST, SLOW = LinkSpeed(1e-6, 1e10), LinkSpeed(1e-4, 1e7)
LINES = {
    f"{step} {name}": Line(1e-6, 1e-10)
    for step in ("encode", "decode")
    for name in ("none", "bf16", "int8", "int6", "int4")
}
HARDWARE = Hardware(Device(copy_bytes_per_s=1e10), LINES, FAST, SLOW)
ENTRIES = [Entry(3, (1024, 64))]
WORK = Workload("w", (Layer("fc", (parameter("fc.weight", (1000, 1000)),), 0.01, 0.02),))


def test_bytes_of_each_level_take_their_own_link():
    spec = Hierarchical(TwoPhase(Quantize(4)), 4)
    cost = hierarchical_cost(spec, ENTRIES, 8, HARDWARE, SLOW)
    within, between = spec.by_level(ENTRIES, 8, 0)
    assert cost.sent_bytes == within.sent_bytes + between.sent_bytes
    taken = [stage.link_s for stage in cost.stages]
    assert taken[0] + taken[3] == pytest.approx(within.sent_bytes / 1e10)
    assert taken[1] + taken[2] == pytest.approx(between.sent_bytes / 1e7)


def test_a_rank_alone_in_its_node_pays_for_the_inner_reducer_only():
    inner = TwoPhase(Quantize(4))
    cost = hierarchical_cost(Hierarchical(inner, 1), ENTRIES, 4, HARDWARE, SLOW)
    assert cost == reduction_cost(inner, ENTRIES, 4, HARDWARE, SLOW)


def test_shared_scale_has_work_around_each_of_its_four_exchanges():
    spec = SharedScale(4)
    cost = reduction_cost(spec, ENTRIES, 4, HARDWARE, SLOW)
    assert [s.num_bytes for s in cost.stages[:-1]] == [
        t.sent_bytes for t in spec.transfers(ENTRIES, 4, 0)
    ]
    assert cost.codec_s > 0


@pytest.mark.parametrize(("world_size", "local"), [(4, 1), (4, 4), (2, 4), (6, 4)])
def test_one_level_or_uneven_nodes_have_no_hierarchical_candidates(world_size, local):
    assert not two_level_candidates({"int4": parse_reducer("int4")}, world_size, local)


def test_two_levels_are_used_where_they_pay():
    setting = Setting(WORK, HARDWARE, 8, ranks_per_node=4)
    decision = select_plan(setting)
    reducer = decision.plan.rules[0].reducer
    assert isinstance(reducer, Hierarchical)
    assert reducer.ranks_per_node == 4
    flat = predict(Plan.of(reducer.inner), setting)
    assert decision.prediction.step_s < flat.step_s
    options = {option.name for option in decision.buckets[0].options}
    assert {"int8", "int8@hierarchical:4"} <= options


def test_a_plan_keeps_a_hierarchy_that_compresses_nothing():
    weight = Parameter("w", Entry(1, (64, 64)))
    spec = parse_reducer("none@hierarchical:2")
    assert Plan.of(spec).assign([weight], 4)["w"].reducer == spec
    on_one_node = Plan.of("int4@hierarchical:4").assign([weight], 4)["w"]
    assert on_one_node.reducer == DENSE
    assert "would send" in on_one_node.dense_reason
