"""The report as text: a table, the verdicts, the notes."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire.report.model import DemoResult
from gradwire.report.summary import summarise
from gradwire.report.words import notes, setting_line, table, verdicts


def render_text(result: DemoResult) -> Group:
    """Return the report for printing on a rich console.

    Args:
        result: What the demo measured.
    """
    summaries = summarise(result)
    rows = table(summaries)
    grid = Table(title=setting_line(result), title_justify="left", title_style="")
    grid.add_column("", no_wrap=True)
    for i, summary in enumerate(summaries):
        style = "bold" if summary.method.family == "gradwire" else ""
        widest = max(len(row.cells[i]) for row in rows)
        grid.add_column(summary.method.label, justify="right", style=style, min_width=widest)
    for row in rows:
        grid.add_row(row.heading, *row.cells)
    verdict = Text("\n".join(verdicts(result)), style="bold")
    return Group(grid, verdict, Text("\n".join(f"- {note}" for note in notes(result)), "dim"))
