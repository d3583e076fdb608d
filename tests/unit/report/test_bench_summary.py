from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.report.bench.doubts import Doubt, doubts, gather
from gradwire.report.bench.matrix import speedup_matrix
from gradwire.report.bench.overview import overview
from gradwire.report.bench.summary import CellSummary, Speedup, speedup, summarise_bench
from gradwire.report.bench.verdicts import prediction, verdict
from gradwire.report.bench.words import cell_setting
from gradwire.report.model import Validation
from gradwire.report.results import BenchResult, Cell, ModeResult, Round, StepTimes
from made_results import bench_result, mode


def rounds(*durations_s: float) -> tuple[Round, ...]:
    return tuple(Round((StepTimes(d / 2, d / 2, 0.0, 0.0),) * 3, 100) for d in durations_s)


def summarise_cell(cell: Cell, modes: tuple[ModeResult, ...]) -> CellSummary:
    result = replace(bench_result(), cells=(replace(cell, modes=modes),))
    (summary,) = summarise_bench(result)
    return summary


def test_speedup_pairs_rounds_that_took_turns():
    # Both slow down together: each round says 2, medians of all steps would not.
    slow = ModeResult("none", "plain DDP", "ddp", rounds(2.0, 4.0, 8.0, 2.0))
    fast = ModeResult("int4", "gradwire int4", "gradwire", rounds(1.0, 2.0, 4.0))
    assert speedup(slow, fast) == Speedup(2.0, 2.0, 2.0)
    assert speedup(None, fast) is None
    assert speedup(slow, ModeResult("fp8", "fp8", "gradwire")) is None


def test_speedup_is_clear_only_where_all_rounds_agree():
    assert Speedup(1.2, 1.1, 1.3).is_clear
    assert Speedup(0.8, 0.7, 0.9).is_clear
    assert not Speedup(1.2, 0.9, 1.3).is_clear
    assert not Speedup(0.997, 0.996, 0.998).is_clear


def test_baseline_is_the_fastest_plain_ddp(bench: BenchResult):
    cell = bench.cells[0]
    faster = mode("none@5", "plain DDP, 5 MB", "ddp", 0.9)
    summary = summarise_cell(cell, (*cell.modes, faster))
    assert summary.ddp is faster
    assert summary.hook.mode == "powersgd1@1000"
    assert summary.modes[-1].numbers.over_ddp == Speedup(1.0, 1.0, 1.0)
    assert summary.modes[0].numbers.over_ddp.median < 1


def test_numbers_say_what_was_sent_and_how_fast(bench: BenchResult):
    ddp, *_, int4, missing = summarise_bench(bench)[0].modes
    assert missing.numbers is None
    assert int4.numbers.dense_bytes == ddp.numbers.sent_bytes == 12_500_000
    assert int4.numbers.times_smaller == pytest.approx(1 / 0.13)
    assert int4.numbers.row == pytest.approx(0.015 / 0.13, rel=0.05)
    busy_s = 0.015 + int4.numbers.exposed_s.median
    assert int4.numbers.algbw_bytes_per_s == pytest.approx(4 * 3_100_000 / busy_s)
    assert int4.numbers.busbw_bytes_per_s == pytest.approx(1.5 * int4.numbers.algbw_bytes_per_s)


def test_dense_bytes_come_from_the_model_where_plain_ddp_did_not_run(bench: BenchResult):
    cell = bench.cells[0]
    summary = summarise_cell(cell, cell.modes[4:5])
    assert summary.modes[0].numbers.dense_bytes == 1.5 * 4 * 3_100_000
    assert summary.modes[0].numbers.over_ddp is None


def test_loss_reached_and_its_cost(bench: BenchResult):
    ddp, _, powersgd, _, int4, _ = summarise_bench(bench, euro_per_rank_hour=9.0)[0].modes
    assert ddp.numbers.reached_s == pytest.approx(51.6)
    assert powersgd.numbers.reached_s is None
    assert powersgd.numbers.cost_eur is None
    assert int4.numbers.cost_eur == pytest.approx(int4.numbers.reached_s / 3600 * 4 * 9)


