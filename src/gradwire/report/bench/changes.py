"""Two results held against each other, cell by cell and mode by mode."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

from gradwire.report.bench.summary import Numbers, summarise_bench
from gradwire.report.bench.words import NONE, cell_title, milliseconds
from gradwire.report.results import BenchResult
from gradwire.report.summary import Spread

CHANGE_HEADINGS = ("Before, ms", "After, ms", "Step, %", "Sent, %", "Loss")
"""What `change_texts` writes."""


class Change(NamedTuple):
    """How one mode of a cell changed from the first result to the second.

    Attributes:
        step: Later median step time over the earlier one, minus 1.
        noise: Sum of both half interquartile ranges, over the earlier median.
        sent: Later bytes per step over earlier ones, minus 1.
        loss: Later validation loss minus the earlier one.
    """

    mode: str
    before_s: Spread
    after_s: Spread
    step: float
    noise: float
    sent: float | None
    loss: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the medians differ by more than both half spreads."""
        return abs(self.step) > self.noise

    @property
    def verdict(self) -> str:
        """The change in words."""
        if not self.is_clear:
            return "within noise"
        return "slower" if self.step > 0 else "faster"


def change_texts(change: Change) -> tuple[str, ...]:
    """Write a change: before and after in ms, step in %, bytes in %, loss."""
    return (
        milliseconds(change.before_s),
        milliseconds(change.after_s),
        f"{100 * change.step:+.1f} ± {100 * change.noise:.1f}",
        NONE if change.sent is None else f"{100 * change.sent:+.1f}",
        NONE if change.loss is None else f"{change.loss:+.3f}",
    )


class Changes(NamedTuple):
    """Changes by cell, and what else sets the two results apart, in words."""

    cells: dict[str, tuple[Change, ...]]
    remarks: tuple[str, ...]


_Modes = dict[tuple[str, str], Numbers]


def compare_results(before: BenchResult, after: BenchResult) -> Changes:
    """Compare the modes that ran in the same cell of both results."""
    cells: dict[str, tuple[Change, ...]] = {}
    remarks = _environment(before, after)
    old, new = _by_cell(before), _by_cell(after)
    for name in dict.fromkeys((*old, *new)):
        title, modes = old.get(name) or new[name]
        later: _Modes = new[name][1] if name in new else {}
        if name not in old:
            modes = {}
        changes = tuple(_change(k, modes[k], later[k]) for k in modes if k in later)
        if changes:
            cells[title] = changes
        remarks += _alone("first", title, modes, later) + _alone("second", title, later, modes)
    return Changes(cells, tuple(remarks))


def _by_cell(result: BenchResult) -> dict[str, tuple[str, _Modes]]:
    return {
        s.cell.name: (
            cell_title(s.cell),
            {(m.mode.mode, m.mode.label): m.numbers for m in s.modes if m.numbers is not None},
        )
        for s in summarise_bench(result)
    }


def _alone(which: str, title: str, modes: _Modes, others: _Modes) -> list[str]:
    labels = ", ".join(key[1] for key in modes if key not in others)
    return [f"Only in the {which}: {title}: {labels}."] if labels else []


def _environment(before: BenchResult, after: BenchResult) -> list[str]:
    old, new = asdict(before.environment), asdict(after.environment)
    return [f"Different {k}: {old[k]}, then {new[k]}." for k in old if old[k] != new[k]]


def _change(key: tuple[str, str], before: Numbers, after: Numbers) -> Change:
    old, new = before.step_s, after.step_s
    losses = (before.validation, after.validation)
    return Change(
        mode=key[1],
        before_s=old,
        after_s=new,
        step=new.median / old.median - 1,
        noise=(old.half_iqr + new.half_iqr) / old.median,
        sent=after.sent_bytes / before.sent_bytes - 1 if before.sent_bytes else None,
        loss=losses[1].loss - losses[0].loss if losses[0] and losses[1] else None,
    )
