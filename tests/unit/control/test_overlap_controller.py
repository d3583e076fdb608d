"""AQGB's controller on a model of training steps."""

from __future__ import annotations

import random

import pytest

from gradwire.control.overlap import OverlapController
from gradwire.errors import SpecError
from gradwire.spec import Adaptive, Broadcast, Quantize, Sign, Sparse, TwoPhase
from unit.control.model import MBIT, Model

NUMELS = (100_000, *[400_000] * 11)
BROADCAST = Adaptive(reducer="broadcast", schedule="constant", floor=3, cap=8)


def bits(model):
    """Bits of each layer by its codec; 1 for signs."""
    codecs = [model.reducers[name].codec for name in model.names]
    return [1 if isinstance(c, Sign) else getattr(c, "bits", None) for c in codecs]


def settled(rate, settings=BROADCAST, steps=40, **kwargs):
    model, controller = Model(NUMELS, **kwargs), OverlapController(settings)
    for step in range(steps):
        model.run(controller, step, [rate] * model.world_size)
    return model, controller


# Following the network


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [
        (BROADCAST, 0.5),
        (Adaptive(reducer="broadcast", error_bound=0.8), 0.6),
        (Adaptive(reducer="two_phase", error_bound=0.8), 0.8),
        (Adaptive(), 0.8),
    ],
    ids=["cap 8", "broadcast", "two_phase", "default"],
)
def test_link_that_breaks_down_and_recovers_is_followed_within_ten_steps(settings, ratio):
    fast, slow = 1000 * MBIT, 100 * MBIT
    model, controller = Model(NUMELS), OverlapController(settings)
    kind = TwoPhase if settings.reducer == "two_phase" else Broadcast
    fixed = dict.fromkeys(model.names, kind(Quantize(4)))
    history = []
    for step in range(120):
        rate = slow if 40 <= step < 80 else fast
        history.append((step, model.run(controller, step, [rate] * 2), bits(model), rate))
    by_step = {step: found for step, _, found, _ in history}
    at_slow, at_fast = (bits(settled(rate, settings)[0]) for rate in (slow, fast))
    assert abs(sum(by_step[49]) - sum(at_slow)) <= 0.06 * sum(at_slow)
    assert abs(sum(by_step[89]) - sum(at_fast)) <= 0.06 * sum(at_fast)
    assert sum(at_slow) <= ratio * sum(at_fast)
    for step, happened, _, rate in history:
        stall_at_4_bits = model.stall_s(fixed, rate)
        if step == 40 and settings.cap > 4:  # its bits were chosen before anybody could know
            assert happened.stall_s <= stall_at_4_bits + happened.sent / 2 / rate
        else:
            assert happened.stall_s <= stall_at_4_bits + 1e-9, step


def test_bits_use_up_what_can_be_hidden_and_no_more():
    for rate in (300, 400, 500, 700):
        model, controller = settled(rate * MBIT)
        assert controller.decision.stall_s == 0
        assert model.stall_s(model.reducers, rate * MBIT) == 0
        assert model.stall_s(model.reducers, 0.8 * rate * MBIT) > 0 or set(bits(model)) == {8}


def test_more_bandwidth_never_means_fewer_bits():
    totals = [sum(bits(settled(rate * MBIT)[0])) for rate in (100, 200, 400, 800, 1600)]
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_layers_that_matter_more_get_more_bits():
    squares = [1e5, *[4e5] * 10, 4e8]
    model, _ = settled(250 * MBIT, squares=squares)
    assert bits(model)[-1] > max(bits(model)[1:-1])


def test_noisy_bandwidth_does_not_make_the_plan_flutter():
    rng = random.Random(0)
    model, controller = Model(NUMELS), OverlapController(BROADCAST)
    changes = []
    for step in range(150):
        rate = 400 * MBIT * rng.uniform(0.93, 1.07)
        happened = model.run(controller, step, [rate] * 2)
        changes.append(happened.changed is not None)
    assert changes[0]
    assert sum(changes[20:]) <= 4


def test_plan_that_stalls_against_expectation_is_cut_back():
    model, controller = Model(NUMELS, slower=0.75), OverlapController(BROADCAST)
    steps = [model.run(controller, step, [400 * MBIT] * 2) for step in range(120)]
    assert max(s.stall_s / s.step_s for s in steps[:20]) > 0.05
    assert max(s.stall_s / s.step_s for s in steps[60:]) < 0.05
    assert controller.decision.margin < 0.9


# Which exchange


def test_exchange_that_allows_more_bits_is_chosen():
    few, _ = settled(300 * MBIT, Adaptive(schedule="constant"), world_size=2)
    many, _ = settled(300 * MBIT, Adaptive(schedule="constant"), world_size=8)
    assert all(isinstance(r, Broadcast) for r in few.reducers.values())
    assert all(isinstance(r, TwoPhase) for r in many.reducers.values())


def test_broadcast_is_refused_with_the_numbers_where_bf16_moves_less():
    with pytest.raises(
        SpecError, match=r"send \d+ bytes a rank with 16 ranks, a bf16 all-reduce \d+"
    ):
        settled(300 * MBIT, BROADCAST, world_size=16)
    forced = Adaptive(reducer="broadcast", force=True)
    model, _ = settled(300 * MBIT, forced, world_size=16)
    assert all(r.force for r in model.reducers.values())


