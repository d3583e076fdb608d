"""The sweep report as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gradwire.report.sweep.summary import slices
from gradwire.report.sweep.words import SweepTable, heading, notes, setting, tables, verdicts
from gradwire.report.wide import WideTable
from gradwire.sim.sweep import SweepResult


def sweep_text(result: SweepResult) -> Group:
    """Return the report for printing on a rich console.

    Args:
        result: What the sweep simulated.
    """
    parts: list[RenderableType] = []
    for part in slices(result):
        parts += [Text(heading(part), "bold")]
        for table in tables(part):
            parts += [Text(f"{table.title}. {table.caption}"), _wide(table), Text()]
    parts += [Text(sentence) for sentence in verdicts(result)]
    parts += [Text(f"- {note}", "dim") for note in notes()]
    return Group(*parts, Text(setting(result), "dim"))


def _wide(table: SweepTable) -> WideTable:
    rows = [(name, [Text(cell) for cell in cells]) for name, cells in table.rows]
    return WideTable(table.corner, table.columns, rows)
