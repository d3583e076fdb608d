"""Two results held against each other, cell by cell and mode by mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradwire.report.bench.summary import CellSummary, Numbers
from gradwire.report.bench.words import NONE, cell_title, milliseconds
from gradwire.report.summary import Spread


class Change(NamedTuple):
    """How one mode of one cell changed from the first result to the second.

    Attributes:
        step: Later median step time over the earlier one, minus 1.
        noise: Sum of both half interquartile ranges, over the earlier median.
        sent: Later bytes per step over earlier ones, minus 1.
        loss: Later validation loss minus the earlier one.
    """

    cell: str
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
            return "within the noise"
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
    """All changes, and what only one of the results has."""

    changes: tuple[Change, ...]
    unmatched: tuple[str, ...]


def compare_results(before: Sequence[CellSummary], after: Sequence[CellSummary]) -> Changes:
    """Compare the modes that ran in the same cell of both results."""
    first, second = _numbers(before), _numbers(after)
    changes = tuple(_change(key, first[key], second[key]) for key in first if key in second)
    unmatched = [f"Only in the first: {_name(key)}" for key in first if key not in second]
    unmatched += [f"Only in the second: {_name(key)}" for key in second if key not in first]
    return Changes(changes, tuple(unmatched))


_Key = tuple[str, str, str, str]


def _numbers(summaries: Sequence[CellSummary]) -> dict[_Key, Numbers]:
    return dict(_pairs(summaries))


def _pairs(summaries: Sequence[CellSummary]) -> Iterator[tuple[_Key, Numbers]]:
    for summary in summaries:
        for m in summary.modes:
            if m.numbers is not None:
                title = cell_title(summary.cell)
                yield (summary.cell.name, m.mode.mode, title, m.mode.label), m.numbers


def _name(key: _Key) -> str:
    return f"{key[3]} in {key[2]}"


def _change(key: _Key, before: Numbers, after: Numbers) -> Change:
    old, new = before.step_s, after.step_s
    losses = (before.validation, after.validation)
    return Change(
        cell=key[2],
        mode=key[3],
        before_s=old,
        after_s=new,
        step=new.median / old.median - 1,
        noise=(old.half_iqr + new.half_iqr) / old.median,
        sent=after.sent_bytes / before.sent_bytes - 1 if before.sent_bytes else None,
        loss=losses[1].loss - losses[0].loss if losses[0] and losses[1] else None,
    )
