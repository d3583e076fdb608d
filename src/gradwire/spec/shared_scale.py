"""The spec of integers under a common scale, which can be added up as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gradwire.errors import SpecError
from gradwire.layout import Stretch, num_blocks, shard, shard_numels
from gradwire.spec.base import REDUCER_SPECS, Entry, Transfer
from gradwire.spec.codecs import MAX_BITS, check_block_size
from gradwire.spec.fields import check_switch, check_whole
from gradwire.spec.reducers import even_transfers, spread_and_collect

_LEAST_BITS = 3
"""With levels -1, 0, 1 a residual may grow by the gradient's peak in every step."""

Accumulator = Literal["int8", "int16", "int32", "float8_e4m3"]
_LIMITS: dict[Accumulator, int] = {"int8": 127, "int16": 32_767, "int32": 2**31 - 1}
_FLOAT8: Accumulator = "float8_e4m3"


@REDUCER_SPECS.register("shared_scale")
@dataclass(frozen=True, slots=True)
class SharedScale:
    """Whole-number levels of one scale on all ranks, summed without rounding.

    Ranks first agree on each block's largest magnitude, then round to its
    levels; sums of levels are exact in any order, so there is no second
    rounding. Levels travel in 8 bits, sums in the accumulator.

    Attributes:
        bits: Of a level, 3 to 8: `2**(bits - 1) - 1` on each side of 0.
        accumulator: How sums travel; None for the narrowest integer that the
            sum of all ranks cannot overflow. `float8_e4m3` is summed by the back
            end itself, where that can.
        block_size: Values that share a scale.
        feedback: Whether what was lost is owed in the next step.

    Example:
        >>> spec = SharedScale(4)
        >>> spec.accumulator_for(18), spec.accumulator_for(19)
        ('int8', 'int16')
        >>> spec.transfers([Entry(0, (512,))], world_size=2, rank=0)[2:]
        (Transfer(sent_bytes=256, received_bytes=256), Transfer(sent_bytes=256, received_bytes=256))
    """

    id: ClassVar[str] = "shared_scale"
    bits: int = 8
    accumulator: Accumulator | None = None
    block_size: int = 256
    feedback: bool = True

    def __post_init__(self) -> None:
        check_whole("SharedScale.bits", self.bits, _LEAST_BITS, MAX_BITS)
        check_block_size("SharedScale", self.block_size)
        check_switch("SharedScale.feedback", self.feedback)
        if self.accumulator not in (None, *_LIMITS, _FLOAT8):
            allowed = "None or one of: " + ", ".join((*_LIMITS, _FLOAT8))
            raise SpecError("SharedScale.accumulator", self.accumulator, allowed)
        if self.is_float and self.bits != MAX_BITS:
            raise SpecError("SharedScale.bits", self.bits, f"{MAX_BITS}, as {_FLOAT8} has")
        if self.is_float and self.feedback:
            allowed = f"False with {_FLOAT8}: what the wire rounds off is no rank's to owe"
            raise SpecError("SharedScale.feedback", self.feedback, allowed)

    @property
    def is_float(self) -> bool:
        """Whether the back end sums floats."""
        return self.accumulator == _FLOAT8

    @property
    def levels(self) -> int:
        """Levels on each side of 0."""
        return (1 << (self.bits - 1)) - 1

    def accumulator_for(self, world_size: int) -> Accumulator:
        """Return how sums over so many ranks travel.

        Raises:
            SpecError: They could overflow.
        """
        if self.is_float:
            return _FLOAT8
        most = world_size * self.levels
        fits: Accumulator = next((a for a in _LIMITS if most <= _LIMITS[a]), "int32")
        chosen = fits if self.accumulator is None else self.accumulator
        if most > _LIMITS[chosen]:
            remedy = "use fewer bits, a wider accumulator, or None, which finds it"
            raise SpecError(
                "SharedScale.accumulator",
                chosen,
                f"wide enough: {world_size} ranks times {self.levels} levels is {most}, above"
                f" {_LIMITS[chosen]}; {remedy}",
            )
        return chosen

    def shards(self, entries: Sequence[Entry], owner: int, world_size: int) -> list[Stretch]:
        """Return the stretch of each entry that rank `owner` sums."""
        return [shard(e.numel, self.block_size, owner, world_size, e.stream) for e in entries]

    def shard_sizes(self, entries: Sequence[Entry], world_size: int) -> tuple[int, ...]:
        """Return how many values each rank sums."""
        rows = [shard_numels(e.numel, self.block_size, world_size, e.stream) for e in entries]
        return tuple(map(sum, zip(*rows, strict=True))) if rows else (0,) * world_size

    def num_blocks(self, entries: Sequence[Entry]) -> int:
        """Count the scales that ranks agree on."""
        return sum(num_blocks(e.numel, self.block_size) for e in entries)

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the two exchanges that find the scales, and the two that sum levels."""
        accumulator = self.accumulator_for(world_size)
        if world_size == 1:
            return ()
        scales = even_transfers(self.num_blocks(entries), 4, world_size, rank)
        if self.is_float:
            return scales + even_transfers(sum(e.numel for e in entries), 1, world_size, rank)
        spread, collect = spread_and_collect(self.shard_sizes(entries, world_size), rank)
        width = int(accumulator.removeprefix("int")) // 8
        return *scales, Transfer(spread, collect), Transfer(width * collect, width * spread)
