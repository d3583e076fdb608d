"""The sweep's tables and sentences, shared by text and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.report.sweep.summary import Slice, share_won, slices
from gradwire.sim.sweep import BASELINE, SweepResult
from gradwire.units import format_rate, format_seconds

_MISSING = "-"


@dataclass(frozen=True, slots=True)
class SweepTable:
    """A table of texts, with a sentence that says what a cell is."""

    title: str
    caption: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def setting(result: SweepResult) -> str:
    """Say in one line what was simulated."""
    grid = result.grid
    node = "1 rank a node" if grid.ranks_per_node == 1 else f"{grid.ranks_per_node} ranks a node"
    return (
        f"{result.hardware}; {grid.topology}, {node}, {grid.collective} exchange, latency "
        f"{format_seconds(grid.latency_s)}; {len(result.points)} of {result.size} points"
    )


def heading(part: Slice) -> str:
    """Name a slice: workload, size, computing time and engine."""
    work = part.workload
    return (
        f"{work.name}, batch {work.batch_size}, {work.num_parameters / 1e6:.4g} M parameters, "
        f"{format_seconds(work.compute_s)} of computation, engine {part.engine}"
    )


def verdicts(result: SweepResult) -> list[str]:
    """Say in a sentence for each slice which plan wins where."""
    sentences = []
    for part in slices(result):
        won = {plan: share for plan, share in share_won(part).items() if share}
        if not won:
            continue
        order = sorted(won, key=lambda plan: -won[plan])
        shares = ", ".join(f"{plan} {won[plan]:.0%}" for plan in order)
        sentences.append(
            f"{part.workload.name}, {part.engine}: fastest in share of cells: {shares}"
        )
    return sentences


def tables(part: Slice) -> list[SweepTable]:
    """Return the tables of a slice: map, break-even, scaling, and cost where priced."""
    made = [map_table(part), break_even_table(part), efficiency_table(part)]
    priced = part.result.euro_per_rank_hour is not None and part.result.samples is not None
    return [*made, cost_table(part)] if priced else made


def map_table(part: Slice) -> SweepTable:
    """Return the fastest plan of each cell, and its speed-up over the baseline."""

    def cell(ranks: int, rate: float) -> str:
        plan = part.winner(ranks, rate)
        gain = None if plan is None else part.speed_up(plan, ranks, rate)
        if plan is None or gain is None:
            return _MISSING
        return plan if plan == BASELINE else f"{plan} {gain:.2g}x"

    grid = part.result.grid
    return SweepTable(
        "Which plan wins where",
        f"The first plan within 1 % of the fastest, and its speed-up over {BASELINE}.",
        "ranks",
        [format_rate(rate) for rate in grid.rates_bytes_per_s],
        [(str(n), [cell(n, rate) for rate in grid.rates_bytes_per_s]) for n in grid.ranks],
    )


def break_even_table(part: Slice) -> SweepTable:
    """Return the rate below which each plan pays, by ranks."""
    grid = part.result.grid
    highest = format_rate(max(grid.rates_bytes_per_s))

    def cell(plan: str, ranks: int) -> str:
        rate = part.break_even_bytes_per_s(plan, ranks)
        if rate is None:
            return _MISSING
        if math.isinf(rate):
            return f"> {highest}"
        return format_rate(rate) if rate else "never"

    return SweepTable(
        "Break-even rates",
        f"Below this rate the plan is at least 1 % faster than {BASELINE}; interpolated.",
        "plan",
        [f"{n} ranks" for n in grid.ranks],
        [(plan, [cell(plan, n) for n in grid.ranks]) for plan in grid.plans if plan != BASELINE],
    )


def efficiency_table(part: Slice) -> SweepTable:
    """Return the scaling efficiency of each plan at one rate."""
    grid, rate = part.result.grid, shown_rate(part.result)

    def cell(plan: str, ranks: int) -> str:
        share = part.efficiency(plan, ranks, rate)
        return _MISSING if share is None else f"{share:.0%}"

    return SweepTable(
        f"Scaling efficiency at {format_rate(rate)}",
        "Throughput over that of as many ranks that need not communicate.",
        "plan",
        [f"{n} ranks" for n in grid.ranks],
        [(plan, [cell(plan, n) for n in grid.ranks]) for plan in grid.plans],
    )


def cost_table(part: Slice) -> SweepTable:
    """Return price and duration of the training at one rate."""
    grid, rate = part.result.grid, shown_rate(part.result)

    def cell(plan: str, ranks: int) -> str:
        hours, euros = part.train_hours(plan, ranks, rate), part.euros(plan, ranks, rate)
        return _MISSING if hours is None or euros is None else f"{euros:,.0f} EUR, {hours:.3g} h"

    samples = part.result.samples or 0
    return SweepTable(
        f"Cost to converge at {format_rate(rate)}",
        f"For {samples:.4g} samples, if a plan needs as many steps as {BASELINE}; it pays as "
        "long as it needs fewer times the steps than its speed-up.",
        "plan",
        [f"{n} ranks" for n in grid.ranks],
        [(plan, [cell(plan, n) for n in grid.ranks]) for plan in grid.plans],
    )


def shown_rate(result: SweepResult) -> float:
    """Return the rate of the grid that is nearest to 10 Gbit/s."""
    return min(result.grid.rates_bytes_per_s, key=lambda rate: abs(math.log(rate / 1.25e9)))


def notes() -> list[str]:
    """Say what the numbers rest on."""
    return [
        (
            "Everything here is simulated. Where the machine is called modelled, layer times and "
            "kernel speeds follow from data sheets, not from measurements."
        ),
        "Steps are compared, not losses: whether a plan needs more steps is for a training to say.",
        (
            "Plans within 1 % of the fastest share the first place; the one that stands first in "
            "the list gets it."
        ),
    ]
