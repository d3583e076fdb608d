"""The parts of a step as stacked bars, in percent of the longest step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from gradwire.report.summary import Spread, format_milliseconds

PARTS = ("forward", "backward", "exposed communication", "optimiser")
"""What a step is made of, in the order of the bars."""


class HasParts(Protocol):
    """Anything that knows the spread of each part of a step."""

    @property
    def step_s(self) -> Spread:
        """Whole steps."""

    @property
    def forward_s(self) -> Spread:
        """Forward passes."""

    @property
    def backward_s(self) -> Spread:
        """Backward passes."""

    @property
    def exposed_s(self) -> Spread:
        """Communication that was not hidden."""

    @property
    def optimiser_s(self) -> Spread:
        """Steps of the optimiser."""


class Bar(NamedTuple):
    """One method: a width per part, in percent, and the step in words."""

    label: str
    family: str
    widths: tuple[float, ...]
    total: str


class Breakdown(NamedTuple):
    """All bars, and what they show for those who do not see them."""

    bars: tuple[Bar, ...]
    description: str
    parts: tuple[str, ...] = PARTS


def part_spreads(numbers: HasParts) -> tuple[Spread, ...]:
    """Return the spread of each of `PARTS`."""
    return (numbers.forward_s, numbers.backward_s, numbers.exposed_s, numbers.optimiser_s)


def breakdown(methods: Iterable[tuple[str, str, HasParts]]) -> Breakdown:
    """Return the bars of methods, given by label, family and numbers."""
    taken = [(label, family, numbers, part_spreads(numbers)) for label, family, numbers in methods]
    longest_s = max((sum(p.median for p in parts) for *_, parts in taken), default=0.0) or 1.0
    bars = tuple(
        Bar(
            label,
            family,
            tuple(100 * p.median / longest_s for p in parts),
            f"{format_milliseconds(numbers.step_s.median)} ms",
        )
        for label, family, numbers, parts in taken
    )
    words = "; ".join(f"{bar.label} {bar.total}" for bar in bars)
    return Breakdown(bars, f"Medians of the parts of a step, stacked. {words}.")
