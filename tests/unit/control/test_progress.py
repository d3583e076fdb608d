"""Schedules of the floor, and settings that choose them."""

from __future__ import annotations

import pytest

from gradwire.control.progress import Constant, ErrorBounded, Ramp, schedule_of
from gradwire.spec import Adaptive


def test_rising_and_falling_schedules_end_where_they_should():
    rising = schedule_of(Adaptive(schedule="rising", floor=2, peak_floor=8, cap=8, steps=100))
    falling = schedule_of(Adaptive(schedule="falling", floor=2, peak_floor=8, cap=8, steps=100))
    up = [rising.floor(step, 0.3) for step in range(0, 200, 10)]
    down = [falling.floor(step, 0.3) for step in range(0, 200, 10)]
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert (up[0], up[-1], down[0], down[-1]) == (2, 8, 8, 2)
    assert set(up) == {2, 3, 4, 5, 6, 8}


def test_error_bounded_schedule_stays_between_its_floors():
    schedule = ErrorBounded(3, 6, 0.2)
    assert [schedule.floor(step, 9.0) for step in range(5)] == [4, 5, 6, 6, 6]
    assert [schedule.floor(step, 0.15) for step in range(3)] == [6, 6, 6]
    assert [schedule.floor(step, 0.01) for step in range(5)] == [5, 4, 3, 3, 3]


def test_settings_choose_the_schedule():
    assert isinstance(schedule_of(Adaptive()), ErrorBounded)
    assert schedule_of(Adaptive(schedule="constant", floor=4)) == Constant(4)
    assert schedule_of(Adaptive(schedule="falling", steps=9)) == Ramp(4, 2, 9)


@pytest.mark.parametrize("error", [0.0, 0.1, 5.0])
def test_ramp_does_not_look_at_the_error(error):
    assert Ramp(3, 6, 10).floor(5, error) == Ramp(3, 6, 10).floor(5, 1.0)
