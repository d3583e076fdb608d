"""Each op in plain PyTorch: this file defines the wire format and the noise.

Every back end must produce the same bytes and the same residual, bit for bit.
So each float operation below is one IEEE operation in float32, in the order
written, and sums have a fixed shape.

**Payload.** Sections one after the other, each padded with zeros to 16 bytes:
first one float32 scale for each block of each stretch, then the codes.

**Packing.** The codes of a stretch are cut into groups of 256, 32 rows of 8
lanes: code `i` of a group is in row `i // 8`, lane `i % 8`. A lane is a stream
of bits, lowest first, kept in 32-bit little-endian words; word `w` of lane `l`
is word `8 * w + l` of the group. A CPU packs a row with one shift and one or
over a vector of 8 lanes. On a GPU a row of 8 float32 is one whole 32-byte
sector, and 8 words are one as well, so that a warp reads 4 rows and writes 4
words' sectors without waste. A group takes `32 * bits` bytes; the last one of
a stretch keeps the words that its rows reach, with zeros where no code is.

**Noise.** The seed of a stretch is `mix(stream + its own stream)`, the key of
a block the low half of `mix(seed + block * GOLDEN)`, where `block` counts from
the parameter's beginning. Rows `2 p` and `2 p + 1` of lane `l` share the hash of
`key + (8 p + l) * GOLDEN32`: its low bits and its high bits. So noise depends
on nothing but stream, parameter and place.

**Values that are not finite.** A block that contains one, or whose values the
format cannot hold, travels with scale NaN and codes 0, and its residual stays
as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.checks import Row
from gradwire.key import GOLDEN
from gradwire.layout import GROUP, align, num_blocks, packed_bytes
from gradwire.spec import Quantize, Sign

_LANES = 8
_ROWS = GROUP // _LANES
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_HALF_RANGE = 0x7F000000
_SMALLEST_NORMAL = 0x00800000
_WORD = 0xFFFFFFFF
_GOLDEN32 = 0x9E3779B9


class Encoded(NamedTuple):
    """One stretch as it travels, and what the receiver makes of it.

    Attributes:
        scales: float32 `[blocks]`, or empty.
        body: uint8.
        decoded: float32 `[numel]`.
        settled: bool `[numel]`: where the residual may change.
    """

    scales: Tensor
    body: Tensor
    decoded: Tensor
    settled: Tensor


def magnitude_bits(values: Tensor) -> Tensor:
    """Return the bit patterns of magnitudes; ordered like them, NaN above infinity."""
    return values.view(torch.int32) & _MAGNITUDE


def divide(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Divide in float32: by a number, PyTorch multiplies by its reciprocal."""
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    a, b = (torch.as_tensor(t, dtype=torch.float32, device=like.device) for t in (a, b))
    return torch.div(a, b)


def blocks(values: Tensor, block_size: int) -> Tensor:
    """Pad a stretch with zeros and cut it into rows of `block_size`."""
    missing = -values.numel() % block_size
    return torch.nn.functional.pad(values, (0, missing)).view(-1, block_size)


def owed(x: Tensor, row: Row, residual: Tensor | None, gain: float) -> Tensor:
    """Return the values to encode: with the residual added, unless there is a gain."""
    offset, residual_offset, numel, _, _ = row
    value = x[offset : offset + numel]
    if residual is None or gain > 0:
        return value
    return value + residual[residual_offset : residual_offset + numel]


def keep(residual: Tensor | None, row: Row, gain: float, lost: Tensor, settled: Tensor) -> None:
    """Put what was lost into the residual, where it may change."""
    if residual is not None:
        _, start, numel, _, _ = row
        old = residual[start : start + numel]
        new = lost if gain == 0 else old + lost * gain
        old.copy_(torch.where(settled, new, old))


def encode_stretches(
    x: Tensor,
    rows: Sequence[Row],
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    encode: Callable[[Tensor, Row], Encoded],
) -> None:
    """Encode each stretch, and lay the sections out one after the other."""
    scales: list[Tensor] = []
    bodies: list[Tensor] = []
    for row in rows:
        value = owed(x, row, residual, gain)
        encoded = encode(value, row)
        keep(residual, row, gain, value - encoded.decoded, encoded.settled)
        scales.append(encoded.scales)
        bodies.append(encoded.body)
    write(payload, (scales, bodies))


