"""The words of a bench report: rows and marks that text and HTML share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

from gradwire.report.bench.doubts import (
    MAX_FOREIGN_CORES,
    MAX_SPREAD,
    MIN_ROUNDS,
    Doubt,
    gather,
    marks,
)
from gradwire.report.bench.summary import CellSummary, ModeSummary, Numbers, Speedup
from gradwire.report.results import BenchResult, Cell
from gradwire.report.summary import Spread, format_milliseconds
from gradwire.units import format_rate, format_seconds

NONE = "-"
"""Stands where there is no number."""

_NETWORKS = {
    "lab": "really limited between network namespaces",
    "shaped": "each exchange made to last as long",
    "none": "not limited",
}


class Marked(NamedTuple):
    """A number as text, and a letter for each kind of doubt about it."""

    text: str
    marks: str = ""


class BenchRow(NamedTuple):
    """A quantity with its unit, and a number a mode."""

    heading: str
    cells: tuple[Marked, ...]


def _nothing(_: CellSummary, __: ModeSummary) -> tuple[Doubt, ...]:
    return ()


def _time(cell: CellSummary, mode: ModeSummary) -> tuple[Doubt, ...]:
    return cell.time_doubts(mode)


def _learned(_: CellSummary, mode: ModeSummary) -> tuple[Doubt, ...]:
    return tuple(d for d in mode.doubts if d.kind == "replicas")


def _over_ddp(cell: CellSummary, mode: ModeSummary) -> tuple[Doubt, ...]:
    return cell.time_doubts(mode, cell.ddp)


def _over_hook(cell: CellSummary, mode: ModeSummary) -> tuple[Doubt, ...]:
    return cell.time_doubts(mode, cell.hook)


class _Quantity(NamedTuple):
    heading: str
    write: Callable[[Numbers, ModeSummary], str]
    doubts: Callable[[CellSummary, ModeSummary], tuple[Doubt, ...]] = _nothing


def milliseconds(spread: Spread) -> str:
    """Write a time with its spread; the unit stands in the heading.

    Example:
        >>> milliseconds(Spread(0.0421, 0.0004))
        '42.1 ± 0.4'
    """
    half = format_milliseconds(spread.half_iqr, like_s=spread.median)
    return f"{format_milliseconds(spread.median)} ± {half}"


def times(speedup: Speedup | None) -> str:
    """Write a ratio with its range over rounds.

    Example:
        >>> times(Speedup(1.934, 1.88, 2.01))
        '1.93 (1.88-2.01)'
    """
    if speedup is None:
        return NONE
    middle, low, high = (f"{x:.2f}" for x in (speedup.median, speedup.low, speedup.high))
    return middle if low == high else f"{middle} ({low}-{high})"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return NONE if value is None else format(value * scale, form)


def _rounds(_: Numbers, summary: ModeSummary) -> str:
    return f"{len(summary.mode.rounds)} x {len(summary.mode.rounds[0].steps)}"


def _bits(_: Numbers, summary: ModeSummary) -> str:
    bits = summary.mode.bits
    if not bits:
        return NONE
    low, high = min(bits.values()), max(bits.values())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _predicted(numbers: Numbers, _: ModeSummary) -> str:
    return NONE if numbers.predicted_s is None else format_milliseconds(numbers.predicted_s)


def _reached(numbers: Numbers, _: ModeSummary) -> str:
    if numbers.validation is None:
        return NONE
    return "not reached" if numbers.reached_s is None else f"{numbers.reached_s:.1f}"


def _replicated(_: Numbers, summary: ModeSummary) -> str:
    if not summary.mode.digests:
        return NONE
    return "yes" if summary.mode.is_replicated else "NO"


_QUANTITIES = (
    _Quantity("Step, ms", lambda n, _: milliseconds(n.step_s), _time),
    _Quantity("Times plain DDP's speed", lambda n, _: times(n.over_ddp), _over_ddp),
    _Quantity("Times the best hook's", lambda n, _: times(n.over_hook), _over_hook),
    _Quantity("Forward, ms", lambda n, _: milliseconds(n.forward_s)),
    _Quantity("Backward, ms", lambda n, _: milliseconds(n.backward_s)),
    _Quantity("Exposed comm., ms", lambda n, _: milliseconds(n.exposed_s)),
    _Quantity("Optimiser, ms", lambda n, _: milliseconds(n.optimiser_s)),
    _Quantity(
        "Hidden comm. (overlap), ms",
        lambda n, _: NONE if n.overlap_s is None else milliseconds(n.overlap_s),
    ),
    _Quantity("Overlap over wait (ROW)", lambda n, _: _number(n.row, ".2f")),
    _Quantity("Float32 sends per step, MB", lambda n, _: _number(n.dense_bytes, ".3g", 1e-6)),
    _Quantity("Sent per step, MB", lambda n, _: _number(n.sent_bytes, ".3g", 1e-6)),
    _Quantity("Times smaller", lambda n, _: _number(n.times_smaller, ".1f")),
    _Quantity("Bits per value", _bits),
    _Quantity("algbw, Mbit/s", lambda n, _: _number(n.algbw_bytes_per_s, ".0f", 8e-6)),
    _Quantity("busbw, Mbit/s", lambda n, _: _number(n.busbw_bytes_per_s, ".0f", 8e-6)),
    _Quantity(
        "Validation loss",
        lambda n, _: NONE if n.validation is None else f"{n.validation.loss:.3f}",
        _learned,
    ),
    _Quantity("Time to DDP's loss, s", _reached, _learned),
    _Quantity("Cost to DDP's loss, EUR", lambda n, _: _number(n.cost_eur, ".3g")),
    _Quantity("Ranks bit-identical", _replicated, _learned),
    _Quantity("Predicted step, ms", _predicted),
    _Quantity("Prediction error, %", lambda n, _: _number(n.prediction_error, "+.1f", 100), _time),
    _Quantity("Rounds x steps", _rounds),
)


def reasons(summary: CellSummary) -> list[tuple[str, str]]:
    """Return, for each kind of doubt in a cell, its letter and a line that says why."""
    found = [doubt for mode in summary.modes for doubt in mode.doubts]
    return list(zip(marks(found), gather(found), strict=True))


def bench_table(summary: CellSummary) -> list[BenchRow]:
    """Return a row a quantity, with a number a mode; rows without any are left out."""
    rows = [
        BenchRow(q.heading, tuple(_marked(q, m, summary) for m in summary.modes))
        for q in _QUANTITIES
    ]
    return [row for row in rows if any(cell.text not in {NONE, ""} for cell in row.cells)]


def _marked(quantity: _Quantity, mode: ModeSummary, summary: CellSummary) -> Marked:
    if mode.numbers is None and quantity is not _QUANTITIES[0]:
        return Marked("")
    text = quantity.write(mode.numbers, mode) if mode.numbers else "did not run"
    doubts = quantity.doubts(summary, mode) if text != NONE else ()
    return Marked(text, marks(doubts))


def cell_title(cell: Cell) -> str:
    """Name a cell for readers, in short.

    Example:
        >>> cell_title(Cell("vgg", 4, 12.5e6, 0.0, "lab", ()))
        'vgg, 4 ranks, 100 Mbit/s'
    """
    rate = cell.rate_bytes_per_s
    link = "no link limit" if rate is None else format_rate(rate)
    delay = f", {format_seconds(cell.latency_s)}" if cell.latency_s else ""
    return f"{cell.model}, {cell.ranks} ranks, {link}{delay}"


def cell_setting(cell: Cell) -> str:
    """Say in one line what a cell's model and network are."""
    size = f" ({cell.num_parameters / 1e6:.3g} M parameters)" if cell.num_parameters else ""
    rate = cell.rate_bytes_per_s
    link = "not limited"
    if rate is not None:
        link = f"{format_rate(rate)} each way for each rank, {_NETWORKS[cell.network]}"
    by = f" by {cell.latency_by}" if cell.latency_by else ""
    return (
        f"{cell.model}{size} on {cell.ranks} ranks; link {link}; "
        f"one-way latency {format_seconds(cell.latency_s)}{by}{_asked(cell)}."
    )


