"""Encode and decode of the quantize codec, feedback and packing in the same pass."""

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
    pack,
    packed_words,
    peaks_of,
    scale_to,
    store_values,
    sum_halves,
    tile_of,
    unpack,
    write_mean,
)
from gradwire.kernels.triton.launch import launch_decode, launch_encode
from gradwire.spec import Quantize

_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def noise_of(stream, block, index, BITS: tl.constexpr):
    """Return uniform numbers below `2**BITS` for places `index` of each block."""
    seed = _mix(stream.to(tl.uint64))
    z = seed + block.to(tl.uint64) * 0x9E3779B97F4A7C15
    key = _mix(z).to(tl.uint32)
    pair = (index // 16 * 8 + index % 8).to(tl.uint32)
    x = key[:, None] + (pair * 0x9E3779B9)[None, :]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    low = x & ((1 << BITS) - 1)
    is_low = (index // 8 % 2 == 0)[None, :]
    return tl.where(is_low, low, x >> (32 - BITS)).to(tl.int32)


@triton.jit
def levels_of(value, scale, inverse, lift, noise, BITS: tl.constexpr, FRACTION: tl.constexpr):
    """Return the codes of values, what they decode to, and whether the block is finite."""
    BIAS: tl.constexpr = 0.5 if BITS == 1 else 2.0 ** (BITS - 1)
    OFFSET: tl.constexpr = 1 << (FRACTION - 1) if BITS == 1 else 1 << (FRACTION + BITS - 1)
    settled = (scale == scale)[:, None]
    clean = tl.where(settled, value, 0.0)
    fixed = clean * lift[:, None] * (inverse * (1 << FRACTION))[:, None]
    # Adding 1.5 * 2**23 rounds to a whole number, ties to even; the bits hold it.
    whole = (fixed + _MAGIC).to(tl.int32, bitcast=True) - _MAGIC_BITS
    code = tl.where(settled, (whole + OFFSET + noise) >> FRACTION, 0)
    return code, (code.to(tl.float32) - BIAS) * scale[:, None], settled


@triton.jit
def _norms(
    x_ptr,
    residual_ptr,
    peak,
    left,
    is_full,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Return the bits of each block's L2 norm, summed in the order all back ends keep."""
    exponent = tl.minimum(tl.maximum(254 - (peak >> 23), 1), 253)
    down = (exponent << 23).to(tl.float32, bitcast=True)
    up = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    index = tl.arange(0, BLOCKS)[:, None] * BLOCK + tl.arange(0, 32)[None, :]
    total = tl.zeros((BLOCKS, 32), tl.float32)
    for step in range(BLOCK // 32):
        value = load_owed(x_ptr, residual_ptr, index + step * 32, left, is_full, FEEDBACK)
        scaled = value * down[:, None]
        total += scaled * scaled
    norm = tl.sqrt_rn(sum_halves(total)) * up
    return tl.where(peak < _INFINITY, magnitudes(norm), _NAN)


@triton.jit
def _encode_chunk(
    value,
    residual_ptr,
    words_ptr,
    scale,
    inverse,
    lift,
    noise,
    index,
    group,
    left,
    gain,
    is_full,
    BITS: tl.constexpr,
    FRACTION: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Round, pack and store one chunk of each block, and keep what is lost."""
    code, decoded, settled = levels_of(value, scale, inverse, lift, noise, BITS, FRACTION)
    keep_lost(residual_ptr, index, value - decoded, settled, gain, left, is_full, FEEDBACK)
    if not is_full:
        code = tl.where(index < left, code, 0)
    GROUPS: tl.constexpr = group.shape[0]
    codes = tl.reshape(code, (GROUPS * 256,))
    pack(words_ptr, codes, group, packed_words(left, BITS), is_full, BITS)


@triton.jit(do_not_specialize=["stream", "pad0", "pad1", "pad2", "pad3"])
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
    stream,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    NEAREST: tl.constexpr,
    L2: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Encode `BLOCKS` blocks of one stretch.

    A block of one chunk is read once. A longer one is read twice, first for
    its peak; the second time it comes from the cache.
    """
    FRACTION: tl.constexpr = 16 if BITS <= 6 else 12
    LARGEST: tl.constexpr = 0.5 if BITS == 1 else 2.0 ** (BITS - 1) - 1
    LIMIT: tl.constexpr = 0x7F000000 if BITS == 1 else 0x7F800000
    GROUPS: tl.constexpr = CHUNK // 256
    clear_paddings(bytes_ptr, pad0, pad1, pad2, pad3)
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, BLOCKS * BLOCK)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    block = tl.arange(0, BLOCKS)
    place = tl.arange(0, CHUNK)
    index = block[:, None] * BLOCK + place[None, :]
    value, peak = peaks_of(x_ptr, residual_ptr, index, left, is_full, BLOCK, CHUNK, FEEDBACK)
    if L2:
        peak = _norms(x_ptr, residual_ptr, peak, left, is_full, BLOCK, BLOCKS, FEEDBACK)
    scale, inverse, lift = scale_to(peak, LARGEST, LIMIT)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    store_values(scales_ptr, block, scale, (left + BLOCK - 1) // BLOCK, is_full)
    words_ptr = from_row(words_ptr, row, 7, start // 32 * BITS, True)
    own = stream + tl.load(row + 5)
    parameter_block = tl.load(row + 4) + start // BLOCK + block
    group = groups_of(BLOCKS, BLOCK, CHUNK)
    for chunk in range(BLOCK // CHUNK):
        here = index + chunk * CHUNK
        if BLOCK == CHUNK and not L2:
            v = value
        else:
            v = load_owed(x_ptr, residual_ptr, here, left, is_full, FEEDBACK)
        if NEAREST:
            noise = 1 << (FRACTION - 1)
        else:
            noise = noise_of(own, parameter_block, place + chunk * CHUNK, FRACTION)
        _encode_chunk(
            v,
            residual_ptr,
            words_ptr,
            scale,
            inverse,
            lift,
            noise,
            here,
            group + chunk * GROUPS,
            left,
            gain,
            is_full,
            BITS,
            FRACTION,
            FEEDBACK,
        )


@triton.jit
def decoded_of(
    scales_ptr,
    words_ptr,
    group,
    within,
    left,
    is_full,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the values of one payload's groups; the first is the block's `within`-th."""
    GROUPS: tl.constexpr = group.shape[0]
    BIAS: tl.constexpr = 0.5 if BITS == 1 else 2.0 ** (BITS - 1)
    codes = unpack(words_ptr, group, packed_words(left, BITS), is_full, BITS)
    scale = load_scales(scales_ptr, group, within, left, is_full, BLOCK)
    return (tl.reshape(codes, (GROUPS, 256)).to(tl.float32) - BIAS) * scale[:, None]


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
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum `GROUPS` groups of all payloads in row order, and divide."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, GROUPS * 256)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    block, within = start // BLOCK, (start % BLOCK // 256).to(tl.int32)
    scales_ptr = from_row(scales_ptr, row, 6, block, False)
    words_ptr = from_row(words_ptr, row, 7, start // 32 * BITS, True)
    group = tl.arange(0, GROUPS)
    total = decoded_of(scales_ptr, words_ptr, group, within, left, is_full, BITS, BLOCK)
    for _ in range(1, count):
        scales_ptr += row_scales
        words_ptr += row_words
        total += decoded_of(scales_ptr, words_ptr, group, within, left, is_full, BITS, BLOCK)
    write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE)


def quantize_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    nearest: bool,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    l2: bool = False,
) -> None:
    """See `gradwire.kernels.reference.quantize_encode`."""
    spec = Quantize(bits, block_size)
    meta = {"BITS": bits, "NEAREST": nearest, "L2": l2}
    launch_encode(encode_kernel, spec, x, segments, residual, gain, payload, stream, **meta)


def quantize_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference.quantize_decode`."""
    spec = Quantize(bits, block_size)
    arguments = (payloads, segments, divisor, accumulate, out)
    launch_decode(decode_kernel, spec, *arguments, BITS=bits)
