"""Sums, norms and counts of a long vector in one read.

`plain` adds in registers. `matrix` multiplies tiles with ones, so that a matrix
unit does the adding; counts above several thresholds fill its columns. Reading
the values takes longer than either on every GPU this was planned for, so
`matrix` can win only inside a kernel that is short of instructions otherwise.

Each program writes its own part, and parts are added in their order: no atomic
operations, and the same result every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.forms import form_of
from gradwire.kernels.ops import MAX_THRESHOLDS
from gradwire.kernels.triton.hadamard import times_exact
from gradwire.kernels.triton.tiles import OPTIONS

_PROGRAMS = 1024
_ROWS, _COLUMNS = tl.constexpr(32), tl.constexpr(64)


@triton.jit
def _counted(counts, magnitude, thresholds_ptr, THRESHOLDS: tl.constexpr, FORM: tl.constexpr):
    """Add to `[rows, 16]` how many magnitudes of each row exceed each threshold."""
    column = tl.arange(0, 16)[None, :]
    for t in tl.static_range(THRESHOLDS):
        above = magnitude > tl.load(thresholds_ptr + t)
        if FORM == "matrix":
            ones = tl.broadcast_to(column == t, (_COLUMNS, 16)).to(tl.float16)
            counts = tl.dot(above.to(tl.float16), ones, counts)
        else:
            found = tl.sum(above.to(tl.float32), 1)[:, None]
            counts += tl.where(column == t, found, 0.0)
    return counts


@triton.jit(do_not_specialize=["one"])
def statistics_kernel(
    x_ptr,
    thresholds_ptr,
    sums_ptr,
    counts_ptr,
    numel,
    tiles,
    one,
    THRESHOLDS: tl.constexpr,
    FORM: tl.constexpr,
):
    """Add up every so-manieth tile.

    `one` is 1.0. Times it, a tile's product is added outside of the matrix
    unit, whose own long sums are cut off, not rounded.
    """
    WIDTH: tl.constexpr = 16 if FORM == "matrix" else _COLUMNS
    TILE: tl.constexpr = _ROWS * _COLUMNS
    total = tl.zeros((_ROWS, WIDTH), tl.float32)
    squares = tl.zeros((_ROWS, WIDTH), tl.float32)
    absolute = tl.zeros((_ROWS, WIDTH), tl.float32)
    peak = tl.zeros((_ROWS, _COLUMNS), tl.float32)
    counts = tl.zeros((_ROWS, 16), tl.float32)
    place = tl.arange(0, _ROWS)[:, None] * _COLUMNS + tl.arange(0, _COLUMNS)[None, :]
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        index = tl.full((), TILE, tl.int64) * tile + place
        x = tl.load(x_ptr + index, mask=index < numel, other=0.0)
        magnitude = tl.abs(x)
        peak = tl.maximum(peak, magnitude)
        if FORM == "matrix":
            ones = tl.full((_COLUMNS, 16), 1.0, tl.float32)
            none = tl.zeros((_ROWS, 16), tl.float32)
            total += times_exact(x, ones, none) * one
            squares += times_exact(x * x, ones, none) * one
            absolute += times_exact(magnitude, ones, none) * one
        else:
            total += x
            squares += x * x
            absolute += magnitude
        counts = _counted(counts, magnitude, thresholds_ptr, THRESHOLDS, FORM)
    # The 16 columns of a product with ones are equal.
    SHARE: tl.constexpr = 0.0625 if FORM == "matrix" else 1.0
    sums_ptr += tl.program_id(0) * 4
    tl.store(sums_ptr, tl.sum(tl.sum(total, 1), 0) * SHARE)
    tl.store(sums_ptr + 1, tl.sum(tl.sum(squares, 1), 0) * SHARE)
    tl.store(sums_ptr + 2, tl.sum(tl.sum(absolute, 1), 0) * SHARE)
    tl.store(sums_ptr + 3, tl.max(tl.max(peak, 1), 0))
    tl.store(counts_ptr + tl.program_id(0) * 16 + tl.arange(0, 16), tl.sum(counts, 0).to(tl.int32))


def statistics(x: Tensor, thresholds: Sequence[float]) -> Tensor:
    """See `gradwire.kernels.reference_products.statistics`."""
    tiles = -(-x.numel() // (_ROWS.value * _COLUMNS.value))
    programs = min(max(tiles, 1), _PROGRAMS)
    sums = torch.empty(programs, 4, dtype=torch.float32, device=x.device)
    counts = torch.empty(programs, MAX_THRESHOLDS, dtype=torch.int32, device=x.device)
    cuts = torch.tensor([*thresholds, 0.0], dtype=torch.float32, device=x.device)
    statistics_kernel[(programs,)](
        *(x, cuts, sums, counts, x.numel(), tiles, 1.0),
        THRESHOLDS=len(thresholds),
        FORM=form_of("statistics"),
        **OPTIONS,
    )
    wide = sums.to(torch.float64)
    found = counts.sum(0)[: len(thresholds)].to(torch.float64)
    return torch.cat([wide[:, :3].sum(0), wide[:, 3].amax(0, keepdim=True), found])
