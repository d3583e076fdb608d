"""Ways: how layers may travel, at which floors, and what each rank's link allows."""

from __future__ import annotations

from gradwire.control.levels import Exchange, bf16_bytes, demand
from gradwire.control.measured import Measured
from gradwire.errors import SpecError
from gradwire.planner.bits import Demand
from gradwire.spec.adaptive import LEVELS, Adaptive

ENCODINGS: dict[Exchange, float] = {"broadcast": 1.0, "two_phase": 2.0}
"""On the way to the mean: each adds about the same squared error."""
LEAST = 1e-30
"""Stands for an error of 0: gradients of zeros need no bits, but a plan."""
_UNLIKE = 1.25
"""Links that differ by more get bits of their own."""


class Ways:
    """What a controller may choose from, after the steps that were measured.

    Args:
        settings: What may be chosen.
        measured: Layers and links.
    """

    def __init__(self, settings: Adaptive, measured: Measured) -> None:
        self._settings = settings
        self._measured = measured

    def exchanges(self, floor: int, world_size: int) -> list[Exchange]:
        """Return what may be used; broadcast only where it moves less than bfloat16.

        Raises:
            SpecError: Broadcast was asked for, and moves more even at the floor.
        """
        asked = self._settings.reducer
        ways: list[Exchange] = ["two_phase", "broadcast"] if asked == "best" else [asked]
        if "broadcast" in ways and not self._settings.force:
            is_refused = not self.is_below_bf16("broadcast", floor, world_size)
            if is_refused and asked == "broadcast":
                least, limit = self._least_and_bf16("broadcast", floor, world_size)
                raise SpecError(
                    "Adaptive.reducer",
                    asked,
                    f"sensible here: at the floor of {floor} bits it would send {least} bytes a"
                    f" rank with {world_size} ranks, a bf16 all-reduce {limit}; use"
                    " reducer='two_phase', a lower floor, or force=True",
                )
            if is_refused:
                ways.remove("broadcast")
        return ways

    def _least_and_bf16(self, exchange: Exchange, least: int, world_size: int) -> tuple[int, int]:
        """Return the bytes of a floor, and those of a bfloat16 all-reduce."""
        demands = self.demands(exchange, least, world_size)
        limit = sum(bf16_bytes(n, world_size) for n in self._measured.numels)
        return sum(d.options[0].cost for d in demands), limit

    def is_below_bf16(self, exchange: Exchange, least: int, world_size: int) -> bool:
        """Whether a floor moves less than a bfloat16 all-reduce, or may move more."""
        size, limit = self._least_and_bf16(exchange, least, world_size)
        return size < limit or self._settings.force

    def demands(self, exchange: Exchange, floor: int, world_size: int) -> list[Demand]:
        """Return what can be chosen for each layer."""
        settings = self._settings
        bounds, feedback, force = (floor, settings.cap), settings.feedback, settings.force
        return [
            demand(n, world_size, exchange, bounds, s.rounded(), feedback=feedback, force=force)
            for n, s in zip(self._measured.numels, self._measured.shares, strict=True)
        ]

    def weights(self, exchange: Exchange) -> list[float]:
        """Return what errors count, by layer."""
        return [max(x, LEAST) * ENCODINGS[exchange] for x in self._measured.squares]

    def floors(self, floor: int) -> list[int]:
        """Return this floor and all above."""
        return [bits for bits in LEVELS if floor <= bits <= self._settings.cap]

    def rates(self, exchange: Exchange) -> list[float]:
        """Return the rate of each sender, or the slowest for all."""
        rates = [max(rate, 1.0) for rate in self._measured.bandwidth]
        differ = max(rates) > _UNLIKE * min(rates)
        return (
            rates if exchange == "broadcast" and self._settings.senders and differ else [min(rates)]
        )
