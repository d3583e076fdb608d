"""The table of relative errors, measured again."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import SpecError
from gradwire.measure.errors import measure_errors
from gradwire.planner.errors import MAX_ERROR, NORMAL_ERRORS, parse_errors, relative_error
from gradwire.spec import parse_reducer
from gradwire.workload import parameter


def test_codecs_lose_what_the_table_says():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1 << 18, generator=generator)
    measured = measure_errors({"x": x}, [parse_reducer(name) for name in NORMAL_ERRORS])["x"]
    for name, expected in NORMAL_ERRORS.items():
        assert measured[name] <= expected
        assert measured[name] == pytest.approx(expected, rel=0.35), name


def test_default_limit_lies_between_six_and_five_bits():
    assert NORMAL_ERRORS["int6"] < MAX_ERROR < NORMAL_ERRORS["int5"]


def test_parameters_count_by_their_size():
    small, large = parameter("a", (1, 100)), parameter("b", (3, 100))
    errors = {"a": {"int4": 0.4}, "b": {"int4": 0.2}}
    found = relative_error(parse_reducer("int4"), [small, large], errors)
    assert found == pytest.approx(((0.16 + 3 * 0.04) / 4) ** 0.5)


def test_unmeasured_sparse_codecs_lose_what_they_do_not_send():
    weight = parameter("a", (10, 10))
    assert relative_error(parse_reducer("topk:0.19"), [weight], {}) == pytest.approx(0.9)
    assert relative_error(parse_reducer("low_rank:1"), [weight], {}) == 1.0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": 1}', '{"a": {"int4": "x"}}', '{"a": {"b": -1}}']
)
def test_other_json_is_refused(text):
    with pytest.raises(SpecError, match="errors="):
        parse_errors(text)
