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


class Rotation(NamedTuple):
    """The rotated codec, made of one back end's kernels."""

    quantize_encode: Callable[..., Tensor | None]
    quantize_decode: Callable[..., Tensor | None]
    hadamard: Callable[..., Tensor | None]

    def rotated_encode(
        self,
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
        values = torch.cat([self._rotated(value, block_size) for value in owed])
        table = _compact(segments)
        details = (stream, bits, block_size, nearest)
        self.quantize_encode(values, table, *details, None, 0.0, payload)
        if residual is None:
            return
        decoded = torch.empty_like(values)
        where = (payload[None], table, bits, block_size)
        self.quantize_decode(*where, 1.0, False, decoded)  # noqa: FBT003 - ops take arguments by position
        numels = [row[2] for row in rows]
        lost = torch.split(values - decoded, numels)
        settled = torch.split(decoded.isnan().logical_not(), numels)
        for row, part, may in zip(rows, lost, settled, strict=True):
            reference.keep(residual, row, gain, self._rotated(part, block_size), may)

    def rotated_decode(
        self,
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
        mean = out.new_empty(sum(row[2] for row in rows))
        where = (payloads, _compact(segments), bits, block_size)
        self.quantize_decode(*where, divisor, False, mean)  # noqa: FBT003 - ops take arguments by position
        for row, part in zip(rows, torch.split(mean, [row[2] for row in rows]), strict=True):
            value = self._rotated(part, block_size)
            target = out[row[0] : row[0] + row[2]]
            target.copy_(target + value if accumulate else value)

    def _rotated(self, values: Tensor, block_size: int) -> Tensor:
        whole = values.numel() // block_size * block_size
        result = torch.empty_like(values)
        result[whole:] = values[whole:]
        self.hadamard(values[:whole].contiguous(), block_size, result[:whole])
        return result


def _compact(segments: Tensor) -> Tensor:
    """Lay stretches out one after the other; noise depends on their own numbers only."""
    table = segments.clone()
    table[:, 0] = segments[:, 2].cumsum(0) - segments[:, 2]
    table[:, 1] = 0
    return table


_REFERENCE = Rotation(reference.quantize_encode, reference.quantize_decode, reference.hadamard)
rotated_encode, rotated_decode = _REFERENCE.rotated_encode, _REFERENCE.rotated_decode
