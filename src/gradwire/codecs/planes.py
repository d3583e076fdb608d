"""Levels plane by plane, the most significant bits first."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.base import CODECS, Segments, check_payloads, new_payload
from gradwire.kernels import ops
from gradwire.key import Key
from gradwire.spec import BitPlanes


@CODECS.register("bit_planes")
class BitPlanesCodec:
    """Rounds to levels and sends their top bits; each payload tells how many.

    What the missing bits might have been is taken at its middle, and 0 stays
    0. Cut magnitudes are biased, so it needs feedback.

    Args:
        spec: The parameters.

    Example:
        >>> import torch
        >>> from gradwire.codecs.base import build
        >>> x, out, whole = torch.tensor([-4.0, 1.0, 7.0]), torch.empty(3), Segments.whole(3)
        >>> codec = build(BitPlanes(bits=4, planes=2))
        >>> codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        >>> out.tolist()
        [-5.5, 0.0, 5.5]
    """

    def __init__(self, spec: BitPlanes) -> None:
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
        return self.encode_planes(x, segments, key, self.spec.planes, residual, gain)

    def encode_planes(
        self,
        x: Tensor,
        segments: Segments,
        key: Key,
        planes: int,
        residual: Tensor | None = None,
        gain: float = 0.0,
    ) -> Tensor:
        """Encode as `encode`, but stop after some planes and announce how many.

        The bytes are the beginning of the full payload, but for the header,
        and zeros behind it; `BitPlanes.prefix_bytes` says where it ends. The
        residual keeps what the missing planes would have told.

        Args:
            x: See `Codec.encode`.
            segments: See there.
            key: See there.
            planes: How many to send, from 2 to the spec's.
            residual: See there.
            gain: See there.

        Raises:
            SpecError: Another number of planes.
        """
        spec = self.spec
        short = BitPlanes(spec.bits, planes, spec.block_size)
        payload = new_payload(spec, segments, x)
        size = short.num_bytes(segments.numels)
        ops.planes_encode(
            x,
            segments.table,
            key.stream(),
            spec.bits,
            planes,
            spec.block_size,
            residual,
            gain,
            payload[:size],
        )
        payload[size:] = 0
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
        """See `Codec.decode`. Uses the planes that each payload announces.

        Raises:
            GradwireError: A payload announces planes that it cannot hold.
        """
        spec = self.spec
        check_payloads(spec, segments, payloads)
        ops.planes_decode(
            payloads,
            segments.table,
            spec.bits,
            spec.planes,
            spec.block_size,
            divisor,
            accumulate,
            out,
        )