def test_prediction_error_and_its_summary(bench: BenchResult):
    summaries = summarise_bench(bench)
    numbers = summaries[0].modes[0].numbers
    assert numbers.prediction_error == pytest.approx(numbers.predicted_s / 1.042 - 1)
    assert prediction(summaries).startswith("Predicted step times are off by")
    assert prediction([]) == ""


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (mode("a", "a", "hook", 0.1, rounds=2), "rounds"),
        (replace(mode("a", "a", "hook", 0.1), rounds=rounds(1, 2, 1, 2)), "spread"),
        (replace(mode("a", "a", "hook", 0.1), digests=("x", "y")), "replicas"),
        (ModeResult("a", "a", "hook", reason="no"), "missing"),
        (
            replace(
                mode("a", "a", "hook", 0.1),
                rounds=tuple(replace(r, foreign_cores=0.31) for r in rounds(1, 1, 1)),
            ),
            "busy",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_doubt_is_found_and_explained(made: ModeResult, kind: str):
    (doubt,) = doubts(made)
    assert doubt.kind == kind
    assert doubt.reason == gather([doubt])[0]
    assert "a" in doubt.reason.rpartition(": ")[2]


def test_doubts_of_a_kind_share_a_line_that_names_the_modes():
    found = [Doubt("busy", "a", "2.0"), Doubt("rounds", "b", "1"), Doubt("busy", "b", "1.0")]
    assert gather(found) == [
        "fewer than 3 rounds, so that a difference may be chance: b (1)",
        "other programs kept more than 0.3 cores busy: a (2.0), b (1.0)",
    ]


def test_no_doubt_about_a_quiet_run():
    assert doubts(mode("a", "a", "hook", 0.1)) == ()


def test_matrix_holds_every_mode_and_carries_doubts_of_the_baseline(bench: BenchResult):
    matrix = speedup_matrix(summarise_bench(bench))
    assert len(matrix.modes) == 6
    title, entries = matrix.rows[2]
    assert title == "digits, 2 ranks, no link limit"
    assert entries[1] is None
    assert entries[4].speedup.median > 1
    assert "steps spread by more than 10 %: plain DDP (± 23 %)" in gather(entries[4].doubts)


def test_verdict_says_where_gradwire_loses(bench: BenchResult):
    cell = bench.cells[0]
    slow = mode("int8", "gradwire int8", "gradwire", 1.5, worse=0.4)
    summary = summarise_cell(cell, (*cell.modes[:3], slow))
    assert verdict(summary) == (
        "Fastest: PowerSGD hook, 143 ms a step; 7.28 (7.27-7.30) times the speed of plain DDP. "
        "gradwire LOSES: its best, gradwire int8, reaches 0.09 of that speed. "
        "Slower than plain DDP: gradwire int8 (0.67). "
        "LOSES in validation loss against plain DDP: gradwire int8 (+0.400)."
    )


def test_verdict_calls_a_diverged_loss_one(bench: BenchResult):
    cell = bench.cells[0]
    lost = replace(cell.modes[4], validations=(Validation(10, float("nan"), 0.1),))
    summary = summarise_cell(cell, (cell.modes[0], lost))
    assert "LOSES in validation loss against plain DDP: gradwire int4 (diverged)." in verdict(
        summary
    )


def test_verdict_without_any_run(bench: BenchResult):
    summary = summarise_cell(bench.cells[0], bench.cells[0].modes[-1:])
    assert verdict(summary) == "No mode ran."


def test_computation_alone_is_shown_and_not_ranked(bench: BenchResult):
    cell = bench.cells[0]
    alone = mode("nosync", "computation alone", "compute", 0.0)
    summary = summarise_cell(cell, (alone, *cell.modes))
    assert verdict(summary).startswith("Fastest: gradwire int2")
    (_, entries), *_ = speedup_matrix([summary]).rows
    assert entries[0].speedup.median == pytest.approx(1.042 / 0.032, rel=0.02)
    assert [entry.is_fastest for entry in entries].index(True) == 4
    assert [entry.is_bound for entry in entries].index(True) == 0


def test_modes_that_rounds_do_not_tell_apart_are_level(bench: BenchResult):
    first = ModeResult("a", "a", "hook", rounds(1.0, 1.0, 1.0))
    level = ModeResult("b", "b", "gradwire", rounds(1.1, 0.9, 1.1))
    slower = ModeResult("c", "c", "gradwire", rounds(1.1, 1.1, 1.1))
    summary = summarise_cell(bench.cells[0], (slower, level, first))
    assert [m.mode.mode for m in summary.level()] == ["a", "b"]


def test_overview_counts_wins_ties_and_losses(bench: BenchResult):
    cell = bench.cells[0]
    lost = replace(cell, modes=(cell.modes[0], cell.modes[2], mode("x", "x", "gradwire", 0.3)))
    lines = overview(summarise_bench(replace(bench, cells=(*bench.cells, lost))))
    assert lines[0] == (
        "gradwire's best mode is the fastest in 3 of 4 cells, level with the fastest in 0, and "
        "LOSES in 1: to PowerSGD hook in 1."
    )
    assert lines[1].startswith("Against plain DDP that mode is 1.42 (digits, 2 ranks")
    assert lines[2].startswith("A mode of gradwire ended with a validation loss more than 1 %")
    assert lines[-1].endswith("carry a mark: there is reason to doubt them.")


def test_overview_of_nothing_is_empty():
    assert overview([]) == []


def test_setting_line_names_what_was_asked_for(bench: BenchResult):
    cell = replace(bench.cells[0], settings={"ranks": 4, "seed": 7, "modes": [{}], "round_s": 1.0})
    assert cell_setting(cell).endswith("one-way latency 1 ms; seed 7; round 1 s.")
    cell = replace(cell, latency_by="delay line")
    assert "one-way latency 1 ms by delay line; seed 7" in cell_setting(cell)
