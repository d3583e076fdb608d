"""Selection and dense packing of the sparse codec.

Each selected value needs the number of those before it: a prefix sum. Inside a
tile it comes in two forms with the same result, over whole numbers: `plain`
with Triton's scan, `matrix` as a product with a triangle of ones, which tensor
cores run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels import checks, reference_sparse
from gradwire.kernels.forms import form_of
from gradwire.kernels.triton.blocks import (
    from_row,
    load_owed,
    load_values,
    magnitudes,
    store_values,
    tile_of,
)
from gradwire.kernels.triton.launch import feedback_mode
from gradwire.kernels.triton.tiles import (
    OPTIONS,
    TILE,
    are_aligned,
    check_alignment,
    kept,
    rows_of,
    starts,
)
from gradwire.layout import align

SLOTS = 1024
"""Slots of a payload that one program works on."""

_INFINITY = tl.constexpr(0x7F800000)
_WILD = tl.constexpr(4096)
_TILE = tl.constexpr(TILE)
_COLUMNS = tl.constexpr(64)


class _Grid(NamedTuple):
    """One way to deal out stretches: number of programs, their stretches, the table."""

    programs: int
    rows: Tensor
    table: Tensor


class _Plan(NamedTuple):
    values: _Grid
    slots: _Grid
    is_aligned: bool
    places: int
    numbers: int
    num_bytes: int


@triton.jit
def prefix_sum(flags, FORM: tl.constexpr):
    """Return inclusive prefix sums of whole numbers, int32 `[_TILE]`, of at most 4096.

    As products: each row of 64 times a triangle of ones gives its own prefix
    sums, exactly, since float32 adds up; the rows' totals are few.
    """
    if FORM == "matrix":
        R: tl.constexpr = _TILE // _COLUMNS
        column = tl.arange(0, _COLUMNS)
        triangle = (column[:, None] <= column[None, :]).to(tl.float16)
        rows = tl.reshape(flags, (R, _COLUMNS))
        inside = tl.dot(rows.to(tl.float16), triangle).to(tl.int32)
        totals = tl.sum(rows, 1)
        sums = tl.reshape(inside + (tl.cumsum(totals, 0) - totals)[:, None], (_TILE,))
    else:
        sums = tl.cumsum(flags, 0)
    return sums


@triton.jit
def _selected(value, cut, index, left):
    """Return flags of values to send: 1 above the cut, 4096 not finite."""
    bits = magnitudes(value)
    wild = bits >= _INFINITY
    flags = tl.where(wild, _WILD, (bits > cut).to(tl.int32))
    return tl.where(index < left, flags, 0), wild


@triton.jit
def count_kernel(
    x_ptr,
    residual_ptr,
    cuts_ptr,
    counts_ptr,
    rows_ptr,
    table_ptr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Count what each tile has to send."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, _TILE)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    index = tl.arange(0, _TILE)
    value = load_owed(x_ptr, residual_ptr, index, left, is_full, FEEDBACK)
    cut = tl.load(cuts_ptr + tl.load(row + 5))
    flags, _ = _selected(value, cut, index, left)
    tl.store(counts_ptr + tl.program_id(0), tl.sum(flags, 0))


@triton.jit
def offsets_kernel(counts_ptr, before_ptr, payload_ptr, totals_ptr, table_ptr, tiles):
    """Count, in one program a stretch, what lies before each tile, and what fits in all."""
    pid = tl.program_id(0)
    row = table_ptr + pid * 8
    first = tl.load(row)
    count = (tl.load(row + 3) + _TILE - 1) // _TILE
    above = tl.zeros((), tl.int32)
    wild = tl.zeros((), tl.int32)
    for start in range(0, count, 1024):
        tile = start + tl.arange(0, 1024)
        here = tl.load(counts_ptr + first + tile, mask=tile < count, other=0)
        more_wild = tl.cumsum(here // _WILD, 0)
        more_above = tl.cumsum(here % _WILD, 0)
        at = before_ptr + first + tile
        tl.store(at, above + more_above - here % _WILD, mask=tile < count)
        tl.store(at + tiles, wild + more_wild - here // _WILD, mask=tile < count)
        wild += tl.sum(here // _WILD, 0)
        above += tl.sum(here % _WILD, 0)
    capacity = tl.load(row + 4).to(tl.int32)
    wild = tl.minimum(wild, capacity)
    above = tl.minimum(above, capacity - wild)
    tl.store(payload_ptr + pid, wild + above)
    tl.store(totals_ptr + 2 * pid, above)
    tl.store(totals_ptr + 2 * pid + 1, wild)


@triton.jit(do_not_specialize=["tiles"])
def write_kernel(
    x_ptr,
    residual_ptr,
    cuts_ptr,
    before_ptr,
    totals_ptr,
    places_ptr,
    numbers_ptr,
    rows_ptr,
    table_ptr,
    gain,
    tiles,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    FORM: tl.constexpr,
):
    """Write places and values of one tile densely, and keep the rest."""
    row, start, left, is_full = tile_of(rows_ptr, table_ptr, _TILE)
    x_ptr = from_row(x_ptr, row, 1, start, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, start, ALIGNED)
    index = tl.arange(0, _TILE)
    value = load_values(x_ptr, index, left, is_full)
    old = value
    if FEEDBACK != 0:
        old = load_values(residual_ptr, index, left, is_full)
    if FEEDBACK == 1:
        value = value + old
    stretch = tl.load(row + 5)
    flags, wild = _selected(value, tl.load(cuts_ptr + stretch), index, left)
    before = before_ptr + tl.program_id(0)
    sums = prefix_sum(flags, FORM) - flags
    most_above = tl.load(totals_ptr + 2 * stretch)
    most_wild = tl.load(totals_ptr + 2 * stretch + 1)
    above_rank = tl.load(before) + sums % _WILD
    wild_rank = tl.load(before + tiles) + sums // _WILD
    fits = tl.where(wild, wild_rank < most_wild, above_rank < most_above)
    sent = (flags > 0) & fits
    slot = tl.minimum(above_rank, most_above) + tl.minimum(wild_rank, most_wild)
    first_slot = tl.load(row + 7)
    tl.store(places_ptr + first_slot + slot, start.to(tl.int32) + index, mask=sent)
    tl.store(numbers_ptr + first_slot + slot, value, mask=sent)
    if FEEDBACK == 1:
        unsent = tl.where(wild, old, tl.where(sent, 0.0, value))
        store_values(residual_ptr, index, unsent, left, is_full)
    elif FEEDBACK == 2:
        unsent = tl.where(sent | wild, old, old + value * gain)
        store_values(residual_ptr, index, unsent, left, is_full)


def _deal(rows: list[checks.Row], limits: list[int], device: torch.device) -> _Plan:
    """Deal out stretches by values and by slots.

    Rows of the tables: first tile, offset, residual offset, numel (slots:
    capacity), capacity (slots: numel), stretch, unused, first slot.
    """
    numels = [row[2] for row in rows]
    first_slots = starts(limits)

    def grid(sizes: list[int], others: list[int], tile: int) -> _Grid:
        counts = [-(-size // tile) for size in sizes]
        columns = (
            starts(counts),
            [row[0] for row in rows],
            [row[1] for row in rows],
            sizes,
            others,
            list(range(len(rows))),
            [0] * len(rows),
            first_slots,
        )
        table = torch.tensor(columns, dtype=torch.int64).T.contiguous()
        return _Grid(sum(counts), rows_of(counts, device), table.to(device))

    places = align(4 * len(rows))
    numbers = places + align(4 * sum(limits))
    return _Plan(
        grid(numels, limits, TILE),
        grid(limits, numels, SLOTS),
        are_aligned(rows),
        places // 4,
        numbers // 4,
        reference_sparse.num_bytes(limits),
    )


def plan_of(x: Tensor, segments: Tensor, capacities: Tensor, residual: Tensor | None) -> _Plan:
    """Return how values and slots are dealt out; kept for the next call."""
    limits = capacities.tolist()
    most = None if residual is None else residual.numel()

    def make() -> _Plan:
        rows = checks.check_rows(segments, x, residual)
        return _deal(rows, checks.check_capacities(rows, limits), x.device)

    return kept(segments, ("sparse", tuple(limits), x.numel(), most, x.device), make)


def sparse_encode(
    x: Tensor,
    segments: Tensor,
    thresholds: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `gradwire.kernels.reference_sparse.sparse_encode`.

    Three launches: count, offsets of tiles, write.
    """
    plan = plan_of(x, segments, capacities, residual)
    checks.check_size("sparse_encode", payload, plan.num_bytes)
    check_alignment("payload", payload)
    payload.zero_()
    tiles, stretches = plan.values.programs, segments.shape[0]
    if not tiles:
        return
    cuts = thresholds.view(torch.int32).clamp(max=0x7F7FFFFF)
    counts = torch.empty(tiles, dtype=torch.int32, device=x.device)
    before = torch.empty(2 * tiles, dtype=torch.int32, device=x.device)
    totals = torch.empty(2 * stretches, dtype=torch.int32, device=x.device)
    mode: dict[str, Any] = {
        "FEEDBACK": feedback_mode(residual, gain),
        "ALIGNED": plan.is_aligned,
        **OPTIONS,
    }
    source = (x, x if residual is None else residual, cuts)
    words = payload.view(torch.int32)
    table = plan.values[1:]
    count_kernel[(tiles,)](*source, counts, *table, **mode)
    offsets_kernel[(stretches,)](counts, before, words, totals, table[1], tiles, **OPTIONS)
    write_kernel[(tiles,)](
        *source,
        before,
        totals,
        words[plan.places :],
        payload.view(torch.float32)[plan.numbers :],
        *table,
        gain,
        tiles,
        FORM=form_of("prefix_sum"),
        **mode,
    )
