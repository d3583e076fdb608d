"""Payloads of different codecs, decoded into one mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.codecs.base import Codec, Segments, check_payloads
from gradwire.kernels import ops
from gradwire.spec import CodecSpec, Float, Quantize, Sign


def decode_mean(
    codecs: Sequence[Codec], payloads: Sequence[Tensor], segments: Segments, out: Tensor
) -> None:
    """Write the mean of payloads, each of its own codec, into stretches of `out`.

    Levels, signs and floats take one fused pass, other codecs one pass each.
    Either way the sum is formed in float32 in the order given, so that all
    ranks get the same bits.

    Args:
        codecs: One for each payload.
        payloads: uint8 `[num_bytes]` of the codec's spec.
        segments: Offsets into `out`.
        out: float32, 1-D, contiguous.

    Raises:
        PayloadError: A payload has another size than its spec says.

    Example:
        >>> import torch
        >>> from gradwire.codecs.base import build
        >>> from gradwire.key import Key
        >>> whole, out = Segments.whole(2), torch.empty(2)
        >>> codecs = [build(Quantize(4)), build(Float("bfloat16"))]
        >>> values = [torch.tensor([7.0, 1.0]), torch.tensor([1.0, 3.0])]
        >>> sent = [c.encode(v, whole, Key(0, 0, 0)) for c, v in zip(codecs, values)]
        >>> decode_mean(codecs, sent, whole, out)
        >>> out.tolist()
        [4.0, 2.0]
    """
    if not segments.items:
        return
    for codec, payload in zip(codecs, payloads, strict=True):
        check_payloads(codec.spec, segments, payload)
    formats = [_format(codec.spec) for codec in codecs]
    known = [form for form in formats if form is not None]
    if len(known) == len(formats):
        sizes = [codec.spec.block_size for codec in codecs]
        count = float(len(codecs))
        ops.mixed_decode(list(payloads), segments.table, known, sizes, count, False, out)  # noqa: FBT003 - ops take arguments by position
        return
    codecs[0].decode(payloads[0][None], segments, out)
    for codec, payload in zip(codecs[1:], payloads[1:], strict=True):
        codec.decode(payload[None], segments, out, accumulate=True)
    for segment in segments.items:
        out.narrow(0, segment.offset, segment.numel).div_(len(codecs))


def _format(spec: CodecSpec) -> str | None:
    match spec:
        case Quantize() if spec.rotation == "none":
            return f"quantize{spec.bits}"
        case Float():
            return spec.format
        case Sign():
            return "sign"
    return None
