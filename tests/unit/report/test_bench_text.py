from __future__ import annotations

import csv
import io
from dataclasses import replace

from hypothesis import given
from rich.console import Console

from gradwire.report import bench_csv, bench_json, bench_text
from gradwire.report.results import BenchResult
from made_results import mode
from strategies import BENCH_RESULTS


def printed(result: BenchResult, other: BenchResult | None = None, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(bench_text(result, other, euro_per_rank_hour=2.0))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_bench_text_shows_tables_doubts_verdicts_and_matrix(bench, matches_snapshot):
    matches_snapshot("bench.txt", printed(bench))


def test_bench_text_breaks_columns_that_do_not_fit(bench):
    narrow = printed(bench, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert all(mode.label.split()[-1] in narrow for mode in bench.cells[0].modes)


def test_comparison_tells_changes_from_noise(bench):
    cell = bench.cells[0]
    faster = mode("int4", "gradwire int4", "gradwire", 0.1)
    later = replace(bench, cells=(replace(cell, modes=(cell.modes[0], faster)),))
    text = printed(bench, later, width=120)
    before = " ".join(text[: text.index("3.1 M parameters")].split())
    assert "1042 ± 13 │ 1042 ± 13 │ +0.0 ± 2.4 │ +0.0 │ +0.000 │ within noise" in before
    assert "163 ± 2 │ 133 ± 1 │ -18.6 ± 1.8 │ -23.1 │ +0.000 │ faster" in before
    assert "Only in the first: text, 2 ranks, 10 Gbit/s, 1 ms: plain DDP, fp16 hook" in before


def test_comparison_names_what_differs_in_the_environment(bench):
    later = replace(bench, environment=replace(bench.environment, torch="2.14.0"))
    assert "Different torch: 2.13.0, then 2.14.0." in printed(bench, later)


@given(BENCH_RESULTS)
def test_any_result_survives_its_file_and_can_be_reported(result: BenchResult):
    assert BenchResult.from_json(result.to_json()) == result
    assert printed(result, result)
    assert bench_json(result, result)
    rows = list(csv.DictReader(io.StringIO(bench_csv(result))))
    assert [row["mode"] for row in rows] == [m.mode for cell in result.cells for m in cell.modes]
