"""Is attach never slower? The table of a bench against its own goals.

    python benchmarks/hagc.py docs/assets/results/hagc.json --picture docs/assets/hagc.svg

Each cell compares the automatic plan with the fastest hook of PyTorch, with every fixed
plan of gradwire that keeps to the default harm, with plain DDP and with computation
alone. The picture shows every mode's step, with its spread.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

from gradwire.planner.errors import NORMAL_ERRORS
from gradwire.planner.harm import harm
from gradwire.report.results import BenchResult, Cell, ModeResult
from gradwire.spec import Auto
from gradwire.units import format_rate

HOOK, ORACLE, PLAIN, PREDICTED = 1.0, 1.05, 1.02, 0.10
"""Goals: at most so many times the time of the best hook, of the best fixed plan, of plain
DDP where nothing can be gained; and how far a prediction may be off."""


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--picture", type=click.Path(path_type=Path), help="Draw an SVG.")
def main(file: Path, picture: Path | None) -> None:
    """Print the table as Markdown."""
    result = BenchResult.from_json(file.read_text(encoding="utf-8"))
    if picture is not None:
        _draw(result.cells, picture)
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
    exact = [m for m in fixed if _keeps(_name(m))]
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


def _keeps(codec: str) -> bool:
    lost = NORMAL_ERRORS.get(codec, 1.0) ** 2
    return harm(lost, feedback=True) <= Auto().max_harm


def _draw(cells: tuple[Cell, ...], target: Path) -> None:
    """Draw a panel for each cell: steps by mode, and computation alone as a line."""
    import matplotlib as mpl  # noqa: PLC0415 - not needed for the table

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gradwire"
    import matplotlib.pyplot as plt  # noqa: PLC0415 - after the choice of its back end

    columns = 2
    rows = math.ceil(len(cells) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(11, 3 * rows), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=False):
        modes = [m for m in cell.modes if m.has_run and m.mode != "nosync"]
        colours = ["#1f77b4" if ":auto" in m.mode else "#b0b8c0" for m in modes]
        times, spreads = ([1e3 * getattr(m, f) for m in modes] for f in ("step_s", "spread_s"))
        axis.barh([m.mode for m in modes], times, xerr=spreads, color=colours)
        alone = cell.mode("nosync")
        if alone is not None and alone.has_run:
            axis.axvline(1e3 * alone.step_s, color="black", linestyle=":")
        axis.invert_yaxis()
        axis.tick_params(axis="y", labelsize=7)
        axis.set_title(_title(cell), fontsize=9)
        axis.set_xlabel("step, ms; dotted: computation alone", fontsize=8)
    for axis in list(axes.flat)[len(cells) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


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
