"""Reducer specs: how ranks combine payloads, and what each sends and receives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from gradwire.errors import SpecError
from gradwire.layout import GROUP, Stretch, shard, shard_numels
from gradwire.spec.base import CODEC_SPECS, REDUCER_SPECS, CodecSpec, Entry, ReducerSpec, Transfer
from gradwire.spec.codecs import FLOAT_BYTES, Quantize, Sign, Sparse
from gradwire.spec.fields import check_switch, check_whole

MAX_STRETCH = 1 << 30
"""Longest stretch with indices of its own; keeps 32-bit indices non-negative."""

_STABLE_BITS = 3
"""From here on the relative variance of stochastic levels is well below 1."""


def _check_codec(field: str, codec: object) -> None:
    if not isinstance(codec, CodecSpec) or isinstance(codec, type):
        known = ", ".join(CODEC_SPECS[i].__name__ for i in CODEC_SPECS)
        raise SpecError(field, codec, f"a codec spec, such as one of: {known}")


def _check_feedback(owner: str, codec: CodecSpec, *, feedback: bool) -> None:
    """Refuse feedback where the residual would grow without end."""
    check_switch(f"{owner}.feedback", feedback)
    if feedback and isinstance(codec, Quantize) and not codec.is_contraction:
        remedy = "use more bits, Sign, feedback=False, or rounding='nearest' with 2 bits"
        raise SpecError(
            f"{owner}.feedback", feedback, f"possible with {codec}, which loses too much: {remedy}"
        )


def _even_transfers(numel: int, itemsize: int, world_size: int, rank: int) -> tuple[Transfer, ...]:
    """Exchanges of a direct all-reduce: shards to their owners, then back."""
    if world_size == 1 or numel == 0:
        return ()
    own = shard(numel, 1, rank, world_size).numel
    others = numel - own
    spread, collect = others * itemsize, own * (world_size - 1) * itemsize
    return Transfer(spread, collect), Transfer(collect, spread)


@REDUCER_SPECS.register("all_reduce")
@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum plain floats on the wire; float32 is exact averaging.

    Example:
        >>> AllReduce("float32").transfers([Entry(0, (100,))], world_size=2, rank=0)
        (Transfer(sent_bytes=200, received_bytes=200), Transfer(sent_bytes=200, received_bytes=200))
    """

    id: ClassVar[str] = "all_reduce"
    format: Literal["float32", "bfloat16"] = "float32"
    feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.format not in ("float32", "bfloat16"):
            raise SpecError("AllReduce.format", self.format, "one of: float32, bfloat16")

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the two exchanges of a direct all-reduce."""
        numel = sum(e.numel for e in entries)
        return _even_transfers(numel, FLOAT_BYTES[self.format], world_size, rank)


@REDUCER_SPECS.register("two_phase")
@dataclass(frozen=True, slots=True)
class TwoPhase:
    """Encoded shards to their owners, who average, encode again and send to all.

    Each rank moves `2 (N - 1) / N` payloads, whatever the number of ranks.

    The owner answers for the second rounding with `N` times its error, so
    feedback is stable only while the relative variance of the second codec is
    below a half: the mean travels in 4 bits where the codec has fewer than 3.

    Attributes:
        codec: How gradients travel to the owner of their shard.
        feedback: Whether what was lost is owed in the next step.
        second: How means travel back; None chooses the codec itself, or 4
            bits where that is too coarse.

    Example:
        >>> spec = TwoPhase(Quantize(4))
        >>> spec.transfers([Entry(0, (512,))], world_size=2, rank=0)
        (Transfer(sent_bytes=144, received_bytes=144), Transfer(sent_bytes=144, received_bytes=144))
    """

    id: ClassVar[str] = "two_phase"
    codec: CodecSpec
    feedback: bool = True
    second: CodecSpec | None = None

    def __post_init__(self) -> None:
        _check_codec("TwoPhase.codec", self.codec)
        for codec in (self.codec, self.mean_codec):
            _check_codec("TwoPhase.second", codec)
            if isinstance(codec, Sparse):
                raise SpecError(
                    "TwoPhase.codec", codec, "a codec whose sums stay as dense as its input"
                )
        if self.codec.block_size % self.mean_codec.block_size:
            raise SpecError(
                "TwoPhase.second", self.second, "of a block size that divides the codec's"
            )
        _check_feedback("TwoPhase", self.codec, feedback=self.feedback)

    @property
    def mean_codec(self) -> CodecSpec:
        """How means travel back to all ranks."""
        if self.second is not None:
            return self.second
        is_coarse = isinstance(self.codec, Sign) or (
            isinstance(self.codec, Quantize) and self.codec.bits < _STABLE_BITS
        )
        return Quantize(_STABLE_BITS + 1, block_size=GROUP) if is_coarse else self.codec

    def shards(self, entries: Sequence[Entry], owner: int, world_size: int) -> list[Stretch]:
        """Return the stretch of each entry that rank `owner` averages."""
        size = self.codec.block_size
        return [shard(e.numel, size, owner, world_size, e.stream) for e in entries]

    def shard_bytes(
        self, entries: Sequence[Entry], world_size: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the size of each rank's shard, as gradients and as means."""
        return _shard_bytes(self, tuple(entries), world_size)

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the exchange of shards and the exchange of their means."""
        if world_size == 1:
            return ()
        return tuple(
            Transfer(*(moved if is_first else reversed(moved)))
            for is_first, sizes in zip(
                (True, False), self.shard_bytes(entries, world_size), strict=True
            )
            for moved in [_spread_and_collect(sizes, rank)]
        )


@lru_cache(maxsize=256)
def _shard_bytes(
    spec: TwoPhase, entries: tuple[Entry, ...], world_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    size = spec.codec.block_size
    rows = [shard_numels(e.numel, size, world_size, e.stream) for e in entries]
    numels = list(zip(*rows, strict=True)) if rows else [()] * world_size
    kinds = {n: [x for x in n if x] for n in set(numels)}  # of many ranks, most own alike
    first, second = (
        {n: codec.num_bytes(kept) for n, kept in kinds.items()}
        for codec in (spec.codec, spec.mean_codec)
    )
    return tuple(first[n] for n in numels), tuple(second[n] for n in numels)


def _spread_and_collect(sizes: Sequence[int], rank: int) -> tuple[int, int]:
    """Bytes of the others' shards, and of the own shard once for each other rank."""
    return sum(sizes) - sizes[rank], sizes[rank] * (len(sizes) - 1)


