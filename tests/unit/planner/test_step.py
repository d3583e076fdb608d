"""Predicted steps against what was measured on emulated links."""

from __future__ import annotations

import pytest

from gradwire.plan import Plan
from gradwire.planner.step import predict, predict_plain
from made_hardware import accel_setting

# Plain DDP on two-core machines, milliseconds: (rate, ranks, bucket_cap_mb) -> measured.
MEASURED = {
    ("1Gbit/s", 2, 25): 655,
    ("1Gbit/s", 2, 5): 529,
    ("1Gbit/s", 4, 25): 814,
    ("1Gbit/s", 4, 5): 702,
    ("100Mbit/s", 2, 25): 3908,
    ("100Mbit/s", 2, 5): 3894,
    ("100Mbit/s", 4, 25): 5733,
    ("100Mbit/s", 4, 5): 5778,
}


@pytest.mark.parametrize(("cell", "measured_ms"), MEASURED.items(), ids=str)
def test_plain_ddp_takes_what_was_measured(cell, measured_ms):
    rate, ranks, cap_mib = cell
    predicted_ms = 1e3 * predict_plain(accel_setting(rate, ranks, cap_mib))
    assert predicted_ms == pytest.approx(measured_ms, rel=0.1)


def test_one_rank_takes_its_computation():
    found = predict(Plan.of("int4"), accel_setting("1Gbit/s", 1))
    assert found.step_s == pytest.approx(0.323)
    assert found.exposed_s == pytest.approx(0.0)


def test_dense_plan_of_two_ranks_is_plain_ddp():
    setting = accel_setting("1Gbit/s", 2)
    assert predict(Plan.of("none"), setting).step_s == predict_plain(setting)


def test_sent_bytes_are_those_of_the_spec():
    setting = accel_setting("1Gbit/s", 2)
    plan = Plan.of("int4")
    reducer = plan.rules[0].reducer
    entries = [p.entry for p in setting.workload.parameters]
    expected = sum(t.sent_bytes for e in entries for t in reducer.transfers([e], 2, 0))
    assert predict(plan, setting).sent_bytes == pytest.approx(expected, rel=0.01)


def test_four_bits_hide_almost_wholly_at_a_gigabit():
    found = predict(Plan.of("int4"), accel_setting("1Gbit/s", 2, 2))
    assert found.step_s < 1.07 * 0.323
