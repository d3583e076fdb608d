"""Encode and decode of bit planes: a header, scales, one section a plane."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels import checks, reference_planes
from gradwire.kernels.triton.blocks import (
    clear_paddings,
    from_row,
    groups_of,
    keep_lost,
    load_owed,
    load_scales,
    pack,
    packed_words,
    peaks_of,
    scale_to,
    signed,
    store_values,
    tile_of,
    unpack,
    write_mean,
)
from gradwire.kernels.triton.launch import launch_decode, launch_encode
from gradwire.kernels.triton.quantize import levels_of, noise_of
from gradwire.layout import packed_bytes
from gradwire.spec import BitPlanes

_INFINITY = tl.constexpr(0x7F800000)


@triton.jit
def _middles(top, cut):
    """Return what magnitudes without their last `cut` bits stand for; 0 stays 0."""
    middle = ((1 << cut) - 1) * 0.5
    return tl.where(top > 0, (top << cut).to(tl.float32) + middle, 0.0)


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
    plane_words,
    BITS: tl.constexpr,
    PLANES: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Round one chunk of each block, store its first planes, and keep what they do not tell."""
    code, _, settled = levels_of(value, scale, inverse, lift, noise, BITS, 12)
    level = tl.where(settled, code - (1 << (BITS - 1)), 0)
    negative = level < 0
    top = tl.abs(level) >> (BITS - PLANES)
    size = _middles(top, BITS - PLANES) * scale[:, None]
    lost = value - signed(size, negative)
    keep_lost(residual_ptr, index, lost, settled, gain, left, is_full, FEEDBACK)
    limit = packed_words(left, 1)
    N: tl.constexpr = group.shape[0] * 256
    pack(words_ptr, tl.reshape(negative.to(tl.int32), (N,)), group, limit, is_full, 1)
    for plane in tl.static_range(1, PLANES):
        words_ptr += plane_words
        bit = (top >> (PLANES - 1 - plane)) & 1
        pack(words_ptr, tl.reshape(bit, (N,)), group, limit, is_full, 1)


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
    plane_words,
    BITS: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Encode `BLOCKS` blocks of one stretch; see `quantize.encode_kernel`."""
    clear_paddings(bytes_ptr, pad0, pad1, pad2, pad3)
    if tl.program_id(0) == 0:
        place = tl.arange(0, 4)
        tl.store(words_ptr + place, tl.where(place == 0, PLANES, 0))
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, BLOCKS * BLOCK)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    block = tl.arange(0, BLOCKS)
    place = tl.arange(0, CHUNK)
    index = block[:, None] * BLOCK + place[None, :]
    value, peak = peaks_of(x_ptr, residual_ptr, index, left, is_full, BLOCK, CHUNK, FEEDBACK)
    scale, inverse, lift = scale_to(peak, 2.0 ** (BITS - 1) - 1, _INFINITY)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    store_values(scales_ptr, block, scale, (left + BLOCK - 1) // BLOCK, is_full)
    words_ptr = from_row(words_ptr, row, 7, start // 32, True)
    own = stream + tl.load(row + 5)
    parameter_block = tl.load(row + 4) + start // BLOCK + block
    group = groups_of(BLOCKS, BLOCK, CHUNK)
    for chunk in range(BLOCK // CHUNK):
        here = index + chunk * CHUNK
        if BLOCK == CHUNK:
            v = value
        else:
            v = load_owed(x_ptr, residual_ptr, here, left, is_full, FEEDBACK)
        noise = noise_of(own, parameter_block, place + chunk * CHUNK, 12)
        _encode_chunk(
            v,
            residual_ptr,
            words_ptr,
            scale,
            inverse,
            lift,
            noise,
            here,
            group + chunk * (CHUNK // 256),
            left,
            gain,
            is_full,
            plane_words,
            BITS,
            PLANES,
            FEEDBACK,
        )


@triton.jit
def _decoded(
    scales_ptr,
    words_ptr,
    planes,
    group,
    within,
    left,
    is_full,
    plane_words,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the values that the planes of one payload tell."""
    GROUPS: tl.constexpr = group.shape[0]
    limit = packed_words(left, 1)
    negative = unpack(words_ptr, group, limit, is_full, 1)
    top = tl.zeros((GROUPS * 256,), tl.int32)
    for _ in range(1, planes):
        words_ptr += plane_words
        top = top * 2 + unpack(words_ptr, group, limit, is_full, 1)
    scale = load_scales(scales_ptr, group, within, left, is_full, BLOCK)[:, None]
    size = tl.reshape(_middles(top, BITS - planes), (GROUPS, 256)) * scale
    return signed(size, tl.reshape(negative, (GROUPS, 256)) > 0)


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
    plane_words,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum `GROUPS` groups of all payloads in row order, and divide.

    Each payload's first word says how many planes it holds.
    """
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, GROUPS * 256)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    within = (start % BLOCK // 256).to(tl.int32)
    header_ptr = words_ptr
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    words_ptr = from_row(words_ptr, row, 7, start // 32, True)
    group = tl.arange(0, GROUPS)
    total = tl.zeros((GROUPS, 256), tl.float32)
    for sender in range(count):
        planes = tl.load(header_ptr)
        value = _decoded(
            *(scales_ptr, words_ptr, planes, group, within, left, is_full),
            *(plane_words, BITS, BLOCK),
        )
        # The first is not added to 0, which would turn -0.0 into 0.0.
        total = tl.where(sender == 0, value, total + value)
        header_ptr += row_words
        scales_ptr += row_scales
        words_ptr += row_words
    write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE)


def _plane_words(segments: Tensor) -> int:
    return sum(packed_bytes(numel, 1) for numel in segments[:, 2].tolist()) // 4


def planes_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    planes: int,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `gradwire.kernels.reference_planes.planes_encode`."""
    launch_encode(
        encode_kernel,
        BitPlanes(bits, planes, block_size),
        *(x, segments, residual, gain, payload, stream, _plane_words(segments)),
        BITS=bits,
        PLANES=planes,
    )


def planes_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    planes: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference_planes.planes_decode`.

    Waits for the device once, to refuse payloads that announce too many planes.
    """
    spec = BitPlanes(bits, planes, block_size)
    if segments.shape[0]:
        size = spec.num_bytes(segments[:, 2].tolist())
        checks.check_size("planes_decode", payloads, size)
        for header in payloads[:, :4].cpu():
            reference_planes.check_planes(reference_planes.announced(header), planes)
    arguments = (payloads, segments, divisor, accumulate, out)
    words = _plane_words(segments)
    launch_decode(decode_kernel, spec, *arguments, plane_words=words, BITS=bits)
