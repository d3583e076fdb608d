"""From rounds to what a reader compares: medians, paired ratios, gains, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from gradwire.report.bench.doubts import Doubt, doubts
from gradwire.report.model import Validation
from gradwire.report.results import BenchResult, Cell, ModeResult, StepTimes
from gradwire.report.summary import TOLERANCE, Spread
from gradwire.timeline import ratio

TIE = 0.01
"""Modes whose speeds differ by less are level."""
_ITEM_BYTES = 4
_S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster than another mode: median and range over paired rounds.

    Example:
        >>> Speedup.of([1.0, 2.0, 1.5])
        Speedup(median=1.5, low=1.0, high=2.0)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Speedup:
        """Summarise at least one ratio."""
        return cls(median(ratios), min(ratios), max(ratios))

    @property
    def is_clear(self) -> bool:
        """Whether all rounds agree on which is faster, by more than `TIE`."""
        return (self.low > 1 or self.high < 1) and abs(self.median - 1) > TIE


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a mode that ran took and reached; None where it was not measured.

    Attributes:
        dense_bytes: What float32 averaging sends per step.
        algbw_bytes_per_s: Size of the gradients over the time of communication.
        busbw_bytes_per_s: That, times the share an all-reduce moves on each link.
        reached_s: Training time until within `TOLERANCE` of plain DDP's loss.
        prediction_error: Predicted step time over the measured one, minus 1.
        cost_eur: Of all ranks, until that loss.
    """

    step_s: Spread
    forward_s: Spread
    backward_s: Spread
    exposed_s: Spread
    optimiser_s: Spread
    overlap_s: Spread | None
    row: float | None
    dense_bytes: float
    sent_bytes: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    over_ddp: Speedup | None
    over_hook: Speedup | None
    validation: Validation | None
    reached_s: float | None
    predicted_s: float | None
    prediction_error: float | None
    cost_eur: float | None

    @property
    def times_smaller(self) -> float | None:
        """What float32 sends over what was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else None


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """One mode: its numbers, where it ran, and every reason to doubt them."""

    mode: ModeResult
    numbers: Numbers | None
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One cell and its modes, in the order they were given.

    Attributes:
        ddp: The fastest plain DDP, which the others are compared with.
        hook: The fastest of PyTorch's own hooks.
    """

    cell: Cell
    modes: tuple[ModeSummary, ...]
    ddp: ModeResult | None
    hook: ModeResult | None

    def time_doubts(
        self, mode: ModeSummary, reference: ModeResult | None = None
    ) -> tuple[Doubt, ...]:
        """Return the doubts about a mode's times, or about its ratio to another mode."""
        both = [m for m in self.modes if m is mode or m.mode is reference]
        return tuple(d for m in both for d in m.doubts if d.kind != "replicas")

    def ranked(self) -> list[tuple[ModeSummary, Numbers]]:
        """Return the modes that exchanged with their numbers, fastest first."""
        exchanged = [m for m in self.modes if m.mode.family != "compute"]
        ran = [(m, m.numbers) for m in exchanged if m.numbers is not None]
        return sorted(ran, key=lambda pair: pair[1].step_s.median)

    def level(self) -> list[ModeSummary]:
        """Return the fastest mode, and those that are not clearly slower."""
        ranked = [mode for mode, _ in self.ranked()]
        return [m for m in ranked if not _is_slower(ranked[0].mode, m.mode)]


def summarise_bench(
    result: BenchResult, *, euro_per_rank_hour: float | None = None
) -> list[CellSummary]:
    """Return the summary of each cell.

    Args:
        result: What the bench measured.
        euro_per_rank_hour: Price of one rank, for the cost of a training.
    """
    return [_cell(cell, euro_per_rank_hour) for cell in result.cells]


def speedup(reference: ModeResult | None, mode: ModeResult) -> Speedup | None:
    """Compare two modes of a cell, round by round; None where one did not run."""
    if reference is None:
        return None
    pairs = zip(reference.rounds, mode.rounds, strict=False)
    ratios = [theirs.step_s / mine.step_s for theirs, mine in pairs if mine.step_s > 0]
    return Speedup.of(ratios) if ratios else None


