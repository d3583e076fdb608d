"""What all cells of a bench say together, in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from gradwire.report.bench.summary import CellSummary, ModeSummary, Numbers
from gradwire.report.bench.verdicts import prediction, worse_losses
from gradwire.report.bench.words import cell_title


def overview(summaries: Sequence[CellSummary]) -> list[str]:
    """Return a sentence each on ranks, speed, loss, predictions and doubts.

    Args:
        summaries: All cells of a result.
    """
    ours = [(s, _best(s)) for s in summaries]
    compared = [(s, best) for s, best in ours if best is not None and len(s.ranked()) > 1]
    lines = [_ranks(compared), _speed(compared), _loss(summaries)]
    return [line for line in (*lines, prediction(summaries), _doubts(summaries)) if line]


def _best(summary: CellSummary) -> tuple[ModeSummary, Numbers] | None:
    return next((pair for pair in summary.ranked() if pair[0].mode.family == "gradwire"), None)


_Compared = list[tuple[CellSummary, tuple[ModeSummary, Numbers]]]


def _ranks(compared: _Compared) -> str:
    if not compared:
        return ""
    first, lost, level = 0, Counter[str](), 0
    for summary, (best, _) in compared:
        fastest = summary.ranked()[0][0]
        if best is fastest:
            first += 1
        elif any(best is mode for mode in summary.level()):
            level += 1
        else:
            lost[fastest.mode.label] += 1
    line = (
        f"gradwire's best mode is the fastest in {first} of {_cells(len(compared))}, level with "
        f"the fastest in {level}, and LOSES in {lost.total()}"
    )
    to = ", ".join(f"to {label} in {count}" for label, count in lost.most_common())
    return f"{line}: {to}." if to else f"{line}."


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _speed(compared: _Compared) -> str:
    ratios = [(n.over_ddp.median, s) for s, (_, n) in compared if n.over_ddp is not None]
    if not ratios:
        return ""
    (low, worst), (high, top) = (choose(ratios, key=lambda r: r[0]) for choose in (min, max))
    if len(ratios) == 1:
        return f"Against plain DDP that mode is {high:.2f} times as fast."
    return (
        f"Against plain DDP that mode is {low:.2f} ({cell_title(worst.cell)}) to {high:.2f} "
        f"({cell_title(top.cell)}) times as fast, {median(r for r, _ in ratios):.2f} in the median."
    )


def _loss(summaries: Sequence[CellSummary]) -> str:
    worse = [cell_title(s.cell) for s in summaries if worse_losses(s)]
    if not worse:
        return ""
    return (
        "A mode of gradwire ended with a validation loss more than 1 % above plain DDP's in: "
        f"{'; '.join(worse)}."
    )


def _doubts(summaries: Sequence[CellSummary]) -> str:
    shown = [(s, m) for s in summaries for m in s.modes if m.numbers is not None]
    doubtful = sum(bool(s.time_doubts(m, s.ddp)) for s, m in shown)
    if not doubtful:
        return ""
    return f"{doubtful} of {len(shown)} numbers below carry a mark: there is reason to doubt them."
