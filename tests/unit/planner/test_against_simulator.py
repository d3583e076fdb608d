"""The planner's closed form and the event simulator see the same step alike."""

from __future__ import annotations

import pytest

from gradwire.plan import Plan
from gradwire.planner.step import predict
from gradwire.sim import Cluster, simulate
from made_hardware import accel_setting


@pytest.mark.parametrize("name", ["bf16", "int8", "int4", "int6@broadcast"])
@pytest.mark.parametrize(("rate", "ranks"), [("1Gbit/s", 2), ("1Gbit/s", 4), ("100Mbit/s", 4)])
def test_predicted_steps_agree(name, rate, ranks):
    setting, plan = accel_setting(rate, ranks, 5), Plan.of(name)
    simulated = simulate(
        plan, setting.workload, setting.hardware, Cluster(ranks), bucket_bytes=setting.cap_bytes
    )
    assert predict(plan, setting).step_s == pytest.approx(simulated.step_s, rel=0.05)
