"""Below which link speed compression pays."""

from __future__ import annotations

import math

import pytest

from gradwire.hardware import LinkSpeed
from gradwire.planner.break_even import break_even_alone, break_even_overlapped
from gradwire.planner.search import EVEN
from gradwire.planner.step import Setting
from gradwire.workload import Layer, Workload, parameter
from made_hardware import accel_setting, hardware


def exposed(world_size=4, **speeds):
    """A model whose exchange nothing hides, and that computes next to nothing."""
    layer = Layer("fc", (parameter("fc.weight", (1024, 1024)),), 0.0, 1e-9)
    return Setting(Workload("w", (layer,)), hardware(LinkSpeed(0.0, 1.0), **speeds), world_size)


def test_search_finds_the_closed_form_where_nothing_overlaps():
    setting = exposed()
    alone, searched = (f(setting, "int4") for f in (break_even_alone, break_even_overlapped))
    # The search asks for a gain of EVEN, the closed form for any.
    assert searched == pytest.approx(alone, rel=5 * EVEN)
    assert searched < alone


def test_closed_form_is_bytes_saved_over_time_spent():
    num_bytes = 4 << 20
    spent = num_bytes * (1 / 4e9 + 1 / 8e9 + 1 / 16e9 + 1 / 8e9) - num_bytes / 8e9
    small = 2 * 3 * (num_bytes // 4 // 8 + num_bytes // 4 // 256)
    assert break_even_alone(exposed(), "int4") == pytest.approx(
        (1.5 * num_bytes - small) / spent, rel=0.02
    )


def test_a_codec_that_costs_nothing_always_pays():
    setting = exposed(encode=0.0, decode=0.0)
    assert break_even_alone(setting, "int8") == math.inf


def test_faster_codecs_pay_on_faster_links():
    rates = [break_even_overlapped(exposed(encode=e, decode=e), "int4") for e in (4e-9, 1e-9)]
    assert rates[0] < rates[1]


def test_what_backward_hides_anyway_needs_no_compression():
    setting = accel_setting("1Gbit/s", 2, 5)
    assert break_even_overlapped(setting, "int4") < break_even_alone(setting, "int4")


def test_what_cannot_be_used_never_pays():
    assert break_even_alone(exposed(world_size=64), "int8@broadcast") == 0.0
    assert break_even_overlapped(exposed(world_size=64), "int8@broadcast") == 0.0
