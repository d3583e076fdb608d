"""Lines through measured times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.hardware import Line
from gradwire.measure.fit import fit_line

SIZES = tuple(1 << power for power in range(12, 27, 2))


@given(st.floats(1e-6, 1e-1), st.floats(1e-11, 1e-6))
def test_exact_times_give_their_line(fixed_s, s_per_byte):
    line = fit_line([(n, fixed_s + n * s_per_byte) for n in SIZES])
    assert line.fixed_s + SIZES[0] * line.s_per_byte == pytest.approx(
        fixed_s + SIZES[0] * s_per_byte, rel=1e-6
    )
    assert line.s_per_byte == pytest.approx(s_per_byte, rel=1e-3)
    assert line.spread == 0.0


@pytest.mark.parametrize("outlier", range(len(SIZES)))
def test_one_disturbed_measurement_hardly_matters(outlier):
    times = [(n, 1e-3 + n * 1e-8) for n in SIZES]
    times[outlier] = (SIZES[outlier], 3 * times[outlier][1])
    line = fit_line(times)
    assert line.fixed_s == pytest.approx(1e-3, rel=0.15)
    assert line.s_per_byte == pytest.approx(1e-8, rel=0.15)


def test_no_part_is_negative():
    falling = fit_line([(1000, 3.0), (2000, 2.0)])
    assert falling.s_per_byte == 0.0
    steep = fit_line([(1000, 1.0), (2000, 4.0)])
    assert steep.fixed_s == 0.0
    assert steep.s_per_byte > 0.0


def test_one_size_is_a_fixed_cost():
    assert fit_line([(1000, 2.0)]) == Line(2.0, 0.0, 0.0)


def test_spread_is_the_median_distance():
    line = fit_line([(1000, 1.0), (1000, 1.2), (2000, 2.0), (2000, 2.4)])
    assert line.spread == pytest.approx(0.09, abs=0.02)


@pytest.mark.parametrize("points", [[], [(1, 0.0)], [(1, 1.0), (2, -1.0)]])
def test_impossible_times_are_refused(points):
    with pytest.raises(SpecError):
        fit_line(points)
