"""Encode and decode of the float codec.

float8 is made by integer code on any device, or by the device's own conversion
where that rounds once: from sm_90 on. Older ones go by way of float16 and
round twice, which gives other bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.blocks import (
    clear_paddings,
    from_row,
    keep_lost,
    load_owed,
    load_scales,
    load_values,
    mark,
    peaks_of,
    scale_to,
    store_values,
    tile_of,
    write_mean,
)
from gradwire.kernels.triton.launch import launch_decode, launch_encode
from gradwire.spec import FLOAT_BYTES, Float, FloatFormat

_INFINITY = tl.constexpr(0x7F800000)
_BFLOAT16_OVERFLOW = tl.constexpr(0x7F7F8000)
_SMALLEST_NORMAL = tl.constexpr(0x00800000)
_NAN = tl.constexpr(0x7FC00000)
_FORMATS = {name: number for number, name in enumerate(FLOAT_BYTES)}
_FLOAT32, _BFLOAT16, _FLOAT16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_E4M3, _E5M2 = tl.constexpr(3), tl.constexpr(4)
_NATIVE_CAPABILITY = (9, 0)


@triton.jit
def _float8_code(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Round finite float32 to the bits of a float8, to nearest and ties to even."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    SHIFT: tl.constexpr = 23 - MANTISSA
    half = ((1 << (SHIFT - 1)) - 1) + ((magnitude >> SHIFT) & 1)
    normal = ((magnitude + half) >> SHIFT) - ((127 - BIAS) << MANTISSA)
    # Below the smallest normal number: added to this, the last place is the format's step.
    FIXED: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
    FIXED_BITS: tl.constexpr = (151 - BIAS - MANTISSA) << 23
    small = magnitude.to(tl.float32, bitcast=True) + FIXED
    small = small.to(tl.uint32, bitcast=True) - FIXED_BITS
    code = tl.where(magnitude < ((128 - BIAS) << 23), small, normal)
    return (tl.minimum(code, LARGEST) | (bits >> 24) & 0x80).to(tl.uint8)


@triton.jit
def _float8_value(code, FORMAT: tl.constexpr, NATIVE: tl.constexpr):
    """Widen float8."""
    if FORMAT == _E5M2:
        value = (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif NATIVE:
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        magnitude = code.to(tl.uint32) & 0x7F
        value = (magnitude << 20).to(tl.float32, bitcast=True) * 2.0**120
        bits = tl.where(magnitude == 0x7F, _NAN, value.to(tl.int32, bitcast=True))
        sign = (code.to(tl.uint32) & 0x80) << 24
        value = (bits | sign.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _scales(peak, FORMAT: tl.constexpr):
    """Return what decoding multiplies by, and the two factors of encoding."""
    if FORMAT == _FLOAT16:
        exponent = tl.maximum((peak >> 23) - 141, -126)
        usable = (peak >= _SMALLEST_NORMAL) & (peak < _INFINITY)
        scale = tl.where(usable, ((exponent + 127) << 23).to(tl.float32, bitcast=True), 0.0)
        inverse = tl.where(usable, ((127 - exponent) << 23).to(tl.float32, bitcast=True), 0.0)
        scale = mark(scale, peak < _INFINITY)
        lift = tl.full(peak.shape, 1.0, tl.float32)
    elif FORMAT == _E4M3:
        scale, inverse, lift = scale_to(peak, 448.0, _INFINITY)
    elif FORMAT == _E5M2:
        scale, inverse, lift = scale_to(peak, 57344.0, _INFINITY)
    else:
        LIMIT: tl.constexpr = _BFLOAT16_OVERFLOW if FORMAT == _BFLOAT16 else _INFINITY
        scale = mark(tl.full(peak.shape, 1.0, tl.float32), peak < LIMIT)
        inverse = tl.full(peak.shape, 1.0, tl.float32)
        lift = inverse
    return scale, inverse, lift


@triton.jit
def _rounded(value, scale, inverse, lift, FORMAT: tl.constexpr, NATIVE: tl.constexpr):
    """Return the codes of one chunk, and what they decode to."""
    settled = (scale == scale)[:, None]
    clean = tl.where(settled, value, 0.0)
    if FORMAT == _FLOAT32:
        code = tl.where(settled, clean.to(tl.int32, bitcast=True), _NAN)
        decoded = clean
    elif FORMAT == _BFLOAT16:
        bits = clean.to(tl.uint32, bitcast=True)
        short = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        decoded = (short << 16).to(tl.float32, bitcast=True)
        code = tl.where(settled, short, _NAN >> 16).to(tl.int16)
    elif FORMAT == _FLOAT16:
        half = (clean * inverse[:, None]).to(tl.float16)
        decoded = half.to(tl.float32) * scale[:, None]
        code = half.to(tl.int16, bitcast=True)
    else:
        y = clean * lift[:, None] * inverse[:, None]
        if NATIVE:
            short = y.to(tl.float8e4nv) if FORMAT == _E4M3 else y.to(tl.float8e5)
            code = short.to(tl.uint8, bitcast=True)
        elif FORMAT == _E4M3:
            code = _float8_code(y, 3, 7, 0x7E)
        else:
            code = _float8_code(y, 2, 15, 0x7B)
        decoded = _float8_value(code, FORMAT, NATIVE) * scale[:, None]
    return code, decoded, settled


@triton.jit
def _store_codes(ptr, code, index, left, is_full, FORMAT: tl.constexpr):
    """Store codes in order, but float8 with byte `8 k + l` of 32 at place `4 l + k`."""
    if FORMAT < _E4M3:
        store_values(ptr, index, code, left, is_full)
    else:
        R: tl.constexpr = code.shape[0]
        C: tl.constexpr = code.shape[1]
        mixed = tl.permute(tl.reshape(code, (R, C // 32, 4, 8)), (0, 1, 3, 2))
        mixed = tl.reshape(mixed, (R, C))
        whole = left // 32 * 32
        store_values(ptr, index, mixed, whole, is_full)
        if not is_full:
            tl.store(ptr + index, code, mask=(index >= whole) & (index < left))


@triton.jit(do_not_specialize=["pad0", "pad1", "pad2", "pad3"])
def encode_kernel(
    x_ptr,
    residual_ptr,
    bytes_ptr,
    scales_ptr,
    body_ptr,
    rows_ptr,
    table_ptr,
    pad0,
    pad1,
    pad2,
    pad3,
    gain,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Encode `BLOCKS` blocks of one stretch; see `quantize.encode_kernel`."""
    clear_paddings(bytes_ptr, pad0, pad1, pad2, pad3)
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, BLOCKS * BLOCK)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    body_ptr = from_row(body_ptr, row, 7, start, ALIGNED)
    block = tl.arange(0, BLOCKS)
    place = block[:, None] * BLOCK + tl.arange(0, CHUNK)[None, :]
    value, peak = peaks_of(x_ptr, residual_ptr, place, left, is_full, BLOCK, CHUNK, FEEDBACK)
    scale, inverse, lift = _scales(peak, FORMAT)
    if FORMAT >= _FLOAT16:
        scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
        store_values(scales_ptr, block, scale, (left + BLOCK - 1) // BLOCK, is_full)
    for chunk in range(BLOCK // CHUNK):
        here = place + chunk * CHUNK
        if BLOCK == CHUNK:
            v = value
        else:
            v = load_owed(x_ptr, residual_ptr, here, left, is_full, FEEDBACK)
        code, decoded, settled = _rounded(v, scale, inverse, lift, FORMAT, NATIVE)
        keep_lost(residual_ptr, here, v - decoded, settled, gain, left, is_full, FEEDBACK)
        _store_codes(body_ptr, code, here, left, is_full, FORMAT)


@triton.jit
def unscaled(body_ptr, group, left, is_full, FORMAT: tl.constexpr, NATIVE: tl.constexpr):
    """Return the values of one payload's groups, without their scales."""
    GROUPS: tl.constexpr = group.shape[0]
    index = group[:, None] * 256 + tl.arange(0, 256)[None, :]
    if FORMAT == _FLOAT32:
        value = load_values(body_ptr, index, left, is_full).to(tl.float32, bitcast=True)
    elif FORMAT == _BFLOAT16:
        short = load_values(body_ptr, index, left, is_full).to(tl.uint16, bitcast=True)
        value = (short.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif FORMAT == _FLOAT16:
        short = load_values(body_ptr, index, left, is_full)
        value = short.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        whole = left // 32 * 32
        mixed = load_values(body_ptr, index, whole, is_full)
        code = tl.permute(tl.reshape(mixed, (GROUPS, 8, 8, 4)), (0, 1, 3, 2))
        code = tl.reshape(code, (GROUPS, 256))
        if not is_full:
            rest = (index >= whole) & (index < left)
            code = code | tl.load(body_ptr + index, mask=rest, other=0)
        value = _float8_value(code, FORMAT, NATIVE)
    return value


@triton.jit
def _decoded(
    scales_ptr,
    body_ptr,
    group,
    within,
    left,
    is_full,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the values of one payload's groups; the first is the block's `within`-th."""
    value = unscaled(body_ptr, group, left, is_full, FORMAT, NATIVE)
    if FORMAT >= _FLOAT16:
        value = value * load_scales(scales_ptr, group, within, left, is_full, BLOCK)[:, None]
    return value


@triton.jit(do_not_specialize=["count"])
def decode_kernel(
    scales_ptr,
    body_ptr,
    out_ptr,
    rows_ptr,
    table_ptr,
    row_scales,
    row_units,
    count,
    divisor,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
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
    body_ptr = from_row(body_ptr, row, 7, start, ALIGNED)
    group = tl.arange(0, GROUPS)
    total = _decoded(scales_ptr, body_ptr, group, within, left, is_full, FORMAT, NATIVE, BLOCK)
    for _ in range(1, count):
        scales_ptr += row_scales
        body_ptr += row_units
        total += _decoded(scales_ptr, body_ptr, group, within, left, is_full, FORMAT, NATIVE, BLOCK)
    write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE)


def converts_natively(device: torch.device) -> bool:
    """Whether a device converts to float8 with one rounding.

    Example:
        >>> converts_natively(torch.device("cpu"))
        False
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= _NATIVE_CAPABILITY


def float_encode(
    x: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `gradwire.kernels.reference_float.float_encode`."""
    spec = Float(format, block_size)
    meta = {"FORMAT": _FORMATS[format], "NATIVE": converts_natively(x.device)}
    launch_encode(encode_kernel, spec, x, segments, residual, gain, payload, **meta)


def float_decode(
    payloads: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference_float.float_decode`."""
    spec = Float(format, block_size)
    meta = {"FORMAT": _FORMATS[format], "NATIVE": converts_natively(out.device)}
    launch_decode(decode_kernel, spec, payloads, segments, divisor, accumulate, out, **meta)