def _asked(cell: Cell) -> str:
    """List the settings that the line does not name already."""
    told = {f.name for f in fields(cell)}
    asked = {k: v for k, v in cell.settings.items() if k not in told and not isinstance(v, list)}
    return "".join(f"; {_setting(name, value)}" for name, value in asked.items())


def _setting(name: str, value: object) -> str:
    words = name.removesuffix("_s").replace("_", " ")
    if name.endswith("_s") and isinstance(value, float):
        return f"{words} {format_seconds(value)}"
    return f"{words} {value}"


def bench_intro(result: BenchResult) -> str:
    """Say in one line how much was measured, and when."""
    modes = len({mode.mode for cell in result.cells for mode in cell.modes})
    cells = f"{len(result.cells)} cell" + "s" * (len(result.cells) != 1)
    return (
        f"{cells}, {modes} ways to exchange gradients. "
        f"Started {result.started}, took {result.wall_s:.0f} s."
    )


def bench_facts(result: BenchResult) -> dict[str, str]:
    """Return the settings and the environment by name."""
    where = result.environment
    asked = {name.replace("_", " "): str(value) for name, value in result.settings.items()}
    return {
        **asked,
        "gradwire": where.gradwire,
        "torch": where.torch,
        "Python": where.python,
        "processor": f"{where.processor}, {where.cores} cores",
        "platform": where.platform,
    }


def bench_notes() -> list[str]:
    """Return what a reader needs to judge the numbers."""
    return [
        (
            "Times are the slowest rank's: median over rounds ± half the interquartile range "
            "of all steps. Rounds of all modes took turns."
        ),
        (
            "Speed-ups are taken round by round, against the plain DDP and the hook of PyTorch "
            "whose steps were shortest in that cell: median (lowest to highest round)."
        ),
        (
            "Exposed comm.: computation waiting for gradients. Hidden comm.: communication under "
            "computation. ROW is hidden over exposed."
        ),
        (
            "Sent per step: by the busiest rank, as counted at its interface in the lab. "
            "algbw: float32 size of the gradients over hidden plus exposed communication; busbw: "
            "that times 2(n-1)/n for n ranks."
        ),
        (
            "Time to DDP's loss: training time until the validation loss was within 1 % of plain "
            "DDP's last one."
        ),
        (
            f"Marked numbers are doubtful: spread over {100 * MAX_SPREAD:.0f} %, fewer than "
            f"{MIN_ROUNDS} rounds, more than {MAX_FOREIGN_CORES} cores busy with other programs, "
            "ranks that differ, or no run."
        ),
    ]
