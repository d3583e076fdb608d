"""Reasons to doubt a number: each becomes a mark on it and a line that says why."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gradwire.report.results import ModeResult

MAX_SPREAD = 0.10
"""Half the interquartile range over the median, above which a time is shaky."""
MIN_ROUNDS = 3
"""Rounds below which a ratio may be chance: its range says little."""
MAX_FOREIGN_CORES = 0.3
"""Cores that other programs may keep busy in a round."""

Kind = Literal["spread", "rounds", "busy", "replicas", "missing"]


class Doubt(NamedTuple):
    """One reason to doubt a mode's numbers.

    `"replicas"` is about what was learned, the others about times.
    """

    kind: Kind
    reason: str


def doubts(mode: ModeResult) -> tuple[Doubt, ...]:
    """Return every reason to doubt the numbers of a mode.

    Example:
        >>> doubts(ModeResult("fp16", "fp16 hook", "hook", reason="needs a GPU"))
        (Doubt(kind='missing', reason='fp16 hook did not run: needs a GPU'),)
    """
    if not mode.has_run:
        reason = mode.reason or "no reason was written down"
        return (Doubt("missing", f"{mode.label} did not run: {reason}"),)
    found = (_spread(mode), _rounds(mode), _busy(mode), _replicas(mode))
    return tuple(doubt for doubt in found if doubt is not None)


def _spread(mode: ModeResult) -> Doubt | None:
    share = mode.spread_s / mode.step_s if mode.step_s else 0.0
    if share <= MAX_SPREAD:
        return None
    line = (
        f"{mode.label}: steps spread by ± {100 * share:.0f} %, over {100 * MAX_SPREAD:.0f} %; "
        "run more rounds on an idle machine"
    )
    return Doubt("spread", line)


def _rounds(mode: ModeResult) -> Doubt | None:
    count = len(mode.rounds)
    if count >= MIN_ROUNDS:
        return None
    rounds = f"{count} round" if count == 1 else f"{count} rounds"
    return Doubt("rounds", f"{rounds}, fewer than {MIN_ROUNDS}: a difference may be chance")


def _busy(mode: ModeResult) -> Doubt | None:
    busy = [r.foreign_cores for r in mode.rounds if r.foreign_cores > MAX_FOREIGN_CORES]
    if not busy:
        return None
    line = (
        f"{mode.label}: in {len(busy)} of {len(mode.rounds)} rounds other programs kept up to "
        f"{max(busy):.1f} cores busy"
    )
    return Doubt("busy", line)


def _replicas(mode: ModeResult) -> Doubt | None:
    if mode.is_replicated:
        return None
    return Doubt("replicas", f"{mode.label}: the ranks ended with different parameters")
