"""The bench report as text: a table, doubts and a verdict a cell; the matrix."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.report.bench.changes import (
    CHANGE_HEADINGS,
    Changes,
    change_texts,
    compare_results,
)
from gradwire.report.bench.doubts import legend, marks
from gradwire.report.bench.matrix import Entry, Matrix, speedup_matrix
from gradwire.report.bench.overview import overview
from gradwire.report.bench.summary import CellSummary, summarise_bench
from gradwire.report.bench.verdicts import verdict
from gradwire.report.bench.words import (
    Marked,
    bench_facts,
    bench_intro,
    bench_notes,
    bench_table,
    cell_setting,
    reasons,
    times,
)
from gradwire.report.results import BenchResult
from gradwire.report.summary import format_milliseconds
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
    parts: list[RenderableType] = []
    if other is not None:
        parts += [*_changes(compare_results(result, other)), Text()]
        result = other
    summaries = summarise_bench(result, euro_per_rank_hour=euro_per_rank_hour)
    for summary in summaries:
        parts += [*_cell(summary), Text()]
    parts += [
        Text("Times plain DDP's speed, or the step where that did not run", "bold"),
        *_matrix(speedup_matrix(summaries)),
        *(Text(line, "bold") for line in overview(summaries)),
    ]
    parts += [Text(f"- {note}", "dim") for note in bench_notes()]
    facts = ", ".join(f"{name} {value}" for name, value in bench_facts(result).items())
    return Group(*parts, Text(f"{bench_intro(result)} {facts}.", "dim"))


def _cell(summary: CellSummary) -> list[RenderableType]:
    quantities = bench_table(summary)
    rows = [
        (m.mode.label, [_marked(row.cells[i]) for row in quantities])
        for i, m in enumerate(summary.modes)
    ]
    ours = frozenset(m.mode.label for m in summary.modes if m.mode.family == "gradwire")
    doubts = [Text(f"[{mark}] {line}", "yellow") for mark, line in reasons(summary)]
    return [
        Text(cell_setting(summary.cell)),
        WideTable("Mode", [row.heading for row in quantities], rows, ours),
        *doubts,
        Text(verdict(summary), "bold"),
    ]


def _marked(cell: Marked) -> Text:
    return Text.assemble(cell.text, (f" [{cell.marks}]" if cell.marks else "", "yellow"))


def _matrix(matrix: Matrix) -> list[RenderableType]:
    found = [entry for _, entries in matrix.rows for entry in entries if entry]
    letters = marks(doubt for entry in found for doubt in entry.doubts)
    table = WideTable(
        "Cell", matrix.modes, [(title, [*map(_entry, row)]) for title, row in matrix.rows]
    )
    return [table, *(Text(f"[{mark}] {line}", "yellow") for mark, line in legend(letters))]


def _entry(entry: Entry | None) -> Text:
    if entry is None:
        return Text("")
    if entry.step_s is None:
        text = Text("did not run")
    elif entry.speedup is None:
        text = Text(f"{format_milliseconds(entry.step_s)} ms")
    else:
        text = Text(times(entry.speedup))
    if entry.speedup is not None and entry.speedup.is_clear:
        text.stylize("green" if entry.speedup.low > 1 else "red")
    letters = marks(entry.doubts)
    return Text.assemble(text, (f" [{letters}]" if letters else "", "yellow"))


def _changes(changes: Changes) -> list[RenderableType]:
    parts: list[RenderableType] = [Text("From the first result to the second", "bold")]
    for title, rows in changes.cells.items():
        table = Table(title=title, title_justify="left", title_style="")
        table.add_column("Mode")
        for heading in CHANGE_HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("Step is")
        for change in rows:
            table.add_row(change.mode, *change_texts(change), change.verdict)
        parts.append(table)
    return [*parts, *(Text(line) for line in changes.remarks)]
