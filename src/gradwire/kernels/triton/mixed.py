"""Decode of payloads of different codecs into their mean, in one pass.

Payloads lie anywhere on the device; a table holds their addresses, formats and
block sizes, so one compiled kernel serves every mixture. Codes are therefore
read place by place rather than word by word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.triton.blocks import from_row, tile_of, write_mean
from gradwire.kernels.triton.floats import converts_natively, unscaled
from gradwire.kernels.triton.tiles import OPTIONS, TILE, check_alignment, kept, tiles
from gradwire.layout import GROUP

_GROUPS = TILE // GROUP
_FLOAT32, _BFLOAT16, _FLOAT16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_E4M3, _E5M2, _SIGN = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
_COLUMNS = tl.constexpr(4)


@triton.jit
def _codes(words_ptr, left, bits, GROUPS: tl.constexpr):
    """Return codes of any number of bits, int32 `[GROUPS, 256]`."""
    index = tl.arange(0, GROUPS)[:, None] * 256 + tl.arange(0, 256)[None, :]
    bit = index % 256 // 8 * bits
    shift = bit % 32
    at = index // 256 * (8 * bits) + bit // 32 * 8 + index % 8
    inside = index < left
    low = tl.load(words_ptr + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
    spills = inside & (shift + bits > 32)
    high = tl.load(words_ptr + at + 8, mask=spills, other=0).to(tl.uint32, bitcast=True)
    low = low >> shift.to(tl.uint32)
    high = tl.where(spills, high << ((32 - shift) & 31).to(tl.uint32), 0)
    return ((low | high) & ((1 << bits) - 1).to(tl.uint32)).to(tl.int32, bitcast=True)


@triton.jit
def _levels(address, form, first, left, start, GROUPS: tl.constexpr):
    """Return signs as -1 and 1, or levels, without their scales."""
    bits = tl.maximum(form - _SIGN, 1).to(tl.int32)
    words_ptr = address.to(tl.pointer_type(tl.int32)) + first + start // 32 * bits
    code = _codes(words_ptr, left, bits, GROUPS)
    bias = tl.where(bits == 1, 0.5, ((1 << bits) >> 1).to(tl.float32))
    sign = 1.0 - 2.0 * code.to(tl.float32)
    return tl.where(form == _SIGN, sign, code.to(tl.float32) - bias)


@triton.jit
def _decoded(sender, place, start, left, is_full, GROUPS: tl.constexpr, NATIVE: tl.constexpr):
    """Return the values of one payload's groups.

    `sender` is its line in the table of payloads: address, format, block size.
    `place` is the stretch's line in the table of its layout.
    """
    address, form, block = tl.load(sender), tl.load(sender + 1), tl.load(sender + 2)
    first = tl.load(place + 7)
    group = tl.arange(0, GROUPS)
    if form == _FLOAT32:
        body = address.to(tl.pointer_type(tl.int32)) + first + start
        value = unscaled(body, group, left, is_full, _FLOAT32, NATIVE)
    elif form == _BFLOAT16:
        body16 = address.to(tl.pointer_type(tl.int16)) + first + start
        value = unscaled(body16, group, left, is_full, _BFLOAT16, NATIVE)
    elif form == _FLOAT16:
        body16 = address.to(tl.pointer_type(tl.int16)) + first + start
        value = unscaled(body16, group, left, is_full, _FLOAT16, NATIVE)
    elif form == _E4M3:
        body8 = address.to(tl.pointer_type(tl.uint8)) + first + start
        value = unscaled(body8, group, left, is_full, _E4M3, NATIVE)
    elif form == _E5M2:
        body8 = address.to(tl.pointer_type(tl.uint8)) + first + start
        value = unscaled(body8, group, left, is_full, _E5M2, NATIVE)
    else:
        value = _levels(address, form, first, left, start, GROUPS)
    if form >= _FLOAT16:
        scales = address.to(tl.pointer_type(tl.float32)) + tl.load(place + 6)
        scale = tl.load(scales + (start + group * 256) // block, mask=group * 256 < left, other=0.0)
        value = value * scale[:, None]
    return value


@triton.jit(do_not_specialize=["count", "stretches"])
def decode_kernel(
    senders_ptr,
    layouts_ptr,
    out_ptr,
    rows_ptr,
    table_ptr,
    count,
    stretches,
    divisor,
    GROUPS: tl.constexpr,
    NATIVE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Sum `GROUPS` groups of all payloads in their order, and divide."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, GROUPS * 256)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    place = layouts_ptr + tl.load(rows_ptr + tl.program_id(0)) * 8
    total = tl.zeros((GROUPS, 256), tl.float32)
    for sender in range(count):
        line = senders_ptr + sender * _COLUMNS
        value = _decoded(line, place, start, left, is_full, GROUPS, NATIVE)
        # The first is not added to 0, which would turn -0.0 into 0.0.
        total = tl.where(sender == 0, value, total + value)
        place += stretches * 8
    write_mean(out_ptr, total, tl.arange(0, GROUPS), left, divisor, is_full, ACCUMULATE)


def mixed_decode(
    payloads: Sequence[Tensor],
    segments: Tensor,
    formats: Sequence[str],
    block_sizes: Sequence[int],
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference_planes.mixed_decode`."""
    specs = [checks.mixed_spec(f, size) for f, size in zip(formats, block_sizes, strict=True)]
    plans = [tiles(segments, out, None, spec) for spec in specs]
    for payload, plan in zip(payloads, plans, strict=True):
        checks.check_size("mixed_decode", payload, plan.num_bytes)
        check_alignment("payloads", payload)
    if not plans or not plans[0].programs:
        return
    key = ("mixed", *formats, *block_sizes, out.numel(), out.device)
    layouts = kept(segments, key, lambda: torch.stack([plan.table for plan in plans]))
    numbers = [checks.MIXED_FORMATS.index(form) for form in formats]
    addresses = [payload.data_ptr() for payload in payloads]
    lines = [*zip(addresses, numbers, block_sizes, [0] * len(plans), strict=True)]
    senders = torch.tensor(lines, dtype=torch.int64).to(out.device)
    decode_kernel[(plans[0].programs,)](
        *(senders, layouts, out, plans[0].rows, plans[0].table),
        *(len(plans), segments.shape[0], divisor),
        GROUPS=_GROUPS,
        NATIVE=converts_natively(out.device),
        ACCUMULATE=accumulate,
        ALIGNED=all(plan.is_aligned for plan in plans),
        **OPTIONS,
    )
