from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.report.model import DemoResult, Step
from gradwire.report.summary import Spread, compare, comparisons, smoothed_losses, summarise


def test_spread_of_one_value_is_zero():
    assert Spread.of([2.0]) == Spread(2.0, 0.0)


def test_medians_leave_out_the_untimed_steps(result: DemoResult):
    slow_start = [replace(s, forward_s=9.0) for s in result.methods[0].steps[:2]]
    first = replace(result.methods[0], steps=(*slow_start, *result.methods[0].steps[2:]))
    summary = summarise(replace(result, methods=(first, *result.methods[1:])))[0]
    assert summary.forward_s == Spread(0.1, 0.0)
    assert summary.training_s == pytest.approx(sum(s.total_s for s in first.steps))


def test_smoothed_losses_are_means_of_five():
    steps = [Step(i, float(i), 0, 0, 0, 0, 0) for i in range(7)]
    assert smoothed_losses(steps) == [0, 0.5, 1, 1.5, 2, 3, 4]


def test_target_is_reached_by_the_baseline_itself_at_its_end(result: DemoResult):
    baseline = summarise(result)[0]
    assert baseline.target.reached_s == pytest.approx(baseline.training_s)


def test_target_missed_by_a_method_with_more_loss(result: DemoResult):
    powersgd = summarise(result)[2]
    assert powersgd.target.reached_s is None


def test_compare_tells_a_clear_difference_from_noise(result: DemoResult):
    ddp, fp16, powersgd, int4 = summarise(result)
    against_ddp = compare(int4, ddp)
    assert against_ddp.is_time_clear
    assert against_ddp.speedup == pytest.approx(2.012 / 0.4121, rel=1e-3)
    assert not compare(int4, powersgd).is_time_clear
    assert not compare(fp16, ddp).is_loss_clear
    assert compare(powersgd, ddp).is_loss_clear


def test_comparisons_take_the_fastest_hook(result: DemoResult):
    found = comparisons(summarise(result))
    assert [c.other.method.name for c in found] == ["ddp", "powersgd"]
