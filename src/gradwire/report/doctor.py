"""`gradwire doctor`'s findings as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gradwire.doctor import Check


def render_checks(checks: Sequence[Check]) -> Table:
    """Return the checks for printing on a rich console; equal reasons share a row."""
    table = Table()
    for heading in ("For", "What", "Here", "Version, use, or reason"):
        table.add_column(heading)
    missing: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check.reason is not None:
            missing.setdefault((check.area, check.reason), []).append(check.name)
    for check in checks:
        if check.reason is None:
            table.add_row(check.area, check.name, Text("yes", "green"), Text(check.detail))
        elif names := missing.pop((check.area, check.reason), None):
            row = (check.area, ", ".join(names))
            table.add_row(*row, Text("no", "yellow"), Text(check.reason))
    return table
