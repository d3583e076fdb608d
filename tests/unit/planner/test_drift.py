"""When costs have moved so far that a plan should be chosen anew."""

from __future__ import annotations

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.planner.drift import drifted


def speeds(rate, encode=1e-9, spread=0.0, name="int4"):
    link = LinkSpeed(1e-4, rate, spread)
    return Hardware(Device(), {f"encode {name}": Line(0.0, encode)}, link, link)


def test_small_changes_do_not_count():
    assert drifted(speeds(1e8), speeds(1.1e8)) == {}


def test_changes_in_both_directions_count():
    found = drifted(speeds(1e8), speeds(0.5e8, encode=0.5e-9))
    assert set(found) == {"encode int4", "link within", "link between"}
    assert found["encode int4"] == 0.5
    assert 1.9 < found["link within"] < 2.0


def test_changes_within_the_scatter_do_not_count():
    assert drifted(speeds(1e8, spread=0.3), speeds(0.7e8, spread=0.3)) == {}


def test_what_only_one_has_measured_is_not_compared():
    assert drifted(speeds(1e8), speeds(1e8, encode=1.0, name="int8")) == {}
