"""History: each step is told once, and a stale residual is warned of once."""

import pytest

from gradwire.engine.history import History
from gradwire.engine.stats import BucketStats, StepStats


def step(number, ratio=1.0):
    bucket = BucketStats(0, 1, 80, 10, 10, 0.0, 0.0, 0.0, 0.0, gradient_ratio=ratio)
    return StepStats(number, (bucket,), 0.0, 0.0, is_finite=True)


def test_steps_reach_all_listeners_in_order_and_once():
    seen = []
    history = History([lambda s: seen.append(("a", s.step)), lambda s: seen.append(("b", s.step))])
    history.add(step(0))
    history.add(step(1))
    assert seen == []
    history.report()
    history.report()
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert (history.sent_bytes, history.dense_bytes) == (20, 160)


def test_only_the_latest_hundred_steps_are_kept_and_all_are_counted():
    history = History([])
    for number in range(150):
        history.add(step(number))
    assert [history.recent[0].step, history.recent[-1].step, len(history.recent)] == [50, 149, 100]
    assert history.sent_bytes == 1500


def test_a_residual_far_above_the_gradient_is_warned_of_when_it_begins():
    history = History([])
    history.add(step(0, ratio=2000.0))
    history.add(step(1, ratio=3000.0))
    with pytest.warns(RuntimeWarning, match=r"step 0: .* 2000 times") as caught:
        history.report()
    assert len(caught) == 1
