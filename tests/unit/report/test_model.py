from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gradwire.errors import SpecError
from gradwire.report.model import DemoResult
from gradwire.report.results import BenchResult, Round


def test_json_holds_every_step_and_no_infinity(result: DemoResult):
    data = json.loads(result.to_json(), parse_constant=refuse)
    assert data["format"] == 1
    assert [len(m["steps"]) for m in data["methods"]] == [12] * 4
    assert data["methods"][3]["steps"][0]["sent_bytes"] == 2_502_500


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_report_loads_no_torch():
    code = "import gradwire.report.text, gradwire.report.html, sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_demo_result_survives_its_file(result: DemoResult):
    assert DemoResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "methods": [{}]}'])
def test_demo_result_refuses_what_is_none(text: str):
    with pytest.raises(SpecError):
        DemoResult.from_json(text)


@pytest.mark.parametrize("text", ["{", '{"format": 1, "cells": [{"modes": []}]}'])
def test_bench_result_refuses_what_is_none(text: str):
    with pytest.raises(SpecError):
        BenchResult.from_json(text)


def test_round_without_steps_is_refused():
    with pytest.raises(SpecError, match="at least one step"):
        Round((), 0)
