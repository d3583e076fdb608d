"""The table of relative errors, measured again."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import SpecError
from gradwire.measure.errors import measure_errors
from gradwire.plan import Plan
from gradwire.planner.errors import NORMAL_ERRORS, Losses, parse_errors
from gradwire.planner.harm import harm
from gradwire.spec import Auto, parse_reducer
from gradwire.workload import parameter


def test_codecs_lose_what_the_table_says():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1 << 18, generator=generator)
    measured = measure_errors({"x": x}, [parse_reducer(name) for name in NORMAL_ERRORS])["x"]
    for name, expected in NORMAL_ERRORS.items():
        assert measured[name] <= expected
        assert measured[name] == pytest.approx(expected, rel=0.35), name


def test_by_default_three_bits_pass_and_two_do_not():
    least = [harm(NORMAL_ERRORS[name] ** 2, feedback=True) for name in ("nearest3", "int2")]
    assert least[0] < Auto().max_harm < least[1]


def test_parameters_count_by_their_size():
    small, large = parameter("a", (1, 100)), parameter("b", (3, 100))
    losses = Losses({"a": {"int4": 0.4}, "b": {"int4": 0.2}}, [small, large])
    found = losses.error(parse_reducer("int4@broadcast"), [small, large])
    assert found == pytest.approx(((0.16 + 3 * 0.04) / 4) ** 0.5)


def test_parameters_count_by_their_squared_norm_where_it_is_known():
    quiet, loud = parameter("a", (1, 100)), parameter("b", (1, 100))
    errors = {"a": {"int4": 0.5, "rms": 1.0}, "b": {"int4": 0.1, "rms": 3.0}}
    losses, four = Losses(errors, [quiet, loud]), parse_reducer("int4@broadcast")
    assert losses.error(four, [quiet, loud]) ** 2 == pytest.approx((0.25 + 9 * 0.01) / 10)
    assert losses.harm(four, [quiet]) == pytest.approx(harm(0.25, feedback=True) / 10)
    assert losses.of_plan(Plan.of("none"), 2) == 0.0


def test_two_phases_round_twice_and_nodes_change_nothing():
    weight = parameter("a", (10, 10))
    losses = Losses({"a": {"int2": 0.7, "int4": 0.2}}, [weight])
    once, twice = (losses.error(parse_reducer(n), [weight]) for n in ("int2@broadcast", "int2"))
    assert (once, twice) == pytest.approx((0.7, (0.49 + 0.04) ** 0.5))
    inside, flat = (
        losses.harm(parse_reducer(n), [weight]) for n in ("int4@hierarchical:2", "int4")
    )
    assert inside == flat


def test_unmeasured_sparse_codecs_lose_what_they_do_not_send_and_low_rank_all():
    weight = parameter("a", (10, 10))
    losses = Losses({}, [weight])
    assert losses.error(parse_reducer("topk:0.19"), [weight]) == pytest.approx(0.9)
    assert losses.error(parse_reducer("low_rank:1"), [weight]) == 1.0
    assert losses.harm(parse_reducer("low_rank:1"), [weight]) > 1


def test_what_feedback_defers_is_measured_over_several_steps():
    x = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0))
    with_feedback, without = parse_reducer("sign@broadcast"), parse_reducer("qsgd4")
    errors = measure_errors({"x": 2 * x}, [with_feedback, without, parse_reducer("low_rank:1")])[
        "x"
    ]
    assert set(errors) == {"rms", "sign", "qsgd4"}
    assert errors["rms"] == pytest.approx(2.0, rel=0.05)
    assert errors["sign"] > 0.7  # in one step 0.6


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": 1}', '{"a": {"int4": "x"}}', '{"a": {"b": -1}}']
)
def test_other_json_is_refused(text):
    with pytest.raises(SpecError, match="errors="):
        parse_errors(text)
