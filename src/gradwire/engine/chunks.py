"""Chunks: a large part cut into pieces that are encoded and sent one by one.

While one piece travels, the next is encoded. Blocks and shards stay those of
the whole parameter, so that results do not depend on how it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.codecs.base import Segment, Segments
from gradwire.reduce.base import Part, Slot
from gradwire.spec import AllReduce, Broadcast, Entry, ReducerSpec, Sparse, TwoPhase

CHUNK_NUMEL = 1 << 20
"""Values in a piece: some milliseconds of encoding. Each costs as many wake-ups of threads as
there are ranks, so that smaller ones take more time of a core than they hide."""


def cut(spec: ReducerSpec, part: Part, numel: int = CHUNK_NUMEL) -> tuple[Part, ...]:
    """Cut a part into pieces of about `numel` values that a reducer takes one by one.

    What looks at a parameter as a whole is not cut: low rank, and sparse codecs,
    which choose among all of its values.

    Example:
        >>> slot = Slot("w", Entry(1, (1000,)), 0, 0)
        >>> [p.slots[0].entry.numel for p in cut(AllReduce(), Part.of((slot,)), 512)]
        [512, 488]
    """
    match spec:
        case AllReduce():
            return tuple(Part.of(slots) for slots in _pack_slots(part.slots, numel))
        case Broadcast(codec=codec, senders=senders):
            codecs = (codec, *(senders or ()))
            if any(isinstance(c, Sparse) for c in codecs):
                return (part,)
            block_size = math.lcm(*(c.block_size for c in codecs))
            pieces = _pack(part.segments, block_size, numel)
            return tuple(Part(part.slots, piece) for piece in pieces)
        case TwoPhase(codec=codec):
            return _cut_shards(part, codec.block_size, max(numel // len(part.shards), 1))
        case _:
            return (part,)


def _cut_shards(part: Part, block_size: int, numel: int) -> tuple[Part, ...]:
    """Give each piece a share of every rank's shard, so that all ranks stay busy."""
    shards = [_pack(shard, block_size, numel) for shard in part.shards]
    nothing = Segments.of(())
    return tuple(
        Part(
            part.slots,
            Segments.of([s for pieces in shards for s in _get(pieces, i, nothing).items]),
            tuple(_get(pieces, i, nothing) for pieces in shards),
        )
        for i in range(max(len(pieces) for pieces in shards))
    )


def _get(pieces: Sequence[Segments], index: int, nothing: Segments) -> Segments:
    return pieces[index] if index < len(pieces) else nothing


def _pack(segments: Segments, block_size: int, numel: int) -> list[Segments]:
    """Fill pieces with up to `numel` values, cutting at multiples of the block size."""
    length = max(numel // block_size, 1) * block_size
    pieces: list[list[Segment]] = []
    room = 0
    for segment in segments.items:
        start = 0
        while start < segment.numel:
            if room < block_size:
                pieces.append([])
                room = length
            size = min(segment.numel - start, room // block_size * block_size)
            pieces[-1].append(_shift(segment, start, size))
            start, room = start + size, room - size
    return [Segments.of(piece) for piece in pieces]


def _shift(segment: Segment, start: int, numel: int) -> Segment:
    return segment._replace(
        offset=segment.offset + start,
        residual_offset=segment.residual_offset + start,
        numel=numel,
        start=segment.start + start,
    )


def _pack_slots(slots: Sequence[Slot], numel: int) -> list[tuple[Slot, ...]]:
    """Fill pieces with slots; plain sums do not care where a parameter begins."""
    pieces: list[list[Slot]] = []
    room = 0
    for slot in slots:
        start = 0
        while start < slot.entry.numel:
            if room == 0:
                pieces.append([])
                room = numel
            size = min(slot.entry.numel - start, room)
            entry = Entry(slot.entry.stream, (size,))
            pieces[-1].append(Slot(slot.name, entry, slot.offset + start, slot.residual_offset))
            start, room = start + size, room - size
    return [tuple(piece) for piece in pieces]
