"""The blockwise Hadamard transform fused with quantisation.

Values are read once, transformed, rounded and packed, and what was lost is
turned back, all in registers. Receivers sum rotated values and turn the mean.
With `matrix` products a value near the edge between two levels may fall on the
other side than the reference's: payloads are valid, but not the same.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.forms import form_of
from gradwire.kernels.triton.blocks import (
    clear_paddings,
    from_row,
    groups_of,
    keep_lost,
    load_owed,
    load_values,
    magnitudes,
    pack,
    packed_words,
    scale_to,
    store_values,
    tile_of,
)
from gradwire.kernels.triton.hadamard import transformed
from gradwire.kernels.triton.launch import launch_decode, launch_encode
from gradwire.kernels.triton.quantize import decoded_of, levels_of, noise_of
from gradwire.kernels.triton.tiles import TILE
from gradwire.spec import Quantize


@triton.jit
def _turned(values, numel, scale, BLOCK: tl.constexpr, WHOLE: tl.constexpr, FORM: tl.constexpr):
    """Transform the whole ones of `[blocks, BLOCK]`; the last may be shorter."""
    BLOCKS: tl.constexpr = values.shape[0]
    flat = tl.reshape(values, (BLOCKS * BLOCK,))
    turned = tl.reshape(transformed(flat, BLOCK, WHOLE, FORM), (BLOCKS, BLOCK)) * scale
    is_whole = ((tl.arange(0, BLOCKS) + 1) * BLOCK <= numel)[:, None]
    return tl.where(is_whole, turned, values)


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
    turn,
    BITS: tl.constexpr,
    NEAREST: tl.constexpr,
    WHOLE: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Encode `BLOCKS` blocks in one read; CHUNK is BLOCK, `turn` normalises."""
    FRACTION: tl.constexpr = 16 if BITS <= 6 else 12
    LARGEST: tl.constexpr = 0.5 if BITS == 1 else 2.0 ** (BITS - 1) - 1
    LIMIT: tl.constexpr = 0x7F000000 if BITS == 1 else 0x7F800000
    clear_paddings(bytes_ptr, pad0, pad1, pad2, pad3)
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, BLOCKS * BLOCK)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    block = tl.arange(0, BLOCKS)
    place = tl.arange(0, CHUNK)
    index = block[:, None] * BLOCK + place[None, :]
    value = load_owed(x_ptr, residual_ptr, index, left, is_full, FEEDBACK)
    value = _turned(value, left, turn, BLOCK, WHOLE, FORM)
    scale, inverse, lift = scale_to(tl.max(magnitudes(value), 1), LARGEST, LIMIT)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    store_values(scales_ptr, block, scale, (left + BLOCK - 1) // BLOCK, is_full)
    words_ptr = from_row(words_ptr, row, 7, start // 32 * BITS, True)
    if NEAREST:
        noise = 1 << (FRACTION - 1)
    else:
        parameter_block = tl.load(row + 4) + start // BLOCK + block
        noise = noise_of(stream + tl.load(row + 5), parameter_block, place, FRACTION)
    code, decoded, settled = levels_of(value, scale, inverse, lift, noise, BITS, FRACTION)
    if FEEDBACK != 0:
        lost = _turned(value - decoded, left, turn, BLOCK, WHOLE, FORM)
        keep_lost(residual_ptr, index, lost, settled, gain, left, is_full, FEEDBACK)
    if not is_full:
        code = tl.where(index < left, code, 0)
    codes = tl.reshape(code, (BLOCKS * BLOCK,))
    group = groups_of(BLOCKS, BLOCK, CHUNK)
    pack(words_ptr, codes, group, packed_words(left, BITS), is_full, BITS)


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
    turn,
    BITS: tl.constexpr,
    WHOLE: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum whole blocks of all payloads in row order, divide, and turn the mean back."""
    BLOCKS: tl.constexpr = GROUPS * 256 // BLOCK
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, GROUPS * 256)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    scales_ptr = from_row(scales_ptr, row, 6, start // BLOCK, False)
    words_ptr = from_row(words_ptr, row, 7, start // 32 * BITS, True)
    group = tl.arange(0, GROUPS)
    total = decoded_of(scales_ptr, words_ptr, group, 0, left, is_full, BITS, BLOCK)
    for _ in range(1, count):
        scales_ptr += row_scales
        words_ptr += row_words
        total += decoded_of(scales_ptr, words_ptr, group, 0, left, is_full, BITS, BLOCK)
    mean = tl.div_rn(total, tl.full(total.shape, divisor, tl.float32))
    mean = tl.reshape(mean, (BLOCKS, BLOCK))
    mean = _turned(mean, left, turn, BLOCK, WHOLE, FORM)
    block = tl.arange(0, BLOCKS)
    index = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    if ACCUMULATE:
        mean = load_values(out_ptr, index, left, is_full) + mean
    store_values(out_ptr, index, mean, left, is_full)


def _meta(bits: int, block_size: int) -> dict[str, Any]:
    whole = 16 ** ((block_size.bit_length() - 1) // 4)
    return {
        "turn": block_size**-0.5,
        "BITS": bits,
        "WHOLE": whole,
        "FORM": form_of("hadamard"),
    }


def rotated_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    nearest: bool,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `gradwire.kernels.reference_rotated.Rotation`."""
    launch_encode(
        encode_kernel,
        Quantize(bits, block_size, rotation="hadamard"),
        *(x, segments, residual, gain, payload, stream),
        chunk=block_size,
        NEAREST=nearest,
        **_meta(bits, block_size),
    )


def rotated_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference_rotated.Rotation`."""
    launch_decode(
        decode_kernel,
        Quantize(bits, block_size, rotation="hadamard"),
        *(payloads, segments, divisor, accumulate, out, max(TILE, block_size)),
        **_meta(bits, block_size),
    )
