"""Levels of one scale on all ranks, summed as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from gradwire.codecs.base import Segments
from gradwire.comm.base import Collective, Float8Collective, Steps
from gradwire.errors import SpecError
from gradwire.kernels import ops
from gradwire.key import Key
from gradwire.layout import num_blocks, shard
from gradwire.reduce.base import REDUCERS, Part, Slot, State
from gradwire.spec import SharedScale

_FLOAT8 = torch.float8_e4m3fn


@REDUCERS.register("shared_scale")
class SharedScaleReducer:
    """Agrees on each block's largest magnitude, then adds up whole numbers.

    The sum of levels is exact, in whatever order it is formed, so nothing is
    lost but each rank's own rounding, and each rank owes just that. The scales
    are a small exchange of their own, beside which other parts are encoded.

    With `float8_e4m3` the back end sums, and rounds at every hop; magnitudes are
    kept so small that no sum of all ranks exceeds the format.

    Args:
        spec: The parameters.

    Source:
        The integers: Xin, Canini, Richtárik and Horváth, Global-QSGD (2023).
        The floats: Peng et al., FP8-LM (2023).
    """

    def __init__(self, spec: SharedScale) -> None:
        self.spec = spec

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`; segments lie in the order of their owners."""
        self.spec.accumulator_for(world_size)
        entries = [slot.entry for slot in slots]
        shards = [
            Segments.of(
                [
                    slot.segment(stretch)
                    for slot, stretch in zip(
                        slots, self.spec.shards(entries, owner, world_size), strict=True
                    )
                ]
            )
            for owner in range(world_size)
        ]
        ordered = Segments.of(list(chain.from_iterable(s.items for s in shards)))
        return replace(Part.of(slots, tuple(shards)), segments=ordered)

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        if group.world_size == 1 or not part.segments.items:
            part.copy(x, out)
            return
        size, table = self.spec.block_size, part.segments.table
        residual = state.residual if self.spec.feedback else None
        blocks = sum(num_blocks(n, size) for n in part.segments.numels)
        peaks = x.new_empty(blocks, dtype=torch.int32)
        ops.shared_peaks(x, table, residual, size, peaks)
        yield from _agree_on_peaks(peaks, group)
        if self.spec.is_float:
            yield from self._sum_floats(x, part, peaks, group, out)
            return
        levels = x.new_empty(part.segments.numel, dtype=torch.int8)
        ops.shared_encode(x, table, peaks, key.stream(), self.spec.bits, size, residual, levels)
        sums = yield from self._summed(levels, part, group)
        ops.shared_decode(sums, table, peaks, self.spec.bits, size, group.world_size, out)

    def _summed(self, levels: Tensor, part: Part, group: Collective) -> Steps[Tensor]:
        """Return the sums of all ranks' levels, each formed by its owner."""
        sizes = [shard.numel for shard in part.shards]
        rows = levels.new_empty(group.world_size, sizes[group.rank])
        pieces = levels.split(sizes)  # type: ignore[no-untyped-call]
        yield from group.all_to_all(rows.unbind(), pieces)
        dtype = getattr(torch, self.spec.accumulator_for(group.world_size))
        sums = levels.new_empty(levels.numel(), dtype=dtype)
        totals = sums.split(sizes)  # type: ignore[no-untyped-call]
        ops.shared_sum(rows, False, totals[group.rank])  # noqa: FBT003 - an op's argument
        yield from group.all_to_all(totals, [totals[group.rank]] * group.world_size)
        return sums

    def _sum_floats(
        self, x: Tensor, part: Part, peaks: Tensor, group: Collective, out: Tensor
    ) -> Steps[None]:
        if not isinstance(group, Float8Collective):
            allowed = "summed by these collectives: use fp8, whose owners sum in float32"
            raise SpecError("SharedScale.accumulator", self.spec.accumulator, allowed)
        segments, size = part.segments, self.spec.block_size
        largest = largest_float8(group.world_size)
        scales = (peaks.view(torch.float32) / largest).split(  # type: ignore[no-untyped-call]
            [num_blocks(n, size) for n in segments.numels]
        )
        scale = torch.cat(
            [s.repeat_interleave(size)[:n] for s, n in zip(scales, segments.numels, strict=True)]
        )
        values = torch.cat([x.narrow(0, s.offset, s.numel) for s in segments.items])
        scaled = torch.where(scale == 0, 0, values / scale).clamp(-largest, largest)
        wire = scaled.to(_FLOAT8)
        yield from group.sum_float8(wire)
        means = (wire.to(torch.float32) / group.world_size * scale).split(segments.numels)  # type: ignore[no-untyped-call]
        for s, mean in zip(segments.items, means, strict=True):
            out.narrow(0, s.offset, s.numel).copy_(mean)


def largest_float8(world_size: int) -> float:
    """Return the largest e4m3 value of which so many fit into one.

    Example:
        >>> largest_float8(2), largest_float8(3)
        (224.0, 144.0)
    """
    most = torch.finfo(_FLOAT8).max
    nearest = torch.tensor([most / world_size]).to(_FLOAT8)
    if float(nearest) * world_size > most:
        nearest = (nearest.view(torch.uint8) - 1).view(_FLOAT8)
    return float(nearest)


def _agree_on_peaks(peaks: Tensor, group: Collective) -> Steps[None]:
    """Replace peaks by their maximum over ranks, found by shards."""
    cuts = [shard(peaks.numel(), 1, r, group.world_size) for r in range(group.world_size)]
    views = [peaks.narrow(0, c.start, c.numel) for c in cuts]
    own = views[group.rank]
    rows = own.new_empty(group.world_size, own.numel())
    yield from group.all_to_all(rows.unbind(), views)
    torch.amax(rows, 0, out=own)
    yield from group.all_to_all(views, [own] * group.world_size)
