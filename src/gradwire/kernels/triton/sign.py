"""Encode and decode of the sign codec."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.blocks import (
    clear_paddings,
    from_row,
    groups_of,
    keep_lost,
    load_owed,
    load_scales,
    magnitudes,
    mark,
    pack,
    packed_words,
    signed,
    store_values,
    sum_halves,
    tile_of,
    unpack,
    write_mean,
)
from gradwire.kernels.triton.launch import launch_decode, launch_encode
from gradwire.layout import GROUP
from gradwire.spec import Sign

_INFINITY = tl.constexpr(0x7F800000)
_SMALL = tl.constexpr(2.0**-17)


@triton.jit
def _mean_magnitudes(
    x_ptr,
    residual_ptr,
    left,
    is_full,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Return each block's scale: the mean of magnitudes, summed in the order all back ends keep."""
    block = tl.arange(0, BLOCKS)
    index = block[:, None] * BLOCK + tl.arange(0, 32)[None, :]
    peak = tl.zeros((BLOCKS, 32), tl.int32)
    total = tl.zeros((BLOCKS, 32), tl.float32)
    small = tl.zeros((BLOCKS, 32), tl.float32)
    for step in range(BLOCK // 32):
        value = load_owed(x_ptr, residual_ptr, index + step * 32, left, is_full, FEEDBACK)
        peak = tl.maximum(peak, magnitudes(value))
        magnitude = tl.abs(value)
        total += magnitude
        small += magnitude * _SMALL
    count = tl.minimum(left - block * BLOCK, BLOCK).to(tl.float32)
    mean = tl.div_rn(sum_halves(total), count)
    scaled = tl.div_rn(sum_halves(small), count) * (1.0 / _SMALL)
    mean = tl.where(magnitudes(mean) == _INFINITY, scaled, mean)
    return mark(mean, tl.max(peak, 1) < _INFINITY)


@triton.jit(do_not_specialize=["pad0", "pad1", "pad2", "pad3"])
def encode_kernel(
    x_ptr,
    residual_ptr,
    bytes_ptr,
    scales_ptr,
    words_ptr,
    rows_ptr,
    table_ptr,
    pad0,
    pad1,
    pad2,
    pad3,
    gain,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Encode `BLOCKS` blocks of one stretch in two passes; the second reads the cache.

    The order of the sums is sequential over rows of 32 values, so blocks, not
    rows, are dealt out to threads.
    """
    GROUPS: tl.constexpr = CHUNK // 256
    clear_paddings(bytes_ptr, pad0, pad1, pad2, pad3)
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, BLOCKS * BLOCK)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    scale = _mean_magnitudes(x_ptr, residual_ptr, left, is_full, BLOCK, BLOCKS, FEEDBACK)
    settled = (scale == scale)[:, None]
    block = tl.arange(0, BLOCKS)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    store_values(scales_ptr, block, scale, (left + BLOCK - 1) // BLOCK, is_full)
    words_ptr = from_row(words_ptr, row, 7, start // 32, True)
    group = groups_of(BLOCKS, BLOCK, CHUNK)
    place = block[:, None] * BLOCK + tl.arange(0, CHUNK)[None, :]
    for chunk in range(BLOCK // CHUNK):
        index = place + chunk * CHUNK
        value = load_owed(x_ptr, residual_ptr, index, left, is_full, FEEDBACK)
        negative = (value.to(tl.int32, bitcast=True) < 0) & settled
        decoded = signed(scale[:, None], negative)
        lost = value - decoded
        keep_lost(residual_ptr, index, lost, settled, gain, left, is_full, FEEDBACK)
        codes = tl.reshape((negative & (index < left)).to(tl.int32), (BLOCKS * CHUNK,))
        pack(words_ptr, codes, group + chunk * GROUPS, packed_words(left, 1), is_full, 1)


@triton.jit
def _decoded(scales_ptr, words_ptr, group, within, left, is_full, BLOCK: tl.constexpr):
    GROUPS: tl.constexpr = group.shape[0]
    codes = unpack(words_ptr, group, packed_words(left, 1), is_full, 1)
    scale = load_scales(scales_ptr, group, within, left, is_full, BLOCK)[:, None]
    return signed(scale, tl.reshape(codes, (GROUPS, 256)) > 0)


@triton.jit(do_not_specialize=["count"])
def decode_kernel(
    scales_ptr,
    words_ptr,
    out_ptr,
    rows_ptr,
    table_ptr,
    row_scales,
    row_words,
    count,
    divisor,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum `GROUPS` groups of all payloads in row order, and divide."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, GROUPS * 256)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    within = (start % BLOCK // 256).to(tl.int32)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    words_ptr = from_row(words_ptr, row, 7, start // 32, True)
    group = tl.arange(0, GROUPS)
    total = _decoded(scales_ptr, words_ptr, group, within, left, is_full, BLOCK)
    for _ in range(1, count):
        scales_ptr += row_scales
        words_ptr += row_words
        total += _decoded(scales_ptr, words_ptr, group, within, left, is_full, BLOCK)
    write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE)


def sign_encode(
    x: Tensor,
    segments: Tensor,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `gradwire.kernels.reference.sign_encode`."""
    arguments = (Sign(block_size), x, segments, residual, gain, payload)
    launch_encode(encode_kernel, *arguments, chunk=GROUP)


def sign_decode(
    payloads: Tensor,
    segments: Tensor,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference.sign_decode`."""
    spec = Sign(block_size)
    launch_decode(decode_kernel, spec, payloads, segments, divisor, accumulate, out)
