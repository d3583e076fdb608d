"""A trial compares plans turn by turn, and takes nothing lossy that is not proven faster."""

import pytest

from gradwire.plan import Plan
from gradwire.planner.shortlist import Contender
from gradwire.planner.trial import Trial

ERRORS = {"none": 0.0, "bf16": 0.0017, "int8": 0.01, "int6": 0.04}


def trial(*names):
    return Trial([Contender(n, Plan.of(n), 1.0, ERRORS[n]) for n in names])


def run(trial, **turns):
    """Note turns until the trial is over; return how many there were."""
    count = 0
    while not trial.is_over:
        trial.note({c.name: [turns[c.name][count]] * 3 for c in trial.left})
        count += 1
    return count


def test_one_plan_is_not_tried():
    only = trial("int6")
    assert only.is_over
    assert only.best().name == "int6"
    assert only.step_s == {}


def test_what_is_far_behind_is_given_up_after_one_turn():
    tried = trial("none", "int6")
    assert run(tried, none=[1.3], int6=[1.0]) == 1
    assert tried.best().name == "int6"
    assert tried.step_s == {"none": 1.3, "int6": 1.0}


def test_plans_that_slow_down_together_are_compared_side_by_side():
    tried = trial("none", "int6")
    # The second turn is slow for both; by plain medians int6 would be ahead by 10 %.
    assert run(tried, none=[1.0, 1.6, 1.0, 1.3], int6=[1.01, 1.55, 1.0, 1.0]) == 4
    assert tried.best().name == "none"


@pytest.mark.parametrize(
    ("none_s", "expected"),
    [
        ([1.04, 1.04, 1.04, 1.04], "none"),  # less than the advantage that counts
        ([1.07, 1.07, 1.07, 1.07], "int6"),
        ([1.12, 1.09, 0.90, 0.90], "none"),  # as often slower as faster: nothing is proven
    ],
)
def test_float32_stays_unless_another_is_proven_faster(none_s, expected):
    tried = trial("none", "int6")
    run(tried, none=none_s, int6=[1.0] * 4)
    assert tried.best().name == expected


def test_among_lossy_plans_the_more_exact_stays_within_one_percent():
    for int8_s, expected in ((1.005, "int8"), (1.02, "int6")):
        tried = trial("int8", "int6")
        run(tried, int8=[int8_s] * 4, int6=[1.0] * 4)
        assert tried.best().name == expected


def test_one_disturbed_step_of_a_turn_does_not_count():
    tried = trial("none", "int6")
    tried.note({"none": [1.0, 1.0, 9.0], "int6": [1.0, 1.0, 1.0]})
    assert tried.step_s["none"] == 1.0
    assert not tried.is_over


def test_fewer_turns_end_sooner():
    exact, lossy = (Contender(n, Plan.of(n), 1.0, ERRORS[n]) for n in ("none", "int6"))
    trial = Trial([exact, lossy], turns=1)
    trial.note({"none": [1.02], "int6": [1.0]})
    assert trial.is_over
    assert trial.best().name == "none"
