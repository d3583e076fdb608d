"""The bench report as text: a table, doubts and a verdict a cell; the matrix."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.report.bench.changes import Changes, change_texts, compare_results
from gradwire.report.bench.matrix import Entry, Matrix, speedup_matrix
from gradwire.report.bench.summary import CellSummary, summarise_bench
from gradwire.report.bench.verdicts import prediction, verdict
from gradwire.report.bench.words import (
    Marked,
    bench_notes,
    bench_setting,
    bench_table,
    cell_setting,
    reasons,
    times,
)
from gradwire.report.results import BenchResult
from gradwire.report.wide import WideTable


def bench_text(
    result: BenchResult,
    other: BenchResult | None = None,
    *,
    euro_per_rank_hour: float | None = None,
) -> Group:
    """Return the report for printing on a rich console.

    Args:
        result: What the bench measured.
        other: A later result, to compare with.
        euro_per_rank_hour: Price of one rank, for the cost of a training.
    """
    summaries = summarise_bench(result, euro_per_rank_hour=euro_per_rank_hour)
    parts: list[RenderableType] = []
    if other is not None:
        later = summarise_bench(other, euro_per_rank_hour=euro_per_rank_hour)
        parts += [*_changes(compare_results(summaries, later)), Text()]
        summaries, result = later, other
    for summary in summaries:
        parts += [*_cell(summary), Text()]
    parts += [Text("Times plain DDP's speed", "bold"), _matrix(speedup_matrix(summaries))]
    if line := prediction(summaries):
        parts.append(Text(line))
    parts += [Text(f"- {note}", "dim") for note in bench_notes()]
    return Group(*parts, Text(bench_setting(result), "dim"))


def _cell(summary: CellSummary) -> list[RenderableType]:
    ours = frozenset(m.mode.label for m in summary.modes if m.mode.family == "gradwire")
    rows = [(row.heading, [_marked(cell) for cell in row.cells]) for row in bench_table(summary)]
    doubts = [Text(f"[{i}] {line}", "yellow") for i, line in enumerate(reasons(summary), 1)]
    return [
        Text(cell_setting(summary.cell)),
        WideTable("", [m.mode.label for m in summary.modes], rows, ours),
        *doubts,
        Text(verdict(summary), "bold"),
    ]


def _marked(cell: Marked) -> Text:
    marks = "".join(f"[{mark}]" for mark in cell.marks)
    return Text.assemble(cell.text, (f" {marks}" if marks else "", "yellow"))


def _matrix(matrix: Matrix) -> WideTable:
    rows = [(title, [_entry(entry) for entry in entries]) for title, entries in matrix.rows]
    return WideTable("Cell (? is doubtful, see there)", matrix.modes, rows)


def _entry(entry: Entry | None) -> Text:
    if entry is None:
        return Text("")
    text = Text(times(entry.speedup))
    if entry.speedup is not None and entry.speedup.is_clear:
        text.stylize("green" if entry.speedup.low > 1 else "red")
    return Text.assemble(text, (" ?" if entry.doubts else "", "yellow"))


def _changes(changes: Changes) -> list[RenderableType]:
    table = Table(title="From the first result to the second", title_justify="left")
    table.add_column("Cell and mode")
    for heading in ("Before, ms", "After, ms", "Step, %", "Sent, %", "Validation loss"):
        table.add_column(heading, justify="right")
    table.add_column("Step is")
    for change in changes.changes:
        table.add_row(
            f"{change.cell}: {change.mode}",
            *change_texts(change),
            change.verdict,
        )
    return [table, *_lines(changes.unmatched)]


def _lines(lines: Sequence[str]) -> list[RenderableType]:
    return [Text(line) for line in lines]