def write(payload: Tensor, sections: Sequence[Sequence[Tensor]]) -> None:
    """Lay sections out one after the other, each padded with zeros."""
    payload.zero_()
    offset = 0
    for section in sections:
        parts = [part.contiguous().view(torch.uint8) for part in section]
        data = torch.cat(parts) if parts else payload[:0]
        payload[offset : offset + data.numel()] = data
        offset += align(data.numel())


def decode_stretches(
    payloads: Tensor,
    rows: Sequence[Row],
    divisor: float,
    accumulate: bool,
    out: Tensor,
    decode: Callable[[Tensor, int, int], Tensor],
) -> None:
    """Sum what `decode(payload, index, numel)` makes of each stretch, row by row."""
    for index, (offset, _, numel, _, _) in enumerate(rows):
        total = decode(payloads[0], index, numel)
        for payload in payloads[1:]:
            total = total + decode(payload, index, numel)
        mean = divide(total, divisor)
        target = out[offset : offset + numel]
        target.copy_(target + mean if accumulate else mean)


def _section(payload: Tensor, offset: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Read `numel` values that need not be aligned."""
    return payload[offset : offset + numel * dtype.itemsize].clone().view(dtype)


def scales_of(
    payload: Tensor, rows: Sequence[Row], block_size: int, index: int
) -> tuple[Tensor, int]:
    """Return the scales of stretch `index`, and where the next section begins."""
    counts = [num_blocks(row[2], block_size) for row in rows]
    scales = _section(payload, 4 * sum(counts[:index]), counts[index], torch.float32)
    return scales, align(4 * sum(counts))


def expand(scales: Tensor, block_size: int, numel: int) -> Tensor:
    """Give each value its block's scale."""
    return scales.repeat_interleave(block_size)[:numel]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes in the layout described above.

    Args:
        codes: int32 `[numel]`, each below `2**bits`.
        bits: Bits a code.

    Returns:
        uint8 `[packed_bytes(numel, bits)]`.

    Example:
        >>> pack(torch.tensor([1, 0, 3], dtype=torch.int32), 2).tolist()[:12]
        [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]
    """
    grid = blocks(codes.to(torch.int64), GROUP).view(-1, _ROWS, _LANES)
    words = grid.new_zeros(grid.shape[0], bits, _LANES)
    for row in range(_ROWS):
        word, shift = divmod(row * bits, 32)
        words[:, word] |= (grid[:, row] << shift) & _WORD
        if shift + bits > 32:  # noqa: PLR2004 - bits in a word
            words[:, word + 1] |= grid[:, row] >> (32 - shift)
    kept = words.view(-1)[: packed_bytes(codes.numel(), bits) // 4]
    return kept.to(torch.int32).view(torch.uint8)


def unpack(data: Tensor, numel: int, bits: int) -> Tensor:
    """Return the int32 codes that `pack` packed.

    Example:
        >>> unpack(pack(torch.tensor([1, 0, 3], dtype=torch.int32), 2), 3, 2).tolist()
        [1, 0, 3]
    """
    words = data.view(torch.int32).to(torch.int64) & _WORD
    grid = blocks(words, _LANES * bits).view(-1, bits, _LANES)
    rows = []
    for row in range(_ROWS):
        word, shift = divmod(row * bits, 32)
        code = grid[:, word] >> shift
        if shift + bits > 32:  # noqa: PLR2004 - bits in a word
            code = code | (grid[:, word + 1] << (32 - shift))
        rows.append(code & ((1 << bits) - 1))
    return torch.stack(rows, 1).view(-1)[:numel].to(torch.int32)


def _mix(z: Tensor) -> Tensor:
    """Scramble int64 numbers as `gradwire.key.mix` does."""
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, count: int) -> Tensor:
    return (z >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def noise(stream: int, row: Row, block_size: int, bits: int, device: torch.device) -> Tensor:
    """Return the uniform numbers of a stretch's whole blocks.

    Args:
        stream: Number of the key's stream.
        row: The stretch.
        block_size: Values in a block.
        bits: Numbers are below `2**bits`.
        device: Where to put them.

    Returns:
        int32 `[blocks, block_size]`.

    Source:
        The hash is lowbias32 by Chris Wellons (Hash Prospector).
    """
    _, _, numel, start, own = row
    seed = _mix(torch.tensor([_signed(stream + own)], device=device))
    count = num_blocks(numel, block_size)
    block = torch.arange(count, device=device) + start // block_size
    key = _mix(seed + block * _signed(GOLDEN)) & _WORD
    pair = torch.arange(block_size // 2, device=device)
    x = (key[:, None] + pair * _GOLDEN32) & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    x = (x ^ (x >> 16)).view(count, -1, _LANES)
    numbers = torch.stack((x & ((1 << bits) - 1), x >> (32 - bits)), 2)
    return numbers.view(count, block_size).to(torch.int32)


class Peaks(NamedTuple):
    """The largest magnitude of each block, `[blocks, 1]`, brought to a safe range.

    Attributes:
        finite: Whether all values are below the format's limit.
        usable: Finite and not below the smallest normal number.
        peak: The largest magnitude.
        lift: A power of two; values times it have reciprocals that fit.
    """

    finite: Tensor
    usable: Tensor
    peak: Tensor
    lift: Tensor


def peaks(values: Tensor, limit: int = _INFINITY) -> Peaks:
    """Measure blocks, one in each row; those that reach `limit` are not finite."""
    return peaks_of(magnitude_bits(values).amax(1, keepdim=True), limit)


def peaks_of(peak_bits: Tensor, limit: int = _INFINITY) -> Peaks:
    """Tell from the bits of peaks, int32 `[blocks, 1]`, what `Peaks` says."""
    peak = peak_bits.view(torch.float32)
    one = torch.ones_like(peak)
    lift = torch.where(peak < 2.0**-64, one * 2.0**64, one)
    lift = torch.where(peak > 2.0**64, one * 2.0**-64, lift)
    finite = peak_bits < limit
    return Peaks(finite, finite & (peak_bits >= _SMALLEST_NORMAL), peak, lift)


def scale_to(r: Peaks, largest: float) -> tuple[Tensor, Tensor]:
    """Return scale and reciprocal that take the largest magnitude to `largest`.

    Blocks below the smallest normal number get scale 0: they are sent as
    zeros and stay in the residual.
    """
    zero = torch.zeros_like(r.peak)
    scale = torch.where(r.usable, divide(r.peak, largest), zero)
    inverse = torch.where(r.usable, divide(largest, r.peak * r.lift), zero)
    return torch.where(r.finite, scale, torch.nan), inverse


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
    """Round each value to a level, in fixed point of 16 bits (12 for 7 and 8).

    With `L = 2**(bits - 1) - 1` (1 bit: 0.5) and the block's largest magnitude
    (or its L2 norm) `m`, the level is `floor(v / m * L + u)`, `u` from `noise` or 1/2; the
    code adds `2**(bits - 1)` (1 bit: 1/2). The scale is `m / L`.
    """
    rows = checks.check_rows(segments, x, residual, block_size)
    size = Quantize(bits, block_size).num_bytes([row[2] for row in rows])
    checks.check_size("quantize_encode", payload, size)
    fraction = 16 if bits <= 6 else 12  # noqa: PLR2004 - so that products stay below 2**22
    largest, bias = (0.5, 0.5) if bits == 1 else (2.0 ** (bits - 1) - 1, 2.0 ** (bits - 1))
    one = 1 << fraction

    def encode(value: Tensor, row: Row) -> Encoded:
        v = blocks(value, block_size)
        measure = norms(v) if l2 else v
        r = peaks(measure, _HALF_RANGE if bits == 1 else _INFINITY)
        scale, inverse = scale_to(r, largest)
        fixed = torch.round(torch.where(r.finite, v, 0) * r.lift * (inverse * one))
        if nearest:
            u: Tensor | int = one // 2
        else:
            u = noise(stream, row, block_size, fraction, x.device)
        code = (fixed.to(torch.int32) + int(bias * one) + u) >> fraction
        code = torch.where(r.finite, code, 0)
        decoded = ((code.to(torch.float32) - bias) * scale).view(-1)[: value.numel()]
        settled = r.finite.expand_as(v).reshape(-1)[: value.numel()]
        packed = pack(code.view(-1)[: value.numel()], bits)
        return Encoded(scale.view(-1), packed, decoded, settled)

    encode_stretches(x, rows, residual, gain, payload, encode)


def quantize_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Multiply levels by their block's scale."""
    rows = checks.check_rows(segments, out, None, block_size)
    size = Quantize(bits, block_size).num_bytes([row[2] for row in rows])
    checks.check_size("quantize_decode", payloads, size)
    bias = 0.5 if bits == 1 else 2.0 ** (bits - 1)
    sizes = [packed_bytes(row[2], bits) for row in rows]

    def decode(payload: Tensor, index: int, numel: int) -> Tensor:
        scales, body = scales_of(payload, rows, block_size, index)
        start = body + sum(sizes[:index])
        code = unpack(payload[start : start + sizes[index]].clone(), numel, bits)
        return (code.to(torch.float32) - bias) * expand(scales, block_size, numel)

    decode_stretches(payloads, rows, divisor, accumulate, out, decode)


def sum_blocks(values: Tensor) -> Tensor:
    """Sum each row of `[blocks, size]` in the order all back ends keep.

    Value `i` goes to partial sum `i % 32`, in order; then the 32 sums, seen as
    4 rows of 8 lanes, are added as `(0 + 1) + (2 + 3)`, and the lanes as
    `((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))`.
    """
    steps = values.view(values.shape[0], -1, 4, _LANES)
    total = torch.zeros_like(steps[:, 0])
    for step in range(steps.shape[1]):
        total = total + steps[:, step]
    lane = (total[:, 0] + total[:, 1]) + (total[:, 2] + total[:, 3])
    l0, l1, l2, l3, l4, l5, l6, l7 = lane.unbind(1)
    return ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))