def stretches(numel: int) -> list[Stretch]:
    """Cut a parameter into stretches short enough for 32-bit places.

    Example:
        >>> [s.numel for s in stretches(3_000_000_000)]
        [1073741824, 1073741824, 852516352]
    """
    return [
        Stretch(start, min(MAX_STRETCH, numel - start)) for start in range(0, numel, MAX_STRETCH)
    ]


@REDUCER_SPECS.register("broadcast")
@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every rank sends its payload to all others; each averages what it received.

    One exchange instead of two, but `N - 1` payloads a rank: for few ranks, or
    for payloads that stay small however many ranks there are.

    Attributes:
        codec: How gradients travel.
        feedback: Whether what was lost is owed in the next step.
        senders: By rank, a codec of its own, so that a slow link sends less;
            None where all use `codec`.
        force: Whether a plan accepts it where a bfloat16 all-reduce would
            move fewer bytes.

    Example:
        >>> spec = Broadcast(Sparse(density=0.01))
        >>> spec.transfers([Entry(0, (100_000,))], world_size=2, rank=0)
        (Transfer(sent_bytes=8016, received_bytes=8016),)
    """

    id: ClassVar[str] = "broadcast"
    codec: CodecSpec
    feedback: bool = True
    senders: tuple[CodecSpec, ...] | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.senders is not None:
            if not isinstance(self.senders, (tuple, list)):
                raise SpecError(
                    "Broadcast.senders", self.senders, "a tuple of codec specs, by rank"
                )
            object.__setattr__(self, "senders", tuple(self.senders))
        check_switch("Broadcast.force", self.force)
        for codec in (self.codec, *(self.senders or ())):
            _check_codec("Broadcast.codec", codec)
            _check_feedback("Broadcast", codec, feedback=self.feedback)

    def codecs(self, world_size: int) -> tuple[CodecSpec, ...]:
        """Return the codec of each rank.

        Raises:
            SpecError: `senders` are of another number of ranks.
        """
        if self.senders is None:
            return (self.codec,) * world_size
        if len(self.senders) != world_size:
            raise SpecError(
                "Broadcast.senders",
                f"{len(self.senders)} codecs",
                f"{world_size}, one for each rank",
            )
        return self.senders

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the one exchange of whole payloads."""
        if world_size == 1:
            return ()
        numels = [s.numel for e in entries for s in stretches(e.numel)]
        sizes = [codec.num_bytes(numels) for codec in self.codecs(world_size)]
        return (Transfer(sizes[rank] * (world_size - 1), sum(sizes) - sizes[rank]),)

    def refusal(self, entries: Sequence[Entry], world_size: int) -> str | None:
        """Return why a bfloat16 all-reduce is the better choice, or None.

        Example:
            >>> Broadcast(Quantize(8)).refusal([Entry(0, (1024, 1024))], world_size=8)
            'sends 7454720 bytes a rank with 8 ranks, a bf16 all-reduce 3670016'
        """
        own, bf16 = (
            sent_bytes(spec, entries, world_size) for spec in (self, AllReduce("bfloat16"))
        )
        if self.force or world_size == 1 or own < bf16:
            return None
        return f"sends {own} bytes a rank with {world_size} ranks, a bf16 all-reduce {bf16}"


