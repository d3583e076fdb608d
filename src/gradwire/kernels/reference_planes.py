"""The ops of bit planes, and of payloads of several kinds, in plain PyTorch.

**Payload of planes.** A header of 16 bytes, whose first word is the number of
planes that follow, zeros behind it; scales as in `reference.py`; then one
section for each plane, packed with one bit a value: signs, then magnitudes of
levels from the top bit down.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks
from gradwire.kernels.reference import (
    blocks,
    decode_stretches,
    divide,
    expand,
    keep,
    noise,
    owed,
    pack,
    peaks,
    quantize_decode,
    scale_to,
    scales_of,
    sign_decode,
    unpack,
    write,
)
from gradwire.kernels.reference_float import float_decode
from gradwire.layout import ALIGNMENT, align, num_blocks, packed_bytes
from gradwire.spec import BitPlanes, Float, Quantize, Sign

_FRACTION = 12


def magnitudes(tops: Tensor, cut: int) -> Tensor:
    """Return what magnitudes without their last `cut` bits stand for, float32.

    The middle of what they may have been; 0 stays 0.
    """
    middle = ((1 << cut) - 1) * 0.5
    return torch.where(tops > 0, (tops << cut).to(torch.float32) + middle, 0.0)


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
    """Round to levels as `quantize_encode`, and send the first planes of them.

    Levels are rounded with noise, in fixed point of 12 bits. The residual keeps
    what the planes sent do not tell.
    """
    rows = checks.check_rows(segments, x, residual, block_size)
    spec = BitPlanes(bits, planes, block_size)
    checks.check_size("planes_encode", payload, spec.num_bytes([row[2] for row in rows]))
    if not rows:
        return
    largest, cut = float(2 ** (bits - 1) - 1), bits - planes
    scales: list[Tensor] = []
    sections: list[list[Tensor]] = [[] for _ in range(planes)]
    for row in rows:
        value = owed(x, row, residual, gain)
        numel, v = value.numel(), blocks(value, block_size)
        r = peaks(v)
        scale, inverse = scale_to(r, largest)
        fixed = torch.round(torch.where(r.finite, v, 0) * r.lift * (inverse * (1 << _FRACTION)))
        u = noise(stream, row, block_size, _FRACTION, x.device)
        level = torch.where(r.finite, (fixed.to(torch.int32) + u) >> _FRACTION, 0)
        negative, top = level < 0, level.abs() >> cut
        size = magnitudes(top, cut) * scale
        decoded = torch.where(negative, -size, size).view(-1)[:numel]
        settled = r.finite.expand_as(v).reshape(-1)[:numel]
        keep(residual, row, gain, value - decoded, settled)
        scales.append(scale.view(-1))
        sections[0].append(pack(negative.to(torch.int32).view(-1)[:numel], 1))
        for plane in range(1, planes):
            bit = (top >> (planes - 1 - plane)) & 1
            sections[plane].append(pack(bit.view(-1)[:numel], 1))
    header = torch.tensor([planes, 0, 0, 0], dtype=torch.int32)
    write(payload, ([header], scales, *sections))


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
    """Multiply the magnitudes that each payload's own planes tell by scales.

    Raises:
        GradwireError: A payload announces fewer than 2 planes, or more than
            there is room for.
    """
    rows = checks.check_rows(segments, out, None, block_size)
    numels = [row[2] for row in rows]
    checks.check_size(
        "planes_decode", payloads, BitPlanes(bits, planes, block_size).num_bytes(numels)
    )
    sizes = [packed_bytes(n, 1) for n in numels]
    scale_bytes = align(4 * sum(num_blocks(n, block_size) for n in numels))
    for row in payloads if rows else payloads[:0]:
        check_planes(announced(row), planes)

    def decode(payload: Tensor, index: int, numel: int) -> Tensor:
        count = announced(payload)
        scales, _ = scales_of(payload[ALIGNMENT:], rows, block_size, index)
        start = ALIGNMENT + scale_bytes + sum(sizes[:index])
        sections = []
        for plane in range(count):
            first = start + plane * align(sum(sizes))
            sections.append(unpack(payload[first : first + sizes[index]].clone(), numel, 1))
        top = torch.zeros_like(sections[0])
        for bit in sections[1:]:
            top = top * 2 + bit
        size = magnitudes(top, bits - count) * expand(scales, block_size, numel)
        return torch.where(sections[0] > 0, -size, size)

    decode_stretches(payloads, rows, divisor, accumulate, out, decode)


def announced(payload: Tensor) -> int:
    """Return how many planes a payload says it holds."""
    return int(payload[:4].clone().view(torch.int32))


def check_planes(count: int, planes: int) -> None:
    """Make sure that a payload announces planes that it can hold.

    Raises:
        GradwireError: It does not.
    """
    if not 2 <= count <= planes:  # noqa: PLR2004 - a sign and a magnitude
        raise GradwireError(
            f"a payload announces {count} bit planes, not between 2 and {planes};"
            " it was damaged on its way or encoded by another plan"
        )


def mixed_decode(
    payloads: Sequence[Tensor],
    segments: Tensor,
    formats: Sequence[str],
    block_sizes: Sequence[int],
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Sum payloads of different formats in their order, over the divisor."""
    rows = checks.check_rows(segments, out, None, max(block_sizes, default=1))
    parts = []
    for payload, form, block_size in zip(payloads, formats, block_sizes, strict=True):
        parts.append(torch.zeros_like(out))
        _decode_one(payload[None], segments, checks.mixed_spec(form, block_size), parts[-1])
    for offset, _, numel, _, _ in rows:
        total = parts[0][offset : offset + numel]
        for part in parts[1:]:
            total = total + part[offset : offset + numel]
        mean = divide(total, divisor)
        target = out[offset : offset + numel]
        target.copy_(target + mean if accumulate else mean)


def _decode_one(
    payload: Tensor, segments: Tensor, spec: Float | Sign | Quantize, out: Tensor
) -> None:
    tail = (spec.block_size, 1.0, False, out)
    match spec:
        case Float():
            float_decode(payload, segments, spec.format, *tail)
        case Sign():
            sign_decode(payload, segments, *tail)
        case Quantize():
            quantize_decode(payload, segments, spec.bits, *tail)
