"""Speed-ups over plain DDP of all modes in all cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradwire.report.bench.doubts import Doubt
from gradwire.report.bench.summary import CellSummary, Speedup
from gradwire.report.bench.words import cell_title


class Entry(NamedTuple):
    """One mode in one cell.

    Attributes:
        step_s: Median; None where the mode did not run.
        doubts: Why to doubt the speed-up.
        is_fastest: Whether no mode that exchanges gradients was clearly faster.
        is_bound: Whether it exchanges nothing, and only shows what could be gained.
    """

    speedup: Speedup | None = None
    step_s: float | None = None
    doubts: tuple[Doubt, ...] = ()
    is_fastest: bool = False
    is_bound: bool = False

    @property
    def has_run(self) -> bool:
        """Whether there is anything to show."""
        return self.step_s is not None


class Matrix(NamedTuple):
    """Cells by modes.

    Attributes:
        modes: Names readers see.
        rows: A cell's title, and an entry a mode; None where the cell lacks it.
    """

    modes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Entry | None, ...]], ...]


def speedup_matrix(summaries: Sequence[CellSummary]) -> Matrix:
    """Return the speed-ups over the plain DDP of the same cell."""
    labels = {m.mode.mode: m.mode.label for s in summaries for m in s.modes}
    rows = tuple((cell_title(s.cell), _entries(s, tuple(labels))) for s in summaries)
    return Matrix(tuple(labels.values()), rows)


def _entries(summary: CellSummary, names: tuple[str, ...]) -> tuple[Entry | None, ...]:
    level = summary.level()
    found = {
        m.mode.mode: Entry(
            m.numbers.over_ddp if m.numbers else None,
            m.numbers.step_s.median if m.numbers else None,
            summary.time_doubts(m, summary.ddp),
            any(m is mode for mode in level),
            m.mode.family == "compute",
        )
        for m in summary.modes
    }
    return tuple(found.get(name) for name in names)
