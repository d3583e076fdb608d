"""Is attach never slower? The table of a bench against its own goals.

    python benchmarks/hagc.py docs/assets/results/hagc.json

Each cell compares the automatic plan with the fastest hook of PyTorch, with every fixed
plan of gradwire, with plain DDP and with computation alone.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from gradwire.planner.errors import MAX_ERROR, NORMAL_ERRORS
from gradwire.report.results import BenchResult, Cell, ModeResult
from gradwire.units import format_rate

HOOK, ORACLE, PLAIN, PREDICTED = 1.0, 1.05, 1.02, 0.10
"""Goals: at most so many times the time of the best hook, of the best fixed plan, of plain
DDP where nothing can be gained; and how far a prediction may be off."""


def main() -> None:
    """Print the table as Markdown."""
    result = BenchResult.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for cell in result.cells:
        print(f"\n### {_title(cell)}\n")
        print("| mode | step, ms | predicted | computation alone x | plan |")
        print("| --- | --- | --- | --- | --- |")
        for mode in cell.modes:
            if mode.has_run:
                print(_row(mode, cell))
    print("\n| cell | auto, ms | best hook | best fixed plan | plain DDP | prediction |")
    print("| --- | --- | --- | --- | --- | --- |")
    for cell in result.cells:
        for auto in (m for m in cell.modes if ":auto" in m.mode and m.has_run):
            print(_verdict(cell, auto))


def _title(cell: Cell) -> str:
    rate = cell.rate_bytes_per_s
    link = "no limit" if rate is None or math.isinf(rate) else format_rate(rate)
    return f"{cell.model}, {cell.ranks} ranks, {link}"


def _row(mode: ModeResult, cell: Cell) -> str:
    alone = cell.mode("nosync")
    over = f"{mode.step_s / alone.step_s:.2f}" if alone is not None else ""
    predicted = f"{1e3 * mode.predicted_s:.0f}" if mode.predicted_s else ""
    why = mode.why[0].partition(":")[0] if mode.why else ""
    times = f"{1e3 * mode.step_s:.0f} ± {1e3 * mode.spread_s:.0f}"
    return f"| {mode.mode} | {times} | {predicted} | {over} | {why} |"


def _verdict(cell: Cell, auto: ModeResult) -> str:
    hooks = [m for m in cell.modes if m.family in ("hook", "ddp") and "powersgd" not in m.mode]
    fixed = [m for m in cell.modes if m.family == "gradwire" and ":auto" not in m.mode]
    exact = [m for m in fixed if NORMAL_ERRORS.get(_name(m), 1.0) <= MAX_ERROR]
    plain = [m for m in cell.modes if m.family == "ddp"]
    off = (auto.predicted_s or 0.0) / auto.step_s - 1
    parts = [
        f"{_title(cell)}, {auto.mode}",
        f"{1e3 * auto.step_s:.0f} ± {1e3 * auto.spread_s:.0f}",
        _against(auto, hooks, HOOK),
        _against(auto, exact, ORACLE),
        _against(auto, plain, PLAIN),
        f"{off:+.0%}{'' if abs(off) <= PREDICTED else ' (missed)'}",
    ]
    return f"| {' | '.join(parts)} |"


def _name(mode: ModeResult) -> str:
    return mode.mode.partition(":")[2].partition("@")[0]


def _against(auto: ModeResult, others: list[ModeResult], goal: float) -> str:
    run = [m for m in others if m.has_run]
    if not run:
        return ""
    best = min(run, key=lambda m: m.step_s)
    ratio = auto.step_s / best.step_s
    verdict = "" if ratio <= goal else " (missed)"
    return f"{ratio:.2f} x {best.mode}{verdict}"


if __name__ == "__main__":
    main()
