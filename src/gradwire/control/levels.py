"""Levels: what each number of bits sends, moves and loses, for one layer."""

from __future__ import annotations

import functools
from math import log2
from typing import Literal, NamedTuple

from gradwire.planner.bits import Demand, Option, hull
from gradwire.planner.harm import harm
from gradwire.spec import (
    AllReduce,
    Broadcast,
    CodecSpec,
    Entry,
    Float,
    Quantize,
    ReducerSpec,
    Sign,
    Sparse,
    TwoPhase,
    sent_bytes,
)
from gradwire.spec.adaptive import LEVELS

Exchange = Literal["broadcast", "two_phase"]

NORMAL_ERROR = 6.27
"""`A` over the squared norm of normally distributed values, in blocks of 256."""
SPARSE_DENSITY = 0.01
_FLOAT_ERROR = {16: 2.8e-6 / NORMAL_ERROR, 32: 1e-15}
_WITHOUT = {1: 8.5 / NORMAL_ERROR, 2: 1.44 / NORMAL_ERROR}
_STOCHASTIC, _NEAREST = 0.25, 0.125
_PER_OCTAVE = 4
"""Shares are told apart in so many steps for each factor of 2."""


class Shares(NamedTuple):
    """Squared errors over the squared norm of a layer.

    Attributes:
        stochastic: `A`; see `Losses`. Of 3 bits and more.
        sign: Of 1 bit, with feedback.
        nearest: Of 2 bits, with feedback.
        sparse: Of the sparse level.
    """

    stochastic: float = NORMAL_ERROR
    sign: float = 0.36
    nearest: float = 0.65
    sparse: float = 0.92

    def rounded(self) -> Shares:
        """Return shares that differ by less than a tenth, of which there are few."""
        return Shares(*(2 ** (round(_PER_OCTAVE * log2(s)) / _PER_OCTAVE) for s in self))


def codec(bits: int, *, feedback: bool) -> CodecSpec:
    """Return the codec of a level, one whose residual stays bounded with feedback.

    Example:
        >>> codec(1, feedback=True), codec(4, feedback=True).bits
        (Sign(block_size=1024), 4)
    """
    if bits == LEVELS[-1]:
        return Float("float32")
    if bits == LEVELS[-2]:
        return Float("bfloat16")
    if feedback and bits == 1:
        return Sign()
    return Quantize(bits, rounding="nearest" if feedback else "stochastic")


def share(bits: int | None, shares: Shares, *, feedback: bool) -> float:
    """Return the squared error of a level over the squared norm of the layer.

    `L = 2**(bits - 1) - 1` stochastic levels on each side of 0 lose a sixth of
    the squared step, `A / (4 L**2)`, the nearest ones half of that. What the
    coarse ones lose with feedback is measured; without, it is known of normal
    values, see docs/explanation/codecs.md.

    Example:
        >>> share(4, Shares(), feedback=True) < share(2, Shares(), feedback=True)
        True
    """
    if bits is None:
        return shares.sparse
    if feedback and bits <= 2:  # noqa: PLR2004 - the levels that are measured
        return shares.sign if bits == 1 else shares.nearest
    if bits in _FLOAT_ERROR:
        return shares.stochastic * _FLOAT_ERROR[bits]
    if not feedback and bits in _WITHOUT:
        return shares.stochastic * _WITHOUT[bits]
    levels = (1 << bits - 1) - 1
    return shares.stochastic * (_NEAREST if feedback else _STOCHASTIC) / levels**2


def reducer(
    codec_spec: CodecSpec, exchange: Exchange, *, feedback: bool, force: bool
) -> ReducerSpec:
    """Return the reducer of a codec. Sparse payloads are always broadcast."""
    if exchange == "broadcast" or isinstance(codec_spec, Sparse):
        return Broadcast(codec_spec, feedback, force=force)
    return TwoPhase(codec_spec, feedback)


def bf16_bytes(numel: int, world_size: int) -> int:
    """Return what a bfloat16 all-reduce sends.

    Example:
        >>> bf16_bytes(1000, 2)
        2000
    """
    return sent_bytes(AllReduce("bfloat16"), [Entry(0, (numel,))], world_size)


NORMAL_SHARES = Shares()


@functools.lru_cache(maxsize=4096)
def demand(
    numel: int,
    world_size: int,
    exchange: Exchange,
    bounds: tuple[int, int],
    shares: Shares = NORMAL_SHARES,
    *,
    feedback: bool,
    force: bool,
) -> Demand:
    """Return what the solver can choose for a layer; errors are `harm` of its norm.

    Unless forced, no option of a broadcast above the floor moves more than
    bfloat16 would.

    Args:
        numel: Values in the layer.
        world_size: Number of ranks.
        exchange: How it travels.
        bounds: Floor and cap in bits.
        shares: What levels lose.
        feedback: Whether losses are owed.
        force: Whether broadcast may move more than bfloat16.

    Example:
        >>> ways = demand(4096, 2, "broadcast", (3, 8), feedback=True, force=False)
        >>> [o.bits for o in ways.options], [o.bits for o in ways.reliefs]
        ([3, 4, 5, 6, 8], [None, 1])
    """
    entry = [Entry(0, (numel,))]

    def option(bits: int | None) -> Option:
        spec = Sparse(SPARSE_DENSITY) if bits is None else codec(bits, feedback=feedback)
        way = reducer(spec, exchange, feedback=feedback, force=True)
        error = harm(share(bits, shares, feedback=feedback), feedback=feedback)
        name = "sparse" if bits is None else "bits"
        return Option(bits, sent_bytes(way, entry, world_size), error, name)

    floor, cap = bounds
    options = hull(option(bits) for bits in LEVELS if floor <= bits <= cap)
    if exchange == "broadcast" and not force:
        limit = bf16_bytes(numel, world_size)
        options = options[:1] + tuple(o for o in options[1:] if o.cost < limit)
    ways = [option(bits) for bits in LEVELS if bits < floor]
    if feedback:
        ways.append(option(None))
    return Demand(options, hull(o for o in ways if o.cost < options[0].cost))