@REDUCER_SPECS.register("low_rank")
@dataclass(frozen=True, slots=True)
class LowRank:
    """Two thin factors for each matrix (PowerSGD), warm-started from step to step.

    Example:
        >>> LowRank(1).transfers([Entry(0, (64, 32))], world_size=2, rank=0)[0]
        Transfer(sent_bytes=128, received_bytes=128)
    """

    id: ClassVar[str] = "low_rank"
    matrix_rank: int = 1
    warm_start: bool = True
    feedback: bool = True

    def __post_init__(self) -> None:
        check_whole("LowRank.matrix_rank", self.matrix_rank, 1)
        check_switch("LowRank.warm_start", self.warm_start)
        check_switch("LowRank.feedback", self.feedback)

    @staticmethod
    def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
        """Fold a tensor's shape into rows (the first dimension) and columns."""
        return math.prod(shape[:1]), math.prod(shape[1:])

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the exchanges of the all-reduce of P and that of Q."""
        shapes = [self.matrix_shape(e.shape) for e in entries]
        rows = sum(min(self.matrix_rank, *s) * s[0] for s in shapes)
        columns = sum(min(self.matrix_rank, *s) * s[1] for s in shapes)
        return _even_transfers(rows, 4, world_size, rank) + _even_transfers(
            columns, 4, world_size, rank
        )


def sent_bytes(spec: ReducerSpec, entries: Sequence[Entry], world_size: int) -> int:
    """Return the bytes that the busiest rank sends in one reduction.

    Example:
        >>> sent_bytes(AllReduce("float32"), [Entry(0, (100,))], 2)
        400
    """
    if isinstance(spec, TwoPhase) and world_size > 1:
        first, second = spec.shard_bytes(entries, world_size)
        others = world_size - 1
        return sum(first) + max(others * m - s for s, m in zip(first, second, strict=True))
    # Plain sums are cut evenly: nobody's shard is larger than the last one's.
    is_even = isinstance(spec, (AllReduce, LowRank))
    return max(
        sum(t.sent_bytes for t in spec.transfers(entries, world_size, rank))
        for rank in range(world_size - 1 if is_even else 0, world_size)
    )
