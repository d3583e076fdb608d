"""Codec specs: how values become bytes, and how many bytes that makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gradwire.errors import SpecError
from gradwire.layout import ALIGNMENT, GROUP, align, num_blocks, packed_bytes
from gradwire.spec.base import CODEC_SPECS
from gradwire.spec.fields import check_number, check_whole

MAX_BITS = 8
"""Most bits a packed code can have."""

MAX_HADAMARD = 4096
"""Longest block of the Hadamard transform."""


FloatFormat = Literal["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"]
FLOAT_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
_SCALED = {"float16", "float8_e4m3", "float8_e5m2"}


def check_block_size(owner: str, block_size: int) -> None:
    """Make sure that blocks are made of whole packing groups.

    Raises:
        SpecError: They are not.

    Example:
        >>> check_block_size("Quantize", 256)
    """
    check_whole(f"{owner}.block_size", block_size, 0)
    if block_size < GROUP or block_size % GROUP or block_size > 1 << 16:
        raise SpecError(f"{owner}.block_size", block_size, f"a multiple of {GROUP} up to {1 << 16}")


def _scale_bytes(numels: Sequence[int], block_size: int) -> int:
    return align(4 * sum(num_blocks(n, block_size) for n in numels))


@CODEC_SPECS.register("float")
@dataclass(frozen=True, slots=True)
class Float:
    """Values as shorter floats; float16 and float8 with a scale for each block.

    float32 and bfloat16 have range enough and carry no scales.

    Example:
        >>> Float("bfloat16").num_bytes([1000])
        2000
        >>> Float("float8_e4m3").num_bytes([256])
        272
    """

    id: ClassVar[str] = "float"
    format: FloatFormat
    block_size: int = 256

    def __post_init__(self) -> None:
        if self.format not in FLOAT_BYTES:
            raise SpecError("Float.format", self.format, "one of: " + ", ".join(FLOAT_BYTES))
        check_block_size("Float", self.block_size)

    @property
    def is_scaled(self) -> bool:
        """Whether each block carries a float32 scale."""
        return self.format in _SCALED

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: scales (if any), then values in order."""
        scales = _scale_bytes(numels, self.block_size) if self.is_scaled else 0
        return scales + align(FLOAT_BYTES[self.format] * sum(numels))


@CODEC_SPECS.register("quantize")
@dataclass(frozen=True, slots=True)
class Quantize:
    """Whole-number levels of 1 to 8 bits, scaled by each block's largest magnitude.

    With `scale="l2"` they are scaled by the block's L2 norm, as in QSGD: most
    levels then go unused, and the error is many times larger. It is here for
    comparisons. With `rotation="hadamard"` each whole block is transformed
    first, which spreads single large values over all of its places.

    Example:
        >>> Quantize(bits=4).num_bytes([1024])
        528
    """

    id: ClassVar[str] = "quantize"
    bits: int
    block_size: int = 256
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    scale: Literal["max", "l2"] = "max"
    rotation: Literal["none", "hadamard"] = "none"

    def __post_init__(self) -> None:
        check_whole("Quantize.bits", self.bits, 1, MAX_BITS)
        if self.rounding not in ("stochastic", "nearest"):
            raise SpecError("Quantize.rounding", self.rounding, "one of: stochastic, nearest")
        if self.scale not in ("max", "l2"):
            raise SpecError("Quantize.scale", self.scale, "one of: max, l2")
        if self.scale == "l2" and self.bits == 1:
            raise SpecError("Quantize.bits", 1, "at least 2 with scale='l2': a sign and a level")
        check_block_size("Quantize", self.block_size)
        self._check_rotation()

    def _check_rotation(self) -> None:
        if self.rotation not in ("none", "hadamard"):
            raise SpecError("Quantize.rotation", self.rotation, "one of: none, hadamard")
        if self.rotation == "none":
            return
        if self.scale != "max":
            raise SpecError("Quantize.scale", self.scale, "max with rotation='hadamard'")
        if self.block_size & (self.block_size - 1) or self.block_size > MAX_HADAMARD:
            limit = f"a power of two up to {MAX_HADAMARD} with rotation='hadamard'"
            raise SpecError("Quantize.block_size", self.block_size, limit)

    @property
    def is_contraction(self) -> bool:
        """Whether less is lost than was there, as feedback needs.

        Stochastic levels -1, 0, 1 lose 1.4 times the square of normally
        distributed values (blocks of 256), the two levels of 1 bit still more.
        Nearest levels of a norm may all be 0, and then all is lost.

        Source:
            With `d` values in a block and `s` levels on a side of 0, levels of
            the norm lose at most `min(d / s**2, sqrt(d) / s)` of the square:
            lemma 3.1 of QSGD (Alistarh et al., NeurIPS 2017).
        """
        if self.scale == "l2":
            levels = 2 ** (self.bits - 1) - 1
            return self.rounding == "stochastic" and self.block_size < levels**2
        return self.bits > 2 or (self.bits, self.rounding) == (2, "nearest")  # noqa: PLR2004 - above

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: one float32 scale a block, then packed codes."""
        codes = sum(packed_bytes(n, self.bits) for n in numels)
        return _scale_bytes(numels, self.block_size) + align(codes)


@CODEC_SPECS.register("bit_planes")
@dataclass(frozen=True, slots=True)
class BitPlanes:
    """The bits of levels plane by plane, the most significant first.

    A payload names the number of its planes in a header, then come scales,
    signs and magnitudes from the top bit down. Its beginning is itself a
    payload of fewer planes, so a sender may stop early: all receivers use the
    planes that were announced, and the residual keeps the rest.

    Attributes:
        bits: Of the levels that are cut into planes: a sign and magnitude.
        planes: How many there is room for, signs included.

    Example:
        >>> BitPlanes(8, 4).num_bytes([1024])
        544
    """

    id: ClassVar[str] = "bit_planes"
    bits: int = MAX_BITS
    planes: int = MAX_BITS
    block_size: int = 256

    def __post_init__(self) -> None:
        check_whole("BitPlanes.bits", self.bits, 2, MAX_BITS)
        check_whole("BitPlanes.planes", self.planes, 2, self.bits)
        check_block_size("BitPlanes", self.block_size)

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: header, scales, and a section for each plane."""
        return self.prefix_bytes(numels, self.planes)

    def prefix_bytes(self, numels: Sequence[int], planes: int) -> int:
        """Size of the beginning of a payload that holds its first planes."""
        if not sum(numels):
            return 0
        plane = align(sum(packed_bytes(n, 1) for n in numels))
        return ALIGNMENT + _scale_bytes(numels, self.block_size) + planes * plane


