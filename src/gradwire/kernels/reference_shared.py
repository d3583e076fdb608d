"""Levels under a scale that all ranks share, in plain PyTorch.

What every back end must match, as in `reference.py`. Levels are signed bytes in
the order of the stretches, so that those of several ranks can be added up. A
block's peak, as the bits of a float32 without sign, says its scale; bits are
ordered like magnitudes, with NaN above infinity above all else. Where a peak is
not finite all levels are 0, the residual stays as it was, and what is decoded is
NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.checks import Row
from gradwire.kernels.reference import (
    Peaks,
    blocks,
    divide,
    expand,
    keep,
    magnitude_bits,
    noise,
    owed,
    peaks_of,
    scale_to,
)
from gradwire.layout import num_blocks


def shared_peaks(
    x: Tensor, segments: Tensor, residual: Tensor | None, block_size: int, peaks: Tensor
) -> None:
    """Find the largest magnitude of each block of what is owed."""
    rows = checks.check_rows(segments, x, residual, block_size)
    checks.check_blocks(rows, block_size, peaks)
    found = [
        magnitude_bits(blocks(owed(x, row, residual, 0.0), block_size)).amax(1) for row in rows
    ]
    if found:
        peaks.copy_(torch.cat(found))


def _by_stretch(rows: list[Row], block_size: int, peaks: Tensor) -> list[Peaks]:
    counts = [num_blocks(row[2], block_size) for row in rows]
    return [peaks_of(bits.view(-1, 1)) for bits in peaks.split(counts)]  # type: ignore[no-untyped-call]


def shared_encode(
    x: Tensor,
    segments: Tensor,
    peaks: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    residual: Tensor | None,
    levels: Tensor,
) -> None:
    """Round each value to a level, as `quantize_encode` does with its own peaks."""
    rows = checks.check_rows(segments, x, residual, block_size)
    checks.check_blocks(rows, block_size, peaks)
    checks.check_levels(rows, levels)
    fraction = 16 if bits <= 6 else 12  # noqa: PLR2004 - so that products stay below 2**22
    one, offset = 1 << fraction, 0
    for row, r in zip(rows, _by_stretch(rows, block_size, peaks), strict=True):
        value = owed(x, row, residual, 0.0)
        v = blocks(value, block_size)
        scale, inverse = scale_to(r, 2.0 ** (bits - 1) - 1)
        fixed = torch.round(torch.where(r.finite, v, 0) * r.lift * (inverse * one))
        u = noise(stream, row, block_size, fraction, x.device)
        level = (fixed.to(torch.int32) + u) >> fraction
        level = torch.where(r.finite, level, 0)
        numel = value.numel()
        decoded = (level.to(torch.float32) * scale).view(-1)[:numel]
        settled = r.finite.expand_as(v).reshape(-1)[:numel]
        keep(residual, row, 0.0, value - decoded, settled)
        levels[offset : offset + numel].copy_(level.view(-1)[:numel])
        offset += numel


def shared_sum(levels: Tensor, accumulate: bool, total: Tensor) -> None:
    """Add up rows of levels; whoever calls makes sure that nothing overflows."""
    if not accumulate:
        total.zero_()
    for row in levels:
        total += row


def shared_decode(
    sums: Tensor,
    segments: Tensor,
    peaks: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    out: Tensor,
) -> None:
    """Multiply sums of levels by their block's scale, and divide."""
    rows = checks.check_rows(segments, out, None, block_size)
    checks.check_blocks(rows, block_size, peaks)
    checks.check_levels(rows, sums)
    start = 0
    for row, r in zip(rows, _by_stretch(rows, block_size, peaks), strict=True):
        offset, _, numel, _, _ = row
        scale, _ = scale_to(r, 2.0 ** (bits - 1) - 1)
        total = sums[start : start + numel].to(torch.float32)
        mean = divide(total * expand(scale.view(-1), block_size, numel), divisor)
        out[offset : offset + numel].copy_(mean)
        start += numel
