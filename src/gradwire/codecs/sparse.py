"""Some of the values: the largest with their places, or a drawn set without."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codecs.base import CODECS, Segment, Segments, check_payloads, new_payload
from gradwire.kernels import ops
from gradwire.key import Key, mix
from gradwire.layout import ALIGNMENT
from gradwire.spec import Sparse


@CODECS.register("sparse")
class SparseCodec:
    """Sends a few values of each stretch as they are; the others count as 0.

    Biased, so it needs feedback. `random` draws its places from the key
    without the rank, so that all ranks send the same ones; the payload names
    the stream it used and needs no list of places.

    Args:
        spec: The parameters.

    Example:
        >>> from gradwire.codecs.base import build
        >>> x, out, whole = torch.tensor([1.0, -3.0, 2.0]), torch.empty(3), Segments.whole(3)
        >>> codec = build(Sparse(density=0.5))
        >>> codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        >>> out.tolist()
        [0.0, -3.0, 2.0]
    """

    def __init__(self, spec: Sparse) -> None:
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
        payload = new_payload(self.spec, segments, x)
        table, capacities = segments.table, self._capacities(segments)
        match self.spec.selection:
            case "exact":
                ops.sparse_topk_encode(x, table, capacities, residual, gain, payload)
            case "threshold":
                owed = residual if gain == 0 else None
                thresholds = ops.sparse_threshold(x, table, owed, self.spec.density)
                ops.sparse_encode(x, table, thresholds, capacities, residual, gain, payload)
            case "random":
                stream = key._replace(rank=None).stream()
                self._encode_random(x, segments, stream, residual, gain, payload)
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
        check_payloads(self.spec, segments, payloads)
        if self.spec.selection == "random":
            self._decode_random(payloads, segments, out, divisor, accumulate=accumulate)
        else:
            capacities = self._capacities(segments)
            ops.sparse_decode(payloads, segments.table, capacities, divisor, accumulate, out)

    def _capacities(self, segments: Segments) -> Tensor:
        return torch.tensor([self.spec.capacity(n) for n in segments.numels], dtype=torch.int64)

    def _encode_random(
        self,
        x: Tensor,
        segments: Segments,
        stream: int,
        residual: Tensor | None,
        gain: float,
        payload: Tensor,
    ) -> None:
        payload.zero_()
        _stream_of(payload).fill_(stream)
        for segment, values in self._sections(payload, segments):
            v = x.narrow(0, segment.offset, segment.numel)
            waiting = None
            if residual is not None:
                waiting = residual.narrow(0, segment.residual_offset, segment.numel)
            if waiting is not None and gain == 0:
                v = v + waiting
            places = _places(segment, values.numel(), stream, x.device)
            finite = v.isfinite().all()
            values.copy_(torch.where(finite, v[places], torch.nan))
            if waiting is not None:
                lost = v.index_fill(0, places, 0.0)
                new = lost if gain == 0 else waiting + gain * lost
                waiting.copy_(torch.where(finite, new, waiting))

    def _decode_random(
        self,
        payloads: Tensor,
        segments: Segments,
        out: Tensor,
        divisor: float,
        *,
        accumulate: bool,
    ) -> None:
        if not segments.items:
            return
        rows = [self._sections(payload, segments) for payload in payloads]
        streams = [int(_stream_of(payload)) for payload in payloads]
        for row in zip(*rows, strict=True):
            segment = row[0][0]
            total = out.new_zeros(segment.numel)
            for stream, (_, values) in zip(streams, row, strict=True):
                total[_places(segment, values.numel(), stream, out.device)] += values
                total += 0 * values.abs().amax()  # NaN, and so everywhere, where one came
            mean = total / divisor
            target = out.narrow(0, segment.offset, segment.numel)
            target.copy_(target + mean if accumulate else mean)

    def _sections(self, payload: Tensor, segments: Segments) -> Iterator[tuple[Segment, Tensor]]:
        """Yield each stretch with the part of a payload that holds its values."""
        first = ALIGNMENT
        for segment in segments.items:
            size = 4 * self.spec.kept(segment.numel)
            yield segment, payload.narrow(0, first, size).view(torch.float32)
            first += size


def _stream_of(payload: Tensor) -> Tensor:
    """View the number of the stream, at the beginning of a payload that is not empty."""
    return payload[:8].view(torch.int64)


def _places(segment: Segment, count: int, stream: int, device: torch.device) -> Tensor:
    """Return `count` places around the circle of a stretch, evenly spaced.

    The start is uniform, so every place is chosen with the same probability.
    """
    numel = segment.numel
    start = mix(stream + segment.stream + segment.start) % numel
    return (torch.arange(count, device=device) * numel // count + start) % numel