@CODEC_SPECS.register("sign")
@dataclass(frozen=True, slots=True)
class Sign:
    """One bit a value: its sign, times the mean magnitude of its block.

    Example:
        >>> Sign(block_size=1024).num_bytes([1024])
        144
    """

    id: ClassVar[str] = "sign"
    block_size: int = 1024

    def __post_init__(self) -> None:
        check_block_size("Sign", self.block_size)

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: one float32 scale a block, then sign bits."""
        return _scale_bytes(numels, self.block_size) + align(
            sum(packed_bytes(n, 1) for n in numels)
        )


@CODEC_SPECS.register("sparse")
@dataclass(frozen=True, slots=True)
class Sparse:
    """The largest values with their places; the others wait in the residual.

    `exact` sends precisely the `density * numel` largest of each parameter;
    `threshold` estimates the cut from two passes and sends what exceeds it,
    up to a fixed capacity; `random` sends evenly spaced values from a start
    that all ranks draw alike, and needs no places.

    Example:
        >>> Sparse(density=0.01).num_bytes([100_000])
        8016
    """

    id: ClassVar[str] = "sparse"
    density: float = 0.01
    selection: Literal["threshold", "exact", "random"] = "exact"

    def __post_init__(self) -> None:
        check_number("Sparse.density", self.density, "a number above 0 and at most 1")
        if not 0 < self.density <= 1:
            raise SpecError("Sparse.density", self.density, "above 0 and at most 1")
        if self.selection not in ("threshold", "exact", "random"):
            raise SpecError("Sparse.selection", self.selection, "one of: threshold, exact, random")

    @property
    def block_size(self) -> int:
        """Stretches begin at multiples of the packing group."""
        return GROUP

    def kept(self, numel: int) -> int:
        """How many of `numel` values one step aims to send."""
        return min(numel, max(1, math.ceil(self.density * numel))) if numel else 0

    def capacity(self, numel: int) -> int:
        """Most values of a stretch that fit into its payload."""
        kept = self.kept(numel)
        return min(numel, kept + kept // 4 + 8) if self.selection == "threshold" else kept

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: counts, places and float32 values.

        `random` sends the number of its stream in place of counts and places.
        """
        slots = sum(self.capacity(n) for n in numels)
        if self.selection == "random":
            return ALIGNMENT + align(4 * slots) if slots else 0
        return align(4 * len(numels)) + 2 * align(4 * slots)
