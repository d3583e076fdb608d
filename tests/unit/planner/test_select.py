"""Which plan is chosen, and that the reasons hold."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest

from gradwire.errors import SpecError
from gradwire.hardware import LinkSpeed
from gradwire.plan import DENSE, Plan
from gradwire.planner.search import ADVANTAGE
from gradwire.planner.select import Limits, select_plan
from gradwire.planner.step import Setting, predict
from gradwire.spec import parse_reducer
from gradwire.workload import Layer, Workload, parameter
from made_hardware import accel, accel_setting, hardware

RATES = ("10Mbit/s", "100Mbit/s", "300Mbit/s", "1Gbit/s", "3Gbit/s", "10Gbit/s")


@functools.cache
def decided(rate, ranks):
    return select_plan(accel_setting(rate, ranks))


def one_layer(link, *, ranks=4, limits=None, errors=None, **speeds):
    layer = Layer("fc", (parameter("fc.weight", (1000, 1000)),), 0.01, 0.02)
    setting = Setting(Workload("one", (layer,)), hardware(link, **speeds), ranks)
    return select_plan(setting, limits=limits, errors=errors)


def test_nothing_is_compressed_where_the_link_is_fast():
    decision = one_layer(LinkSpeed(1e-6, 1e11))
    assert decision.plan == Plan.of("none")
    assert decision.reason.startswith("nothing is more than 5% faster than none")


def test_fewest_bits_within_the_allowed_harm_where_the_link_is_slow():
    slow = LinkSpeed(1e-4, 1e6)
    assert one_layer(slow).plan == Plan.of("nearest4")
    assert one_layer(slow, limits=Limits(max_harm=0.01)).plan == Plan.of("nearest5")
    assert one_layer(slow, limits=Limits(max_harm=0.0)).plan == Plan.of("none")


def test_steps_that_become_more_count_as_time():
    names = ("nearest3@broadcast", "int2@broadcast")
    for rate in (1e6, 3e6, 1e7):
        limits = Limits(max_harm=10.0, candidates=names)
        (bucket,) = one_layer(LinkSpeed(1e-4, rate), ranks=2, limits=limits).buckets
        harm = {o.name: o.harm for o in bucket.options}
        assert bucket.step_s[names[1]] < bucket.step_s[names[0]]
        assert bucket.chosen == min(names, key=lambda n: bucket.step_s[n] * (1 + harm[n]))


def test_harm_adds_up_over_buckets():
    setting = accel_setting("100Mbit/s", 2)
    for most in (0.03, 0.2):
        decision = select_plan(setting, limits=Limits(max_harm=most))
        harms = [next(o.harm for o in b.options if o.name == b.chosen) for b in decision.buckets]
        assert 0.5 * most < sum(harms) <= most


def test_two_ranks_send_to_each_other_at_once():
    assert one_layer(LinkSpeed(1e-2, 1e6), ranks=2).plan == Plan.of("nearest3@broadcast")


def test_errors_measured_on_the_gradients_themselves_count():
    errors = {"fc.weight": {"nearest3": 0.4, "nearest4": 0.1}}
    decision = one_layer(LinkSpeed(1e-4, 1e6), errors=errors)
    assert decision.plan == Plan.of("nearest4")
    (bucket,) = decision.buckets
    refused = next(o for o in bucket.options if o.name == "nearest3")
    assert (refused.costs, refused.error) == (None, pytest.approx(0.4 * 2**0.5))
    assert refused.reason == "21.7% more steps, 10.0% allowed"


def test_slow_codecs_are_not_used():
    decision = one_layer(LinkSpeed(1e-4, 1e8), encode=1e-7, decode=1e-7)
    assert decision.plan == Plan.of("none")


def test_codecs_without_a_measured_speed_are_left_out():
    decision = one_layer(LinkSpeed(1e-4, 1e6), names=("none", "int8"))
    assert decision.plan == Plan.of("int8")
    options = {o.name: o for o in decision.buckets[0].options}
    assert options["int6"].reason == "no speed known: kernel 'encode int6'"


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slower_link_never_sends_more(ranks):
    decisions = [decided(rate, ranks) for rate in RATES]
    sent = [d.prediction.sent_bytes for d in decisions]
    # Shards round to whole blocks, a little differently in other buckets.
    assert all(b >= a / 1.001 for a, b in itertools.pairwise(sent))
    steps = [d.prediction.step_s for d in decisions]
    assert all(b <= (1 + ADVANTAGE) * a for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_choice_is_close_to_every_fixed_plan(rate, ranks):
    setting = accel_setting(rate, ranks)
    decision = decided(rate, ranks)
    for name in ("none", "bf16", "fp16", "int8", "fp8", "int6"):
        for cap in (25, 10, 5):
            fixed = predict(Plan.of(name), replace(setting, cap_bytes=cap << 20))
            assert decision.prediction.step_s <= (1 + ADVANTAGE) * fixed.step_s


def test_small_buckets_are_advised_where_the_last_one_is_exposed():
    assert decided("1Gbit/s", 4).bucket_cap_mb < 25
    given = Limits(caps_bytes=(25 << 20,))
    assert select_plan(accel_setting("1Gbit/s", 4), limits=given).bucket_cap_mb == 25


def test_buckets_that_are_hidden_stay_more_exact():
    decision = decided("1Gbit/s", 4)
    errors = [next(o.error for o in b.options if o.name == b.chosen) for b in decision.buckets]
    assert errors[0] < errors[-1]


def test_each_parameter_gets_the_reducer_of_its_bucket():
    setting = accel_setting("1Gbit/s", 4)
    decision = decided("1Gbit/s", 4)
    assigned = decision.plan.assign(setting.workload.parameters, 4)
    assert len({b.chosen for b in decision.buckets}) > 1
    for bucket in decision.buckets:
        for p in bucket.bucket.parameters:
            assert assigned[p.name].reducer == parse_reducer(bucket.chosen)


def test_names_with_brackets_are_matched_as_they_are():
    layers = tuple(
        Layer(f"l{i}", (parameter(f"w[{i}]*", (953, 953)),), 0.1 / 12, 0.2 / 12) for i in range(12)
    )
    setting = replace(accel_setting("1Gbit/s", 4), workload=Workload("w", layers, 0.023))
    decision = select_plan(setting)
    assigned = decision.plan.assign(setting.workload.parameters, 4)
    for bucket in decision.buckets:
        for p in bucket.bucket.parameters:
            assert assigned[p.name].reducer == parse_reducer(bucket.chosen)


def test_equal_arguments_give_an_equal_plan():
    again = select_plan(accel_setting("300Mbit/s", 4))
    assert again == decided("300Mbit/s", 4)
    assert again.plan.digest() == decided("300Mbit/s", 4).plan.digest()


def test_the_plan_in_use_stays_unless_another_wins_clearly():
    setting = accel_setting("1Gbit/s", 2)
    kept = select_plan(setting, current=Plan.of("int8"))
    assert kept.plan == Plan.of("int8")
    assert "the plan in use stays" in kept.reason
    moved = select_plan(accel_setting("10Mbit/s", 2), current=Plan.of("none"))
    assert moved.plan == decided("10Mbit/s", 2).plan


def test_vectors_stay_dense():
    layer = Layer("norm", (parameter("norm.weight", (100_000,)),), 0.01, 0.02)
    link = LinkSpeed(1e-4, 1e6)
    decision = select_plan(Setting(Workload("v", (layer,)), hardware(link), 2))
    assert decision.plan.rules[-1].reducer == DENSE
    reasons = {o.reason for o in decision.buckets[0].options if o.name != "none"}
    assert reasons == {"no parameter that a plan compresses"}


def test_one_node_crosses_the_fast_level_only():
    fast, slow = LinkSpeed(1e-6, 1e11), LinkSpeed(1e-3, 1e6)
    speeds = replace(hardware(slow), within=fast)
    assert select_plan(Setting(accel(), speeds, 4, ranks_per_node=4)).plan == Plan.of("none")
    two_levels = select_plan(Setting(accel(), speeds, 4, ranks_per_node=2))
    used = {bucket.chosen for bucket in two_levels.buckets}
    assert used == {"nearest3@hierarchical:2", "nearest4@hierarchical:2"}  # up to the harm allowed


@pytest.mark.parametrize("wrong", [{"max_harm": -1.0}, {"caps_bytes": ()}])
def test_limits_that_allow_nothing_are_refused(wrong):
    with pytest.raises(SpecError):
        Limits(**wrong)


def test_exactness_is_spent_from_hidden_time_only_with_slack():
    setting, decision = accel_setting("1Gbit/s", 4), decided("1Gbit/s", 4)
    rate = setting.link.bandwidth_bytes_per_s
    slower = decision.setting.at(rate / 1.2)
    fewest = predict(Plan.of("nearest4"), slower).step_s
    assert predict(decision.plan, slower).step_s <= 1.02 * fewest