def test_broadcast_never_moves_more_than_bf16_layer_by_layer():
    model, _ = settled(10_000 * MBIT, BROADCAST, world_size=6)
    assert set(bits(model)[1:]) == {5}  # 6.125 bits to 5 ranks would be more than 16 bits


def test_each_sender_has_bits_of_its_own_where_links_differ():
    model, controller = Model(NUMELS), OverlapController(BROADCAST)
    for step in range(30):
        model.run(controller, step, [500 * MBIT, 250 * MBIT])
    wide, narrow = controller.decision.bits
    assert sum(wide) > 1.3 * sum(narrow)
    spec = model.reducers[model.names[-1]]
    assert [c.bits for c in spec.senders] == [wide[-1], narrow[-1]]
    assert spec.codecs(2) == spec.senders


def test_links_that_begin_to_differ_and_cease_again_are_followed():
    model, controller = Model(NUMELS), OverlapController(BROADCAST)
    for step in range(60):
        slow = 300 * MBIT if 20 <= step < 40 else 600 * MBIT
        model.run(controller, step, [600 * MBIT, slow])
        assert len(controller.decision.bits) == (2 if 23 < step < 40 else 1) or step % 20 < 4


def test_one_plan_for_all_where_senders_may_not_differ():
    settings = Adaptive(reducer="broadcast", schedule="constant", cap=8, senders=False)
    model, controller = Model(NUMELS), OverlapController(settings)
    for step in range(30):
        model.run(controller, step, [500 * MBIT, 250 * MBIT])
    assert len(controller.decision.bits) == 1
    assert bits(model) == bits(settled(250 * MBIT, settings)[0])


# Training


def test_large_front_layer_goes_in_fewer_bits_instead_of_stalling():
    numels = (4_000_000, *[100_000] * 11)
    squares = [4e4, *[1e6] * 11]  # of little weight in the gradient
    model, controller = Model(numels, squares=squares), OverlapController(BROADCAST)
    for step in range(30):
        model.run(controller, step, [300 * MBIT] * 2)
    front = model.reducers[model.names[0]].codec
    assert isinstance(front, (Sign, Sparse))
    assert min(bits(model)[1:]) >= 3
    at_floor = dict.fromkeys(model.names, Broadcast(Quantize(3)))
    assert controller.decision.stall_s < 0.5 * model.stall_s(at_floor, 300 * MBIT)


def test_front_layer_that_carries_the_gradient_keeps_its_floor_and_stalls():
    numels = (1_000_000, *[100_000] * 11)
    squares = [1e9, *[1e3] * 11]
    model, controller = Model(numels, squares=squares), OverlapController(BROADCAST)
    for step in range(30):
        model.run(controller, step, [2000 * MBIT] * 2)
    assert bits(model)[0] >= 3
    assert controller.decision.stall_s > 0


@pytest.mark.parametrize("rate", [10, 50, 100, 300])
@pytest.mark.parametrize("bound", [0.2, 0.4])
def test_no_plan_is_expected_to_exceed_the_bound_of_the_error(rate, bound):
    settings = Adaptive(error_bound=bound, peak_floor=6, cap=8)
    model, controller = Model(NUMELS), OverlapController(settings)
    for step in range(40):
        model.run(controller, step, [rate * MBIT] * 2)
        assert model.relative_error() <= bound, step
    assert controller.decision.floor == settings.floor  # not by raising it


def test_measured_error_above_its_bound_raises_the_floor():
    tight = Adaptive(reducer="broadcast", error_bound=0.2, peak_floor=6, cap=8)
    model, controller = settled(50 * MBIT, tight)
    worse_model, worse = settled(50 * MBIT, tight, steps=80, worse=2.0)
    assert worse_model.relative_error() <= 0.2
    assert worse.decision.floor > controller.decision.floor == 2
    assert sum(bits(worse_model)) > sum(bits(model))


def test_wider_bound_allows_fewer_bits():
    model, _ = settled(50 * MBIT, Adaptive(reducer="broadcast"))
    wide_model, _ = settled(50 * MBIT, Adaptive(reducer="broadcast", error_bound=0.8))
    assert sum(bits(wide_model)) < 0.8 * sum(bits(model))


@pytest.mark.parametrize("feedback", [True, False])
def test_every_reducer_chosen_can_be_built(feedback):
    for rate in (1, 10, 100, 1000):
        for floor in (1, 2, 3):
            settings = Adaptive(floor=floor, schedule="constant", feedback=feedback)
            model, _ = settled(rate * MBIT, settings)
            assert all(r.feedback is feedback for r in model.reducers.values())
            assert set(bits(model)) & {1, None} or min(bits(model)) >= 2


# Determinism


def test_equal_inputs_give_equal_decisions():
    def decisions():
        rng = random.Random(3)
        model, controller = Model(NUMELS, world_size=4), OverlapController(Adaptive())
        found = []
        for step in range(60):
            rates = [rng.uniform(50, 900) * MBIT for _ in range(4)]
            found.append((model.run(controller, step, rates).changed, controller.decision))
        return found

    assert decisions() == decisions()


def test_layers_that_are_new_get_a_plan_at_once():
    model, controller = settled(300 * MBIT)
    other = Model(NUMELS[:5])
    assert set(other.run(controller, 41, [300 * MBIT] * 2).changed) == set(other.names)
    assert model.names != other.names


def test_one_rank_needs_no_plan():
    model = Model(NUMELS, world_size=1)
    assert model.run(OverlapController(), 0, [1e9]).changed is None
