"""Decode of the sparse codec: payloads are checked, added up and divided."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks, reference_sparse
from gradwire.kernels.triton.blocks import from_row, tile_of, write_mean
from gradwire.kernels.triton.sparse import SLOTS, plan_of
from gradwire.kernels.triton.tiles import OPTIONS, TILE, check_alignment

_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=["row_words", "places", "rows"])
def check_kernel(
    words_ptr, bad_ptr, rows_ptr, table_ptr, row_words, places, rows, SLOTS: tl.constexpr
):
    """Find the first stretch whose count or places cannot have been encoded."""
    row, start, left, _ = tile_of(rows_ptr, table_ptr, SLOTS)
    stretch = tl.load(row + 5)
    numel = tl.load(row + 4)
    slot = tl.arange(0, SLOTS)
    first = places + tl.load(row + 7) + start
    is_bad = False
    for _ in range(rows):
        count = tl.load(words_ptr + stretch)
        is_bad |= (count < 0) | (count > tl.load(row + 3))
        here = start + slot
        used = (here < count) & (slot < left)
        place = tl.load(words_ptr + first + slot, mask=used, other=0)
        last = tl.load(words_ptr + first + slot - 1, mask=used & (here > 0), other=-1)
        wrong = used & ((place < 0) | (place >= numel) | (place <= last))
        is_bad |= tl.sum(wrong.to(tl.int32), 0) > 0
        words_ptr += row_words
    tl.atomic_min(bad_ptr, stretch.to(tl.int32), mask=is_bad)


@triton.jit(do_not_specialize=["places", "numbers"])
def scatter_kernel(
    words_ptr, numbers_ptr, total_ptr, rows_ptr, table_ptr, places, numbers, SLOTS: tl.constexpr
):
    """Add one payload's values to a bucket; no place occurs twice."""
    row, start, left, _ = tile_of(rows_ptr, table_ptr, SLOTS)
    count = tl.load(words_ptr + tl.load(row + 5))
    slot = tl.arange(0, SLOTS)
    used = (start + slot < count) & (slot < left)
    first = tl.load(row + 7) + start + slot
    place = tl.load(words_ptr + places + first, mask=used, other=0)
    value = tl.load(numbers_ptr + numbers + first, mask=used, other=0.0)
    target = total_ptr + tl.load(row + 1) + place
    tl.store(target, tl.load(target, mask=used, other=0.0) + value, mask=used)


@triton.jit
def mean_kernel(
    total_ptr,
    out_ptr,
    rows_ptr,
    table_ptr,
    divisor,
    ACCUMULATE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Divide sums, and store them or add them to what is there."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, _TILE)
    total_ptr = from_row(total_ptr, row, 1, start, ALIGNED)
    out_ptr = from_row(out_ptr, row, 1, start, ALIGNED)
    group = tl.arange(0, _TILE // 256)
    index = group[:, None] * 256 + tl.arange(0, 256)[None, :]
    total = tl.load(total_ptr + index, mask=index < left, other=0.0)
    write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE)


def sparse_decode(
    payloads: Tensor,
    segments: Tensor,
    capacities: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `gradwire.kernels.reference_sparse.sparse_decode`.

    Waits for the device once, to refuse payloads that would write elsewhere.
    """
    plan = plan_of(out, segments, capacities, None)
    checks.check_size("sparse_decode", payloads, plan.num_bytes)
    check_alignment("payloads", payloads)
    if not plan.values.programs:
        return
    words, numbers = payloads.view(torch.int32), payloads.view(torch.float32)
    slots, table = plan.slots.programs, plan.slots[1:]
    total = torch.zeros_like(out)
    if slots:
        none = segments.shape[0]
        bad = torch.full((1,), none, dtype=torch.int32, device=out.device)
        shape = (plan.num_bytes // 4, plan.places, payloads.shape[0])
        check_kernel[(slots,)](words, bad, *table, *shape, SLOTS=SLOTS, **OPTIONS)
        if (first := int(bad)) < none:
            raise GradwireError(reference_sparse.malformed(first))
        for row in range(payloads.shape[0]):
            scatter_kernel[(slots,)](
                *(words[row], numbers[row], total, *table, plan.places, plan.numbers),
                SLOTS=SLOTS,
                **OPTIONS,
            )
    mean_kernel[(plan.values.programs,)](
        *(total, out, *plan.values[1:], divisor),
        ACCUMULATE=accumulate,
        ALIGNED=plan.is_aligned,
        **OPTIONS,
    )
