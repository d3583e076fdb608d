"""Whole-number levels of 1 to 8 bits, a scale for each block."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import CODECS, Segments, check_payloads, new_payload
from gradwire.kernels import ops
from gradwire.key import Key
from gradwire.spec import Quantize


@CODECS.register("quantize")
class QuantizeCodec:
    """Rounds `v / m * L` to a level, with the block's largest magnitude or norm `m`.

    `L = 2**(bits - 1) - 1` levels lie on each side of 0 (1 bit: none but the two
    at `-m` and `m`). Stochastic rounding is unbiased; nearest is not. With a
    rotation, `v` are the values of the transformed block.

    Args:
        spec: The parameters.

    Example:
        >>> import torch
        >>> from gradwire.codecs.base import build
        >>> from gradwire.spec import Quantize
        >>> x, out, whole = torch.tensor([-1.0, 0.0, 1.0]), torch.empty(3), Segments.whole(3)
        >>> codec = build(Quantize(bits=2))
        >>> codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        >>> out.tolist()
        [-1.0, 0.0, 1.0]
    """

    def __init__(self, spec: Quantize) -> None:
        self.spec = spec
        self._is_rotated = spec.rotation == "hadamard"

    def encode(
        self,
        x: Tensor,
        segments: Segments,
        key: Key,
        residual: Tensor | None = None,
        gain: float = 0.0,
    ) -> Tensor:
        """See `Codec.encode`."""
        spec = self.spec
        payload = new_payload(spec, segments, x)
        arguments = (
            *(x, segments.table, key.stream(), spec.bits, spec.block_size),
            *(spec.rounding == "nearest", residual, gain, payload),
        )
        if self._is_rotated:
            ops.rotated_encode(*arguments)
        else:
            ops.quantize_encode(*arguments, spec.scale == "l2")
        return payload

    def decode(
        self,
        payloads: Tensor,
        segments: Segments,
        out: Tensor,
        divisor: float = 1.0,
        *,
        accumulate: bool = False,
    ) -> None:
        """See `Codec.decode`."""
        spec = self.spec
        check_payloads(spec, segments, payloads)
        decode = ops.rotated_decode if self._is_rotated else ops.quantize_decode
        decode(payloads, segments.table, spec.bits, spec.block_size, divisor, accumulate, out)