def _is_slower(reference: ModeResult, mode: ModeResult) -> bool:
    found = speedup(reference, mode)
    return found is not None and found.is_clear and found.median < 1


def _cell(cell: Cell, price: float | None) -> CellSummary:
    ddp, hook = _fastest(cell, "ddp"), _fastest(cell, "hook")
    modes = tuple(
        ModeSummary(m, _numbers(cell, m, (ddp, hook), price) if m.has_run else None, doubts(m))
        for m in cell.modes
    )
    return CellSummary(cell, modes, ddp, hook)


def _fastest(cell: Cell, family: str) -> ModeResult | None:
    ran = [m for m in cell.modes if m.family == family and m.has_run]
    return min(ran, key=lambda m: m.step_s, default=None)


def _numbers(
    cell: Cell,
    mode: ModeResult,
    others: tuple[ModeResult | None, ModeResult | None],
    price: float | None,
) -> Numbers:
    ddp, hook = others

    def spread(part: Callable[[StepTimes], float]) -> Spread:
        return Spread.of([part(s) for s in mode.steps])

    exposed_s = spread(lambda s: s.exposed_s)
    overlap_s = _overlap(mode)
    algbw = _algbw(cell, exposed_s, overlap_s)
    reached_s = _reached(mode, ddp)
    return Numbers(
        step_s=Spread(mode.step_s, mode.spread_s),
        forward_s=spread(lambda s: s.forward_s),
        backward_s=spread(lambda s: s.backward_s),
        exposed_s=exposed_s,
        optimiser_s=spread(lambda s: s.optimiser_s),
        overlap_s=overlap_s,
        row=ratio(overlap_s.median, exposed_s.median) if overlap_s else None,
        dense_bytes=_sent(ddp) if ddp else _ring_share(cell) * _gradient_bytes(cell),
        sent_bytes=_sent(mode),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw and algbw * _ring_share(cell),
        over_ddp=speedup(ddp, mode),
        over_hook=speedup(hook, mode),
        validation=mode.validations[-1] if mode.validations else None,
        reached_s=reached_s,
        predicted_s=mode.predicted_s,
        prediction_error=mode.predicted_s and mode.predicted_s / mode.step_s - 1,
        cost_eur=_cost(cell, reached_s, price),
    )


def _overlap(mode: ModeResult) -> Spread | None:
    times = [s.overlap_s for s in mode.steps if s.overlap_s is not None]
    return Spread.of(times) if times else None


def _sent(mode: ModeResult) -> float:
    return median(r.sent_bytes for r in mode.rounds)


def _gradient_bytes(cell: Cell) -> int:
    return _ITEM_BYTES * cell.num_parameters


def _ring_share(cell: Cell) -> float:
    """Return what a rank sends of its tensor in a ring all-reduce.

    Source: NCCL tests, PERFORMANCE.md: busbw of an all-reduce.
    """
    return 2 * (cell.ranks - 1) / cell.ranks


def _algbw(cell: Cell, exposed_s: Spread, overlap_s: Spread | None) -> float | None:
    if overlap_s is None or not cell.num_parameters:
        return None
    busy_s = exposed_s.median + overlap_s.median
    return _gradient_bytes(cell) / busy_s if busy_s > 0 else None


def _reached(mode: ModeResult, ddp: ModeResult | None) -> float | None:
    if ddp is None or not ddp.validations:
        return None
    goal = ddp.validations[-1].loss * (1 + TOLERANCE)
    points = zip(mode.validations, mode.elapsed_s, strict=False)
    return next((at_s for v, at_s in points if v.loss <= goal), None)


def _cost(cell: Cell, reached_s: float | None, price: float | None) -> float | None:
    if reached_s is None or price is None:
        return None
    return reached_s / _S_PER_HOUR * cell.ranks * price
