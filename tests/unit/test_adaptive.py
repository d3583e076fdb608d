"""Settings of AQGB as data, and plans that ask for it."""

from __future__ import annotations

import json

import pytest

from gradwire.errors import SpecError
from gradwire.plan import Parameter, Plan, Rule, load_plan
from gradwire.spec import Adaptive, AllReduce, Broadcast, Entry, Quantize, TwoPhase, sent_bytes

REFUSED = [
    ({"reducer": "ring"}, "Adaptive.reducer='ring' is not one of: best, broadcast, two_phase"),
    ({"floor": 7}, "Adaptive.floor=7 is not one of: 1, 2, 3, 4, 5, 6, 8, 16, 32"),
    ({"floor": True}, "Adaptive.floor=True"),
    ({"cap": 3}, "Adaptive.cap=3 is not at least 4, the highest floor"),
    ({"floor": 8, "cap": 8}, "Adaptive.peak_floor=4 is not at least floor=8"),
    ({"every": 0}, "Adaptive.every=0"),
    ({"schedule": "slow"}, "Adaptive.schedule='slow'"),
    ({"schedule": "rising"}, "Adaptive.steps=0 is not above 0 with schedule='rising'"),
    ({"error_bound": 0}, "Adaptive.error_bound=0 is not above 0"),
    ({"error_bound": "5%"}, "Adaptive.error_bound='5%'"),
    ({"force": "no"}, "Adaptive.force='no'"),
    ({"bits": 4}, "adaptive field='bits' is not one of: cap, error_bound"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_settings_that_cannot_be_are_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        Adaptive.from_dict(fields)


def test_settings_must_be_an_object():
    with pytest.raises(SpecError, match="adaptive=4 is not an object"):
        Adaptive.from_dict(4)


def test_aqgb_is_a_plan_that_begins_with_four_bits():
    plan = load_plan("aqgb")
    assert plan.adaptive == Adaptive()
    assert plan.rules == Plan.of("int4").rules
    assert plan.digest() != Plan.of("int4").digest()


def test_plan_file_keeps_the_settings():
    settings = Adaptive("two_phase", floor=2, cap=16, every=25, schedule="falling", steps=500)
    plan = Plan((Rule(TwoPhase(Quantize(4))),), seed=3, adaptive=settings)
    assert Plan.from_json(plan.to_json()) == plan
    partial = json.loads(plan.to_json())
    partial["adaptive"] = {"floor": 4}
    assert Plan.from_json(json.dumps(partial)).adaptive == Adaptive(floor=4)


def test_plan_refuses_settings_of_another_kind():
    with pytest.raises(SpecError, match=r"Plan.adaptive='aqgb'"):
        Plan((), adaptive="aqgb")


def test_senders_and_force_survive_a_plan_file():
    spec = Broadcast(Quantize(4), senders=(Quantize(3), Quantize(8, scale="l2")), force=True)
    plan = Plan.of(Broadcast(Quantize(4), False, spec.senders, force=True))
    assert Plan.from_json(plan.to_json()) == plan


# Broadcast and bfloat16

MATRIX = Parameter("w", Entry(0, (1024, 1024)))


@pytest.mark.parametrize(("bits", "most"), [(8, 3), (4, 7), (2, 15)])
def test_broadcast_is_refused_with_the_numbers_where_bf16_moves_less(bits, most):
    # Without scales: bits (N - 1) against 16 * 2 (N - 1) / N, so N < 32 / bits.
    spec = Broadcast(Quantize(bits), feedback=False)
    assert Plan.of(spec).assign([MATRIX], most)["w"].reducer == spec
    sizes = [sent_bytes(s, [MATRIX.entry], most + 1) for s in (spec, AllReduce("bfloat16"))]
    expected = f"sends {sizes[0]} bytes a rank with {most + 1} ranks, a bf16 all-reduce {sizes[1]}"
    with pytest.raises(SpecError, match=f"{expected}; use two_phase, fewer bits, or force=True"):
        Plan.of(spec).assign([MATRIX], most + 1)


def test_broadcast_that_is_forced_is_accepted_while_it_is_smaller_than_float32():
    spec = Broadcast(Quantize(8), force=True)
    assert Plan.of(spec).assign([MATRIX], 6)["w"].reducer == spec
    assert "would send" in Plan.of(spec).assign([MATRIX], 16)["w"].dense_reason


def test_small_parameter_alone_does_not_refuse_a_plan():
    small = Parameter("v", Entry(1, (2, 513)))
    spec = Broadcast(Quantize(7))
    chosen = Plan.of(spec).assign([MATRIX, small], 4)
    assert chosen["v"].reducer == spec


def test_broadcast_of_senders_counts_the_busiest():
    spec = Broadcast(Quantize(4), senders=(Quantize(3), Quantize(8), Quantize(3), Quantize(3)))
    assert "sends" in spec.refusal([MATRIX.entry], 4)
    assert Broadcast(Quantize(4)).refusal([MATRIX.entry], 4) is None
