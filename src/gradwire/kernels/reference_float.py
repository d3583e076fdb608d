"""The ops of the float codec in plain PyTorch.

**Payload.** Scales as in `reference.py`, for float16 and float8 only; then the
values in order, but for float8: byte `8 k + l` of each whole group of 32 is at
place `4 l + k`, so that a CPU packs four rows of 8 lanes by shifts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.reference import (
    Encoded,
    Peaks,
    blocks,
    decode_stretches,
    encode_stretches,
    expand,
    magnitude_bits,
    peaks,
    scale_to,
    scales_of,
)
from gradwire.spec import FLOAT_BYTES, Float, FloatFormat

_LANES = 8
_BFLOAT16_OVERFLOW = 0x7F7F8000
_TORCH_FORMATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_FLOAT8_MAX = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}


def _interleave(data: Tensor, numel: int) -> Tensor:
    """Put byte `8 k + l` of each whole group of 32 at place `4 l + k`.

    So a CPU packs four rows of 8 lanes by shifts; a remainder stays in order.
    """
    whole = numel - numel % 32
    mixed = data[:whole].view(-1, 4, _LANES).transpose(1, 2).reshape(-1)
    return torch.cat((mixed, data[whole:]))


def _deinterleave(data: Tensor, numel: int) -> Tensor:
    whole = numel - numel % 32
    plain = data[:whole].view(-1, _LANES, 4).transpose(1, 2).reshape(-1)
    return torch.cat((plain, data[whole:]))


def _float16_scale(r: Peaks) -> tuple[Tensor, Tensor]:
    """Return the power of two that brings the largest magnitude into [2**14, 2**15)."""
    exponent = ((r.peak.view(torch.int32) >> 23) - 127 - 14).clamp(min=-126)
    scale = ((exponent + 127) << 23).view(torch.float32)
    inverse = ((127 - exponent) << 23).view(torch.float32)
    zero = torch.zeros_like(r.peak)
    scale = torch.where(r.finite, torch.where(r.usable, scale, zero), torch.nan)
    return scale, torch.where(r.usable, inverse, zero)


def _encode_float(value: Tensor, format: FloatFormat, block_size: int) -> Encoded:  # noqa: A002
    v = blocks(value, block_size)
    r = peaks(v)
    finite = r.finite
    if format == "bfloat16":
        finite = magnitude_bits(v).amax(1, keepdim=True) < _BFLOAT16_OVERFLOW
    clean = torch.where(finite, v, 0)
    if format in ("float32", "bfloat16"):
        scale = v.new_empty(0)
        short = clean.to(_TORCH_FORMATS[format]).masked_fill(~finite, torch.nan)
        decoded = short.to(torch.float32)
    elif format == "float16":
        scale, inverse = _float16_scale(r)
        short = (clean * inverse).to(torch.float16)
        decoded = short.to(torch.float32) * scale
    else:
        scale, inverse = scale_to(r, _FLOAT8_MAX[format])
        short = (clean * r.lift * inverse).to(_TORCH_FORMATS[format])
        decoded = short.to(torch.float32) * scale
    numel = value.numel()
    body = short.view(-1)[:numel].view(torch.uint8)
    if FLOAT_BYTES[format] == 1:
        body = _interleave(body, numel)
    settled = finite.expand_as(v).reshape(-1)[:numel]
    return Encoded(scale.view(-1), body, decoded.view(-1)[:numel], settled)


def float_encode(
    x: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """Round to a shorter float, to nearest and ties to even.

    float8 scales take the block's largest magnitude to the format's largest
    value; float16 scales are powers of two, so that only the format rounds.
    Blocks of float32 and bfloat16, which have no scale to mark them, travel as
    NaN where one of their values is not finite or would round to infinity.
    """
    rows = checks.check_rows(segments, x, residual, block_size)
    size = Float(format, block_size).num_bytes([row[2] for row in rows])
    checks.check_size("float_encode", payload, size)
    encode_stretches(
        x,
        rows,
        residual,
        gain,
        payload,
        lambda value, _row: _encode_float(value, format, block_size),
    )


def float_decode(
    payloads: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Widen the short floats, and multiply by the block's scale if there is one."""
    rows = checks.check_rows(segments, out, None, block_size)
    spec = Float(format, block_size)
    checks.check_size("float_decode", payloads, spec.num_bytes([row[2] for row in rows]))
    width = FLOAT_BYTES[format]

    def decode(payload: Tensor, index: int, numel: int) -> Tensor:
        scales, body = scales_of(payload, rows, block_size, index)
        start = (body if spec.is_scaled else 0) + width * sum(row[2] for row in rows[:index])
        data = payload[start : start + width * numel].clone()
        if width == 1:
            data = _deinterleave(data, numel)
        value = data.view(_TORCH_FORMATS[format]).to(torch.float32)
        return value * expand(scales, block_size, numel) if spec.is_scaled else value

    decode_stretches(payloads, rows, divisor, accumulate, out, decode)
