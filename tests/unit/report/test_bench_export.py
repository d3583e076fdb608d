from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from gradwire.report import as_bench, bench_csv, bench_json
from gradwire.report.model import Validation


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_json_summary_holds_numbers_doubts_and_verdicts(bench):
    data = json.loads(bench_json(bench), parse_constant=refuse)
    vgg = data["cells"][0]
    assert (vgg["plain_ddp"], vgg["best_hook"]) == ("none@25", "powersgd1@1000")
    assert vgg["verdict"].startswith("Fastest: gradwire int2")
    assert vgg["modes"][1]["over_ddp"]["median"] == pytest.approx(1.94, abs=0.01)
    assert vgg["modes"][1]["doubts"][0]["kind"] == "rounds"
    assert vgg["modes"][5]["reason"] == "no kernel for <fp8> on this CPU"
    assert "changes" not in data


def test_json_summary_of_two_holds_changes(bench):
    data = json.loads(bench_json(bench, bench), parse_constant=refuse)
    change = data["changes"]["vgg, 4 ranks, 100 Mbit/s, 1 ms"][0]
    assert (change["mode"], change["step"], change["verdict"]) == ("plain DDP", 0, "within noise")
    assert data["remarks"] == []


def test_json_summary_writes_null_for_what_json_lacks(bench):
    cell = bench.cells[0]
    mode = cell.modes[4]
    hidden = tuple(
        replace(r, steps=tuple(replace(s, exposed_s=0.0) for s in r.steps)) for r in mode.rounds
    )
    lost = replace(mode, rounds=hidden, validations=(Validation(1, float("inf"), 0.0),))
    text = bench_json(replace(bench, cells=(replace(cell, modes=(lost,)),)))
    (numbers,) = json.loads(text, parse_constant=refuse)["cells"][0]["modes"]
    assert numbers["row"] is None
    assert numbers["exposed_s"]["median"] == 0
    assert numbers["validation"]["loss"] is None


def test_csv_has_a_row_a_mode_and_the_same_columns_for_all(bench):
    rows = list(csv.DictReader(io.StringIO(bench_csv(bench))))
    assert len(rows) == 14
    assert (rows[4]["mode"], rows[4]["ranks"], rows[4]["doubts"]) == ("int4", "4", "")
    assert float(rows[4]["step_s_median"]) == pytest.approx(0.163, abs=0.001)
    assert rows[5]["step_s_median"] == ""
    assert "the ranks ended with different parameters" in rows[13]["doubts"]
    alone = replace(bench, cells=(replace(bench.cells[0], modes=bench.cells[0].modes[5:]),))
    assert bench_csv(alone).splitlines()[0] == bench_csv(bench).splitlines()[0]


def test_demo_result_becomes_one_cell_with_one_round_a_mode(result):
    bench = as_bench(result)
    (cell,) = bench.cells
    assert (cell.model, cell.ranks, cell.network) == ("text", 2, "shaped")
    assert [len(m.rounds) for m in cell.modes] == [1] * 4
    assert len(cell.modes[0].rounds[0].steps) == 10
    assert cell.modes[0].elapsed_s == (pytest.approx(24.144),)
    assert as_bench(bench) is bench
