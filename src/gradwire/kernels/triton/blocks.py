"""Device code that the kernels share: stretches, loads, peaks, scales, packing.

Every float operation is the reference's, in its order: launches turn off fused
multiply-add, and divisions round to nearest.
"""

from __future__ import annotations

import triton
import triton.language as tl

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_SMALLEST_NORMAL = tl.constexpr(0x00800000)
_NAN = tl.constexpr(0x7FC00000)
_NONE, _OWED, _GAIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_COLUMNS = tl.constexpr(8)


@triton.jit
def tile_of(rows_ptr, table_ptr, VALUES: tl.constexpr):
    """Find what a program works on.

    Returns:
        Its stretch's row of the table; where the tile begins in the stretch,
        int64; how many of its values lie in the stretch, int32; whether all do.
    """
    pid = tl.program_id(0)
    row = table_ptr + tl.load(rows_ptr + pid) * _COLUMNS
    start = (pid - tl.load(row)) * VALUES
    left = tl.minimum(tl.load(row + 3) - start, VALUES).to(tl.int32)
    return row, start, left, left == VALUES


@triton.jit
def from_row(ptr, row, column, start, ALIGNED: tl.constexpr):
    """Move a pointer to a tile; aligned, four values can be moved at once."""
    first = tl.load(row + column) + start
    if ALIGNED:
        first = tl.multiple_of(first, 4)
    return ptr + first


@triton.jit
def load_values(ptr, index, limit, is_full):
    """Load values, zeros from `limit` on; a full tile needs no masks."""
    if is_full:
        values = tl.load(ptr + index)
    else:
        values = tl.load(ptr + index, mask=index < limit, other=0)
    return values


@triton.jit
def store_values(ptr, index, values, limit, is_full):
    """Store values below `limit`."""
    if is_full:
        tl.store(ptr + index, values)
    else:
        tl.store(ptr + index, values, mask=index < limit)


@triton.jit
def load_owed(x_ptr, residual_ptr, index, limit, is_full, FEEDBACK: tl.constexpr):
    """Load the values to encode."""
    value = load_values(x_ptr, index, limit, is_full)
    if FEEDBACK == _OWED:
        value = value + load_values(residual_ptr, index, limit, is_full)
    return value


@triton.jit
def keep_lost(ptr, index, lost, settled, gain, limit, is_full, FEEDBACK: tl.constexpr):
    """Put what was lost into the residual, where it may change."""
    if FEEDBACK != _NONE:
        if FEEDBACK == _GAIN:
            lost = load_values(ptr, index, limit, is_full) + lost * gain
        may = tl.broadcast_to(settled, lost.shape)
        if is_full:
            tl.store(ptr + index, lost, mask=may)
        else:
            tl.store(ptr + index, lost, mask=may & (index < limit))


@triton.jit
def magnitudes(values):
    """Return bit patterns of magnitudes, ordered like them, NaN above infinity."""
    return values.to(tl.int32, bitcast=True) & _MAGNITUDE


@triton.jit
def signed(size, negative):
    """Give sizes their sign; Triton's own minus turns 0.0 into 0.0, not -0.0."""
    return tl.where(negative, size * -1.0, size)


