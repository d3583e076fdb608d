"""One bit a value, and the mean magnitude of each block."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import CODECS, Segments, check_payloads, new_payload
from gradwire.kernels import ops
from gradwire.key import Key
from gradwire.spec import Sign


@CODECS.register("sign")
class SignCodec:
    """Sends signs; each block decodes to plus or minus its mean magnitude.

    Biased, so it needs feedback. Zero counts as positive (minus zero as
    negative), on every back end.

    Args:
        spec: The parameters.

    Example:
        >>> import torch
        >>> from gradwire.codecs.base import build
        >>> from gradwire.spec import Sign
        >>> x, out, whole = torch.tensor([-1.0, 0.0, 2.0]), torch.empty(3), Segments.whole(3)
        >>> codec = build(Sign())
        >>> codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        >>> out.tolist()
        [-1.0, 1.0, 1.0]
    """

    def __init__(self, spec: Sign) -> None:
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
        ops.sign_encode(x, segments.table, spec.block_size, residual, gain, payload)
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
        ops.sign_decode(payloads, segments.table, spec.block_size, divisor, accumulate, out)
