"""Hierarchical reducers as the simulator sees them: the messages of the real ones."""

import pytest
from clusters import FAST, LINK, layers

from gradwire.errors import SpecError
from gradwire.hardware import Device, Hardware
from gradwire.plan import Plan
from gradwire.sim import Cluster, EventSimulator
from gradwire.sim.levels import hierarchical_reduction
from gradwire.sim.stages import Speeds
from gradwire.spec import Entry, Hierarchical, SharedScale, parse_reducer

HARDWARE = Hardware(Device(), {}, FAST, LINK)
ENTRIES = [Entry(17, (64, 100)), Entry(-5, (300,)), Entry(3, (40, 50))]


@pytest.mark.parametrize(("ranks", "local"), [(4, 2), (8, 4), (8, 2), (6, 1), (4, 4)])
@pytest.mark.parametrize("name", ["none", "bf16", "int4", "sign", "int4@broadcast"])
def test_simulated_messages_are_those_that_are_sent(name, ranks, local):
    spec = Hierarchical(parse_reducer(name), local)
    reduction = hierarchical_reduction("r", spec, ENTRIES, ranks, Speeds(HARDWARE))
    for rank in range(ranks):
        phases = [stage.phase for stage in reduction.stages if stage.phase]
        moved = [(p.sent_bytes(rank), p.received_bytes(rank)) for p in phases]
        predicted = [tuple(t) for t in spec.transfers(ENTRIES, ranks, rank)]
        assert [m for m in moved if any(m)] == [p for p in predicted if any(p)]


def test_a_plan_with_a_hierarchy_beats_the_flat_one_on_two_levels():
    work = layers((0.1, 0.2), numel=200_000)
    steps = {
        name: EventSimulator().run(Plan.of(name), work, HARDWARE, Cluster(8, 4)).timeline.step_s
        for name in ("none", "none@hierarchical:4", "int4@hierarchical:4")
    }
    assert steps["int4@hierarchical:4"] < steps["none@hierarchical:4"] < steps["none"]


def test_an_inner_reducer_without_a_model_is_refused():
    spec = Hierarchical(SharedScale(), 2)
    with pytest.raises(SpecError, match=r"Hierarchical\.inner='shared_scale' is not one that can"):
        hierarchical_reduction("r", spec, ENTRIES, 4, Speeds(HARDWARE))
