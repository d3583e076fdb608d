"""Shorter floats, with a scale for each block where their range is small."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import CODECS, Segments, check_payloads, new_payload
from gradwire.kernels import ops
from gradwire.key import Key
from gradwire.spec import Float


@CODECS.register("float")
class FloatCodec:
    """Rounds each value to a shorter float, to nearest and ties to even.

    Args:
        spec: The parameters.

    Example:
        >>> import torch
        >>> from gradwire.codecs.base import build
        >>> from gradwire.spec import Float
        >>> x, out, whole = torch.tensor([1.0, 1.0039]), torch.empty(2), Segments.whole(2)
        >>> codec = build(Float("bfloat16"))
        >>> codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        >>> out.tolist()
        [1.0, 1.0]
    """

    def __init__(self, spec: Float) -> None:
        self.spec = spec

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
        ops.float_encode(x, segments.table, spec.format, spec.block_size, residual, gain, payload)
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
        ops.float_decode(
            payloads, segments.table, spec.format, spec.block_size, divisor, accumulate, out
        )
