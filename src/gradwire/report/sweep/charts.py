"""Charts of a sweep as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gradwire.report.charts import PAGE, SERIES, STYLE, new_axes, to_svg
from gradwire.report.sweep.summary import Slice
from gradwire.report.sweep.words import shown_rate
from gradwire.sim.sweep import BASELINE
from gradwire.units import format_rate

_GBIT = 8e-9
"""Gigabits in a byte."""
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def win_map(part: Slice) -> str:
    """Draw which plan is fastest, and by how much, over ranks and rates."""
    grid = part.result.grid
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(0.3 * len(grid.ranks) + 1.3)
        axes.grid(visible=False)
        for x, rate in enumerate(grid.rates_bytes_per_s):
            for y, ranks in enumerate(grid.ranks):
                _cell(axes, part, (x, y), (ranks, rate))
        axes.set_xlim(0, len(grid.rates_bytes_per_s))
        axes.set_ylim(0, len(grid.ranks))
        _name_ticks(axes.set_xticks, [f"{r * _GBIT:g}" for r in grid.rates_bytes_per_s])
        _name_ticks(axes.set_yticks, [str(n) for n in grid.ranks])
        axes.tick_params(length=0)
        axes.set_xlabel("Link rate, Gbit/s")
        axes.set_ylabel("Ranks")
        won = {part.winner(n, r) for n in grid.ranks for r in grid.rates_bytes_per_s}
        patches = [
            Patch(facecolor=_colour(part, plan), label=plan) for plan in grid.plans if plan in won
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
        return to_svg(figure, f"Fastest plan and its speed-up, {_title(part)}")


def _cell(axes: Axes, part: Slice, place: tuple[int, int], point: tuple[int, float]) -> None:
    plan = part.winner(*point)
    if plan is None:
        return
    gain = part.speed_up(plan, *point) or 1.0
    axes.add_patch(Rectangle(place, 0.97, 0.95, facecolor=_colour(part, plan), linewidth=0))
    if plan != BASELINE:
        x, y = place
        label = f"{gain:.2g}x"
        axes.text(x + 0.5, y + 0.45, label, ha="center", va="center", color=PAGE, fontsize=9)


def break_even(part: Slice) -> str:
    """Draw, over ranks, the rate below which each plan pays."""
    grid = part.result.grid
    high = max(grid.rates_bytes_per_s)

    def values(plan: str) -> list[float]:
        rates = [part.break_even_bytes_per_s(plan, n) for n in grid.ranks]
        return [min(rate, high) * _GBIT if rate else math.nan for rate in rates]

    with mpl.rc_context(STYLE):
        figure, axes = new_axes(3.6)
        _lines(axes, part, values, [p for p in grid.plans if p != BASELINE])
        axes.set_yscale("log")
        _plain_powers(axes.yaxis)
        axes.set_ylabel("Break-even rate, Gbit/s")
        return to_svg(figure, f"Rate below which each plan pays, over ranks, {_title(part)}")


def scaling(part: Slice) -> str:
    """Draw the scaling efficiency of each plan over ranks at one rate."""
    grid, rate = part.result.grid, shown_rate(part.result)

    def values(plan: str) -> list[float]:
        shares = [part.efficiency(plan, n, rate) for n in grid.ranks]
        return [math.nan if share is None else 100 * share for share in shares]

    with mpl.rc_context(STYLE):
        figure, axes = new_axes(3.6)
        _lines(axes, part, values, grid.plans)
        axes.set_ylim(0, 105)
        axes.set_ylabel(f"Efficiency at {format_rate(rate)}, %")
        return to_svg(figure, f"Scaling efficiency over ranks, {_title(part)}")


def cost(part: Slice) -> str:
    """Draw price against duration of the training, a line a plan, ranks along it."""
    grid, rate = part.result.grid, shown_rate(part.result)
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(3.6)
        for plan in grid.plans:
            hours = [part.train_hours(plan, n, rate) for n in grid.ranks]
            euros = [part.euros(plan, n, rate) for n in grid.ranks]
            axes.plot(
                [math.nan if h is None else h for h in hours],
                [math.nan if e is None else e for e in euros],
                **_look(part, plan),
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_powers(axes.xaxis)
        _plain_powers(axes.yaxis)
        axes.set_xlabel("Duration of the training, hours (more ranks to the left)")
        axes.set_ylabel(f"Cost at {format_rate(rate)}, EUR")
        figure.legend(loc="outside lower center", ncols=4)
        return to_svg(figure, f"Cost against duration of the training, {_title(part)}")


def _lines(
    axes: Axes, part: Slice, values: Callable[[str], Sequence[float]], plans: Sequence[str]
) -> None:
    ranks = part.result.grid.ranks
    for plan in plans:
        axes.plot(ranks, values(plan), **_look(part, plan))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.minorticks_off()
    axes.set_xlabel("Ranks")
    axes.figure.legend(loc="outside lower center", ncols=4)


def _plain_powers(axis: Axis) -> None:
    """Write plain numbers at 1, 2 and 5 of each power of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _look(part: Slice, plan: str) -> dict[str, Any]:
    index = part.result.grid.plans.index(plan)
    return {
        "color": _colour(part, plan),
        "marker": _MARKS[index % len(_MARKS)],
        "linewidth": 2,
        "markersize": 5,
        "label": plan,
    }


def _colour(part: Slice, plan: str) -> str:
    return SERIES[part.result.grid.plans.index(plan) % len(SERIES)]


def _name_ticks(
    set_ticks: Callable[[Sequence[float], Sequence[str]], object], names: Sequence[str]
) -> None:
    set_ticks([i + 0.5 for i in range(len(names))], names)


def _title(part: Slice) -> str:
    return f"{part.workload.name}, engine {part.engine}"