def norms(values: Tensor) -> Tensor:
    """Return the L2 norm of each row of `[blocks, size]`, `[blocks, 1]`.

    Squares are summed of values times a power of two that takes the largest
    to [1, 2), so that they neither overflow nor vanish.
    """
    peak = magnitude_bits(values).amax(1, keepdim=True)
    exponent = (254 - (peak >> 23)).clamp(1, 253)
    down, up = ((bits << 23).view(torch.float32) for bits in (exponent, 254 - exponent))
    scaled = values * down
    # In float64, as torch's square root of float32 may be off in the last bit.
    root = sum_blocks(scaled * scaled)[:, None].double().sqrt().to(torch.float32)
    norm = root * up
    return torch.where(peak < _INFINITY, norm, torch.nan)


def sign_encode(
    x: Tensor,
    segments: Tensor,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """Send the sign bit of each value and the mean magnitude of each block.

    Where the sum of magnitudes overflows, the mean is formed from magnitudes
    times `2**-17`.
    """
    rows = checks.check_rows(segments, x, residual, block_size)
    size = Sign(block_size).num_bytes([row[2] for row in rows])
    checks.check_size("sign_encode", payload, size)

    def encode(value: Tensor, _row: Row) -> Encoded:
        v = blocks(value, block_size)
        finite = peaks(v).finite
        count = torch.full((v.shape[0],), float(block_size), device=x.device)
        count[-1] = value.numel() - block_size * (v.shape[0] - 1)
        mean = divide(sum_blocks(v.abs()), count)
        small = divide(sum_blocks(v.abs() * 2.0**-17), count) * 2.0**17
        mean = torch.where(mean.isinf(), small, mean)
        scale = torch.where(finite.view(-1), mean, torch.nan)
        negative = torch.where(finite, v.signbit(), False).view(-1)[: value.numel()]  # noqa: FBT003
        magnitude = expand(scale, block_size, value.numel())
        decoded = torch.where(negative, -magnitude, magnitude)
        settled = finite.expand_as(v).reshape(-1)[: value.numel()]
        return Encoded(scale, pack(negative.to(torch.int32), 1), decoded, settled)

    encode_stretches(x, rows, residual, gain, payload, encode)


def sign_decode(
    payloads: Tensor,
    segments: Tensor,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Give each scale its value's sign."""
    rows = checks.check_rows(segments, out, None, block_size)
    size = Sign(block_size).num_bytes([row[2] for row in rows])
    checks.check_size("sign_decode", payloads, size)
    sizes = [packed_bytes(row[2], 1) for row in rows]

    def decode(payload: Tensor, index: int, numel: int) -> Tensor:
        scales, body = scales_of(payload, rows, block_size, index)
        start = body + sum(sizes[:index])
        negative = unpack(payload[start : start + sizes[index]].clone(), numel, 1)
        magnitude = expand(scales, block_size, numel)
        return torch.where(negative > 0, -magnitude, magnitude)

    decode_stretches(payloads, rows, divisor, accumulate, out, decode)


def hadamard(x: Tensor, block_size: int, out: Tensor) -> None:
    """Apply the normalised Walsh-Hadamard transform to each block, in natural order.

    Butterflies of distance 1, 2, 4 and so on, then one multiplication by
    `block_size**-0.5`. The transform is its own inverse.
    """
    y = x
    distance = 1
    while distance < block_size:
        pairs = y.reshape(-1, 2, distance)
        a, b = pairs[:, 0], pairs[:, 1]
        y = torch.stack((a + b, a - b), 1)
        distance *= 2
    out.copy_((y * block_size**-0.5).view(-1))
