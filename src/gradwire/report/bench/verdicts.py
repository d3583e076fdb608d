"""What a bench found, in sentences: losses as plainly as wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from gradwire.report.bench.summary import CellSummary, ModeSummary, Numbers, Speedup, speedup
from gradwire.report.bench.words import times
from gradwire.report.summary import TOLERANCE, format_milliseconds

_Ranked = tuple[ModeSummary, Numbers]


def verdict(summary: CellSummary) -> str:
    """Say which mode is fastest, by how much, and where gradwire loses."""
    ranked = summary.ranked()
    if not ranked:
        return "No mode ran."
    ours = [pair for pair in ranked if pair[0].mode.family == "gradwire"]
    parts = [
        _fastest(summary, ranked[0]),
        _best(ranked[0], ours),
        _slower(ours),
        _losses(summary),
        _torn(ranked),
    ]
    return " ".join(part for part in parts if part)


def worse_losses(summary: CellSummary) -> list[tuple[str, float]]:
    """Return gradwire's modes that ended above plain DDP's loss, by how much."""
    base = summary.ddp and summary.ddp.validations
    if not base or not math.isfinite(base[-1].loss):
        return []
    goal = base[-1].loss
    return [
        (m.mode.label, n.validation.loss - goal)
        for m, n in summary.ranked()
        if m.mode.family == "gradwire"
        and n.validation is not None
        and not n.validation.loss <= goal * (1 + TOLERANCE)
    ]


def prediction(summaries: Sequence[CellSummary]) -> str:
    """Say how far predicted step times lie from measured ones, where there are any."""
    errors = [
        abs(m.numbers.prediction_error)
        for summary in summaries
        for m in summary.modes
        if m.numbers is not None and m.numbers.prediction_error is not None
    ]
    if not errors:
        return ""
    return (
        f"Predicted step times are off by {100 * median(errors):.1f} % in the median and "
        f"{100 * max(errors):.1f} % at most, over {len(errors)} of them."
    )


def _fastest(summary: CellSummary, first: _Ranked) -> str:
    mode, numbers = first
    line = f"Fastest: {mode.mode.label}, {format_milliseconds(numbers.step_s.median)} ms a step"
    against = [
        f"{times(ratio)} times the speed of {name}"
        for other, ratio, name in (
            (summary.ddp, numbers.over_ddp, "plain DDP"),
            (summary.hook, numbers.over_hook, f"the best hook, {_label(summary)}"),
        )
        if other is not None and other is not mode.mode
    ]
    shaky = " (doubtful)" if summary.time_doubts(mode, summary.ddp) else ""
    return f"{'; '.join([line, *against])}{shaky}."


def _label(summary: CellSummary) -> str:
    return summary.hook.label if summary.hook else ""


def _best(first: _Ranked, ours: list[_Ranked]) -> str:
    if not ours:
        return "gradwire was not among the modes that ran."
    best = ours[0][0].mode
    if best is first[0].mode:
        return ""
    ratio = speedup(first[0].mode, best)
    assert ratio is not None
    if not ratio.is_clear:
        return f"gradwire's best, {best.label}, is level with it within the spread."
    return f"gradwire LOSES: its best, {best.label}, reaches {times(ratio)} of that speed."


def _slower(ours: list[_Ranked]) -> str:
    slow = [(m.mode.label, n.over_ddp) for m, n in ours if _is_loss(n.over_ddp)]
    if not slow:
        return ""
    listed = ", ".join(f"{label} ({times(ratio)})" for label, ratio in slow)
    return f"Slower than plain DDP: {listed}."


def _is_loss(ratio: Speedup | None) -> bool:
    return ratio is not None and ratio.is_clear and ratio.median < 1


def _losses(summary: CellSummary) -> str:
    base = summary.ddp and summary.ddp.validations
    if base and not math.isfinite(base[-1].loss):
        return "Plain DDP's validation loss DIVERGED: losses say nothing here."
    worse = [f"{label} ({_more(loss)})" for label, loss in worse_losses(summary)]
    return f"LOSES in validation loss against plain DDP: {', '.join(worse)}." if worse else ""


def _more(loss: float) -> str:
    return f"{loss:+.3f}" if math.isfinite(loss) else "diverged"


def _torn(ranked: list[_Ranked]) -> str:
    torn = [m.mode.label for m, _ in ranked if not m.mode.is_replicated]
    return f"Ranks ended with DIFFERENT parameters: {', '.join(torn)}." if torn else ""
