from __future__ import annotations

import json
import subprocess
import sys

from gradwire.report.model import DemoResult


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
