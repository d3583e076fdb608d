"""Encoded shards to their owners, encoded means to all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.codecs.base import Codec, Segments, build
from gradwire.comm.base import Collective, Steps
from gradwire.key import Key
from gradwire.reduce.base import REDUCERS, Part, Slot, State
from gradwire.spec import TwoPhase


@REDUCERS.register("two_phase")
class TwoPhaseReducer:
    """Averages like an all-reduce, with every value encoded on both ways.

    The owner of a shard rounds its mean a second time. What that loses is
    missing from the result once, but from the owner's `sent` it must be taken
    `world_size` times, so that the mean of `sent` over ranks is the result.

    Args:
        spec: The parameters.
    """

    def __init__(self, spec: TwoPhase) -> None:
        self.spec = spec
        self._codec = build(spec.codec)
        self._mean_codec = build(spec.mean_codec)

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`."""
        entries = [slot.entry for slot in slots]
        return Part.of(
            slots,
            tuple(
                Segments.of(
                    [
                        slot.segment(stretch)
                        for slot, stretch in zip(
                            slots, self.spec.shards(entries, owner, world_size), strict=True
                        )
                    ]
                )
                for owner in range(world_size)
            ),
        )

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        if group.world_size == 1:
            part.copy(x, out)
            return
        shards, rank = part.shards, group.rank
        residual = state.residual if self.spec.feedback else None
        yield from reduce_scatter(self._codec, x, shards, key, residual, group, out)

        second = key._replace(part=1)
        codec = self._mean_codec
        gain = float(group.world_size)
        mean = codec.encode(out, shards[rank], second, residual, gain)
        sizes = [codec.spec.num_bytes(shard.numels) for shard in shards]
        means = [mean if r == rank else mean.new_empty(n) for r, n in enumerate(sizes)]
        yield from group.all_to_all(means, [mean] * group.world_size)
        for payload, shard in zip(means, shards, strict=True):
            codec.decode(payload[None], shard, out)


def reduce_scatter(  # noqa: PLR0913 - what a reducer has at hand
    codec: Codec,
    x: Tensor,
    shards: Sequence[Segments],
    key: Key,
    residual: Tensor | None,
    group: Collective,
    out: Tensor,
    *,
    divisor: float | None = None,
) -> Steps[None]:
    """Send each rank its shard, encoded, and average what arrives of the own one.

    Args:
        codec: How shards travel.
        x: All shards, float32, 1-D, contiguous; not changed unless it is `out`.
        shards: By rank, the stretches it owns.
        key: Stream of the noise.
        residual: What this rank owes to each shard, or None for no feedback.
        group: The ranks.
        out: Like `x`; only the own shard's values are written.
        divisor: 1 for the sum; None for the mean.
    """
    # All of `x` is encoded before anything is written: `out` may be `x`.
    payloads = [codec.encode(x, shard, key, residual) for shard in shards]
    rows = payloads[group.rank].new_empty(group.world_size, payloads[group.rank].numel())
    yield from group.all_to_all(rows.unbind(), payloads)
    codec.decode(rows, shards[group.rank], out, divisor or group.world_size)