@triton.jit
def peaks_of(
    x_ptr,
    residual_ptr,
    index,
    left,
    is_full,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    FEEDBACK: tl.constexpr,
):
    """Return each block's first chunk, and the bits of its largest magnitude."""
    value = load_owed(x_ptr, residual_ptr, index, left, is_full, FEEDBACK)
    peak = tl.max(magnitudes(value), 1)
    for chunk in range(1, BLOCK // CHUNK):
        here = index + chunk * CHUNK
        more = load_owed(x_ptr, residual_ptr, here, left, is_full, FEEDBACK)
        peak = tl.maximum(peak, tl.max(magnitudes(more), 1))
    return value, peak


@triton.jit
def groups_of(BLOCKS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Number the groups in the first chunk of each block."""
    g = tl.arange(0, BLOCKS * (CHUNK // 256))
    return g // (CHUNK // 256) * (BLOCK // 256) + g % (CHUNK // 256)


@triton.jit
def lift_of(peak):
    """Return a power of two; values times it have reciprocals that fit."""
    return tl.where(peak < 2.0**-64, 2.0**64, tl.where(peak > 2.0**64, 2.0**-64, 1.0))


@triton.jit
def scale_to(peak_bits, largest, LIMIT: tl.constexpr):
    """Return scale, reciprocal and lift that take the largest magnitude to `largest`."""
    peak = peak_bits.to(tl.float32, bitcast=True)
    lift = lift_of(peak)
    finite = peak_bits < LIMIT
    usable = finite & (peak_bits >= _SMALLEST_NORMAL)
    safe = tl.where(usable, peak, 1.0)
    scale = tl.where(usable, tl.div_rn(safe, largest), 0.0)
    lifted = tl.where(usable, safe * lift, 1.0)
    inverse = tl.where(usable, tl.div_rn(tl.full(peak.shape, largest, tl.float32), lifted), 0.0)
    return mark(scale, finite), inverse, lift


@triton.jit
def sum_halves(partial):
    """Sum 32 partial sums of each row, `[rows, 32]`, in the order all back ends keep.

    They are 4 rows of 8 lanes, added as `(0 + 1) + (2 + 3)`; then lanes that
    are 4, 2 and 1 apart. Sums of two terms have no order.
    """
    R: tl.constexpr = partial.shape[0]
    pairs = tl.sum(tl.reshape(partial, (R, 2, 2, 8)), 2)
    lanes = tl.sum(pairs, 1)
    fours = tl.sum(tl.reshape(lanes, (R, 2, 4)), 1)
    twos = tl.sum(tl.reshape(fours, (R, 2, 2)), 1)
    return tl.sum(twos, 1)


@triton.jit
def mark(scale, finite):
    """Return the scale, NaN where a block is not finite."""
    bits = tl.where(finite, scale.to(tl.int32, bitcast=True), _NAN)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def clear_paddings(bytes_ptr, first, first_end, second, second_end):
    """Zero the two paddings of a payload; the first program does."""
    if tl.program_id(0) == 0:
        i = tl.arange(0, 16)
        zeros = tl.zeros((16,), tl.uint8)
        tl.store(bytes_ptr + first + i, zeros, mask=first + i < first_end)
        tl.store(bytes_ptr + second + i, zeros, mask=second + i < second_end)


@triton.jit
def packed_words(numel, BITS: tl.constexpr):
    """Count the words that a stretch's packed codes take, or a tile's from a group on."""
    rows = (numel % 256 + 7) // 8
    return numel // 256 * (8 * BITS) + (rows * BITS + 31) // 32 * 8


@triton.jit
def pack(words_ptr, codes, group, limit, is_full, BITS: tl.constexpr):
    """Pack whole groups and store their words.

    A code lies at bit `row * BITS` of its lane. Where 32 is a multiple of BITS,
    `32 // BITS` rows make one word; else four rows make a chunk that fits a
    word, and words take their parts from the eight chunks of a lane.

    Args:
        words_ptr: int32, the first word of the tile.
        codes: int32 `[groups * 256]`.
        group: int32 `[groups]`: number of each group.
        limit: Words of the tile.
        is_full: Whether all words are below it.
        BITS: Bits a code.
    """
    GROUPS: tl.constexpr = group.shape[0]
    STRADDLES: tl.constexpr = 32 % BITS != 0
    ROWS: tl.constexpr = 4 if STRADDLES else 32 // BITS
    CHUNKS: tl.constexpr = 32 // ROWS
    grid = tl.reshape(codes, (GROUPS, CHUNKS, ROWS, 8))
    row = tl.reshape(tl.arange(0, ROWS), (1, 1, ROWS, 1))
    chunks = tl.sum(grid << (row * BITS), 2)
    lane = tl.arange(0, 8)
    first = group * (8 * BITS)
    if STRADDLES:
        chunk = tl.arange(0, CHUNKS)[None, :, None]
        bits = chunks.to(tl.uint32, bitcast=True)
        for word in tl.static_range(BITS):
            place = chunk * (ROWS * BITS) - 32 * word
            low = tl.where((place >= 0) & (place < 32), bits << (place & 31).to(tl.uint32), 0)
            high = tl.where((place < 0) & (place > -32), bits >> (-place & 31).to(tl.uint32), 0)
            value = tl.sum((low | high).to(tl.int32, bitcast=True), 1)
            index = first[:, None] + (8 * word + lane)[None, :]
            store_values(words_ptr, index, value, limit, is_full)
    else:
        word = tl.arange(0, CHUNKS)
        index = first[:, None, None] + (8 * word)[None, :, None] + lane[None, None, :]
        store_values(words_ptr, index, chunks, limit, is_full)


@triton.jit
def unpack(words_ptr, group, limit, is_full, BITS: tl.constexpr):
    """Load and unpack whole groups, as int32 `[groups * 256]`; see `pack`."""
    GROUPS: tl.constexpr = group.shape[0]
    STRADDLES: tl.constexpr = 32 % BITS != 0
    ROWS: tl.constexpr = 4 if STRADDLES else 32 // BITS
    CHUNKS: tl.constexpr = 32 // ROWS
    chunk = tl.arange(0, CHUNKS)
    bit = chunk * (ROWS * BITS)
    index = (group * (8 * BITS))[:, None, None] + (bit // 32 * 8)[None, :, None]
    index += tl.arange(0, 8)[None, None, :]
    chunks = load_values(words_ptr, index, limit, is_full).to(tl.uint32, bitcast=True)
    if STRADDLES:
        shift = (bit % 32)[None, :, None]
        spills = tl.broadcast_to(shift + ROWS * BITS > 32, index.shape) & (index + 8 < limit)
        above = tl.load(words_ptr + index + 8, mask=spills, other=0).to(tl.uint32, bitcast=True)
        above = tl.where(shift > 0, above << ((32 - shift) & 31).to(tl.uint32), 0)
        chunks = (chunks >> shift.to(tl.uint32)) | above
    row = tl.reshape(tl.arange(0, ROWS), (1, 1, ROWS, 1)) * BITS
    codes = (chunks[:, :, None, :] >> row.to(tl.uint32)) & ((1 << BITS) - 1)
    return tl.reshape(codes, (GROUPS * 256,)).to(tl.int32, bitcast=True)


@triton.jit
def load_scales(ptr, group, within, left, is_full, BLOCK: tl.constexpr):
    """Load the scale of each group; the tile begins `within` groups into a block."""
    ptr += (within + group) // (BLOCK // 256)
    if is_full:
        scale = tl.load(ptr)
    else:
        scale = tl.load(ptr, mask=group * 256 < left, other=0.0)
    return scale


@triton.jit
def write_mean(out_ptr, total, group, left, divisor, is_full, ACCUMULATE: tl.constexpr):
    """Divide `[groups, 256]` sums, and store them or add them to what is there."""
    index = group[:, None] * 256 + tl.arange(0, 256)[None, :]
    mean = tl.div_rn(total, tl.full(total.shape, divisor, tl.float32))
    if ACCUMULATE:
        mean = load_values(out_ptr, index, left, is_full) + mean
    store_values(out_ptr, index, mean, left, is_full)
