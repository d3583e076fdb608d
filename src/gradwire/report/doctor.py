"""`gradwire doctor`'s findings as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gradwire.doctor import Check


def render_checks(checks: Sequence[Check]) -> Table:
    """Return one row a check, for printing on a rich console."""
    table = Table()
    for heading in ("For", "What", "Here", "Version, use, or reason"):
        table.add_column(heading)
    for check in checks:
        here = Text("yes", "green") if check.is_available else Text("no", "yellow")
        table.add_row(check.area, check.name, here, Text(check.reason or check.detail))
    return table
