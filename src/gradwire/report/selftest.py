"""What `gradwire doctor --selftest` has found, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gradwire.measure.selftest import Parity


def render_parity(found: Sequence[Parity]) -> Table:
    """Return one row a kernel, for printing on a rich console."""
    table = Table(title="Kernels against the reference, bit by bit", title_style="")
    for heading in ("kernel", "compared", "result"):
        table.add_column(heading)
    for parity in found:
        result = Text("equal", "green") if parity.comparisons else Text("not compared", "yellow")
        if parity.mismatch is not None:
            result = Text(parity.mismatch, "red")
        table.add_row(parity.op, str(parity.comparisons), result)
    return table
