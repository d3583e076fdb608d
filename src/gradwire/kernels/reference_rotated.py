"""Levels of rotated blocks: the Hadamard transform, then `quantize`.

A rotated block spreads one large value over all of its places, so that fewer
levels are lost to it. Each whole block is rotated; a shorter last one travels
as it is, since it would need more values than there are. The payload is that
of `quantize`. As the rotation is linear, receivers sum first and turn back once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels import checks, reference
from gradwire.spec import Quantize


class Parts(NamedTuple):
    """One back end's kernels that a rotated codec is made of."""

    encode: Callable[..., Tensor | None]
    decode: Callable[..., Tensor | None]
    hadamard: Callable[..., Tensor | None]


_REFERENCE = Parts(reference.quantize_encode, reference.quantize_decode, reference.hadamard)


def rotated(parts: Parts, values: Tensor, block_size: int) -> Tensor:
    """Return a stretch whose whole blocks are transformed."""
    whole = values.numel() // block_size * block_size
    result = values.clone()
    parts.hadamard(values[:whole].contiguous(), block_size, result[:whole])
    return result


def encode_with(
    parts: Parts,
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
    """Rotate, round, and keep what was lost, turned back."""
    rows = checks.check_rows(segments, x, residual, block_size)
    spec = Quantize(bits, block_size, rotation="hadamard")
    checks.check_size("rotated_encode", payload, spec.num_bytes([row[2] for row in rows]))
    if not rows:
        return
    owed = [reference.owed(x, row, residual, gain) for row in rows]
    values = torch.cat([rotated(parts, value, block_size) for value in owed])
    table = _compact(segments)
    parts.encode(values, table, stream, bits, block_size, nearest, None, 0.0, payload)
    if residual is None:
        return
    decoded = torch.empty_like(values)
    parts.decode(payload[None], table, bits, block_size, 1.0, False, decoded)  # noqa: FBT003 - ops take arguments by position
    numels = [row[2] for row in rows]
    lost = torch.split(values - decoded, numels)
    settled = torch.split(decoded.isnan().logical_not(), numels)
    for row, part, may in zip(rows, lost, settled, strict=True):
        reference.keep(residual, row, gain, rotated(parts, part, block_size), may)


def decode_with(
    parts: Parts,
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """Form the mean of rotated values, and turn it back."""
    rows = checks.check_rows(segments, out, None, block_size)
    table = _compact(segments)
    mean = out.new_empty(sum(row[2] for row in rows))
    parts.decode(payloads, table, bits, block_size, divisor, False, mean)  # noqa: FBT003 - ops take arguments by position
    for row, part in zip(rows, torch.split(mean, [row[2] for row in rows]), strict=True):
        value = rotated(parts, part, block_size)
        target = out[row[0] : row[0] + row[2]]
        target.copy_(target + value if accumulate else value)


def _compact(segments: Tensor) -> Tensor:
    """Lay stretches out one after the other; noise depends on their own numbers only."""
    table = segments.clone()
    table[:, 0] = segments[:, 2].cumsum(0) - segments[:, 2]
    table[:, 1] = 0
    return table


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
    """See `encode_with`."""
    where = (segments, stream, bits, block_size, nearest)
    encode_with(_REFERENCE, x, *where, residual, gain, payload)


def rotated_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `decode_with`."""
    decode_with(_REFERENCE, payloads, segments, bits, block_size, divisor, accumulate, out)
