"""Draw AQGB's training curves and times to a loss, from the file of benchmarks/aqgb.py.

    python benchmarks/aqgb_picture.py docs/assets/results/aqgb_digits.json docs/assets/aqgb.svg

Left: loss on held-out data over time, of the first seed. Right: time to the loss that
plain training reached in three quarters of its steps: the median over seeds, and the range.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import click
import matplotlib as mpl
from aqgb import goal_of, times_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.report.results import BenchResult, Cell
from gradwire.units import format_rate

_GREY = "#7d8590"  # reads on a light page and on a dark one
_MODES = {
    "none@5": ("plain DDP", "#7d8590"),
    "overlap:none": ("fp32, overlapped", "#a371f7"),
    "fp16@5": ("fp16 hook", "#bf8700"),
    "powersgd1@1000": ("PowerSGD rank 1", "#2da44e"),
    "overlap:qsgd4": ("QSGD, 4 bits, L2", "#e16f24"),
    "overlap:int4@broadcast": ("4 bits, max-abs", "#db61a2"),
    "overlap:aqgb": ("AQGB", "#218bff"),
}


def _curves(axes: Axes, cell: Cell) -> None:
    for name, (label, colour) in _MODES.items():
        mode = cell.mode(name)
        if mode is None or not mode.has_run or not mode.validations:
            continue
        times = [v.step * mode.step_s for v in mode.validations]
        width = 2.5 if name == "overlap:aqgb" else 1.5
        losses = [v.loss for v in mode.validations]
        axes.plot(times, losses, color=colour, linewidth=width, label=label)
    if (goal := goal_of(cell)) is not None:
        axes.axhline(goal, color=_GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("loss on held-out data")
    axes.legend(frameon=False, labelcolor=_GREY)


def _bars(axes: Axes, cells: list[Cell]) -> None:
    found = {
        name: [t for cell in cells if (t := times_of(cell).get(name)) is not None]
        for name in _MODES
        if any((mode := cell.mode(name)) is not None and mode.has_run for cell in cells)
    }
    for place, (name, times) in enumerate(reversed(found.items())):
        label, colour = _MODES[name]
        if times:
            middle = median(times)
            reach = [[middle - min(times)], [max(times) - middle]]
            axes.barh(place, middle, color=colour, xerr=reach, ecolor=_GREY, height=0.6)
        text = f"{label}: {middle:.1f} s" if times else f"{label}: not reached"
        axes.text(0, place + 0.34, text, color=_GREY, fontsize=9, va="bottom")
    axes.set_ylim(-0.5, len(found) - 0.1)
    axes.set_yticks([])
    axes.set_xlabel("seconds to the loss of plain training")


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--cell", default=1, show_default=True, help="Whose model, ranks and rate.")
def main(source: Path, target: Path, cell: int) -> None:
    """Draw TARGET from SOURCE."""
    result = BenchResult.from_json(source.read_text(encoding="utf-8"))
    first = result.cells[cell - 1]
    setting = (first.model, first.ranks, first.rate_bytes_per_s)
    cells = [c for c in result.cells if (c.model, c.ranks, c.rate_bytes_per_s) == setting]
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "aqgb", "font.size": 10})
    mpl.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), _GREY))
    mpl.rcParams.update(dict.fromkeys(("xtick.color", "ytick.color"), _GREY))
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, cells[0])
    _bars(right, cells)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    rate = "no limit" if setting[2] is None else format_rate(setting[2])
    seeds = f"{len(cells)} seeds" if len(cells) > 1 else "one seed"
    figure.suptitle(f"{setting[0]}, {setting[1]} ranks, {rate}, {seeds}", fontsize=11)
    figure.savefig(target, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
