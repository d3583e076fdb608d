"""The Codec protocol, and which stretches of a bucket it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradwire.errors import PayloadError, SpecError
from gradwire.key import Key
from gradwire.registry import Registry
from gradwire.spec import CodecSpec


class Segment(NamedTuple):
    """One stretch of a parameter: where its values lie, and whose noise it gets.

    Attributes:
        offset: First value in the bucket.
        residual_offset: First value in the residual.
        numel: How many values.
        start: First value counted from the parameter's beginning; a multiple
            of the block size.
        stream: Hash of the parameter's name.
    """

    offset: int
    residual_offset: int
    numel: int
    start: int
    stream: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Stretches that are encoded together into one payload, in order.

    Attributes:
        items: The stretches; none is empty.
        table: The same numbers as an int64 tensor `[len(items), 5]`, for kernels.

    Example:
        >>> Segments.whole(1000).numels
        (1000,)
    """

    items: tuple[Segment, ...]
    table: Tensor = field(compare=False)

    @classmethod
    def of(cls, items: Sequence[Segment]) -> Segments:
        """Drop empty stretches and build the table."""
        kept = tuple(s for s in items if s.numel)
        return cls(kept, torch.tensor(kept, dtype=torch.int64).view(-1, 5))

    @classmethod
    def whole(cls, numel: int, stream: int = 0) -> Segments:
        """Return the one stretch that is a tensor by itself."""
        return cls.of([Segment(0, 0, numel, 0, stream)])

    @property
    def numels(self) -> tuple[int, ...]:
        """Values of each stretch."""
        return tuple(s.numel for s in self.items)

    @property
    def numel(self) -> int:
        """Values of all stretches."""
        return sum(self.numels)


class Codec(Protocol):
    """Turns stretches of floats into bytes and back; pure, knows no ranks.

    Bytes depend on values, spec, key and segments only: not on the back end,
    nor on which other stretches are encoded in the same call.
    """

    @property
    def spec(self) -> CodecSpec:
        """The parameters; `spec.num_bytes(segments.numels)` is the payload's size."""

    def encode(
        self,
        x: Tensor,
        segments: Segments,
        key: Key,
        residual: Tensor | None = None,
        gain: float = 0.0,
    ) -> Tensor:
        """Encode stretches of `x`, and keep what was lost, in one pass.

        With `gain == 0` and a residual, what is encoded is the owed value
        `v = x + residual`, and `residual` becomes `v - decoded`. With
        `gain > 0` it is `v = x`, and `residual` grows by
        `gain * (v - decoded)`: how the owner of a shard answers for the
        second rounding.

        A block with a non-finite value decodes to a non-finite value
        everywhere in the block, and leaves its residual as it was.

        Args:
            x: Values, float32, 1-D, contiguous; not changed.
            segments: Which stretches; offsets into `x` and `residual`.
            key: Stream of the noise.
            residual: float32, 1-D, contiguous, or None for no feedback.
            gain: See above.

        Returns:
            The payload, uint8 `[spec.num_bytes(segments.numels)]`.
        """

    def decode(
        self,
        payloads: Tensor,
        segments: Segments,
        out: Tensor,
        divisor: float = 1.0,
        *,
        accumulate: bool = False,
    ) -> None:
        """Write `sum of decoded payloads / divisor` into stretches of `out`.

        The sum is formed in float32 in row order, so all ranks get the same
        bits. With `accumulate` it is added to `out` instead.

        Args:
            payloads: uint8 `[count, num_bytes]`, contiguous.
            segments: Offsets into `out`.
            out: float32, 1-D, contiguous.
            divisor: Number of ranks, for a mean.
            accumulate: Add to `out`.

        Raises:
            PayloadError: `payloads` has another width than the spec says.
        """


def new_payload(spec: CodecSpec, segments: Segments, x: Tensor) -> Tensor:
    """Allocate the payload of stretches of `x`, where `x` lives.

    Example:
        >>> from gradwire.spec import Quantize
        >>> new_payload(Quantize(4), Segments.whole(1024), torch.zeros(1024)).shape
        torch.Size([528])
    """
    return x.new_empty(spec.num_bytes(segments.numels), dtype=torch.uint8)


def check_payloads(spec: CodecSpec, segments: Segments, payloads: Tensor) -> None:
    """Make sure that each row of `payloads` has the size the spec says.

    Raises:
        PayloadError: It has not.
    """
    expected, actual = spec.num_bytes(segments.numels), payloads.shape[-1]
    if actual != expected:
        raise PayloadError(type(spec).__name__, expected_bytes=expected, actual_bytes=actual)


CODECS: Registry[type[Codec]] = Registry("codecs")


def build(spec: CodecSpec) -> Codec:
    """Build the codec of a spec, and check each payload it makes.

    Anybody can register a codec, and ranks count on the sizes its spec promises.

    Raises:
        UnknownIdError: No codec has this id.
    """
    return _Checked(CODECS[spec.id](spec))  # type: ignore[call-arg]


class _Checked:
    """A codec whose payloads have the size that the spec promised the other ranks."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.spec = codec.spec
        self.decode = codec.decode

    def encode(
        self,
        x: Tensor,
        segments: Segments,
        key: Key,
        residual: Tensor | None = None,
        gain: float = 0.0,
    ) -> Tensor:
        """See `Codec.encode`.

        Raises:
            SpecError: The codec's result is no vector of bytes.
            PayloadError: It has another size than the spec says.
        """
        payload = self._codec.encode(x, segments, key, residual, gain)
        expected_bytes = self.spec.num_bytes(segments.numels)
        name = f"{type(self._codec).__name__}.encode"
        is_tensor = isinstance(payload, Tensor)
        if not is_tensor or payload.dtype != torch.uint8 or payload.dim() != 1:
            found = (
                f"{payload.dtype} {list(payload.shape)}" if is_tensor else type(payload).__name__
            )
            raise SpecError(name, found, f"torch.uint8 [{expected_bytes}], as {self.spec} promises")
        if payload.numel() != expected_bytes:
            raise PayloadError(
                f"{name} of {self.spec}",
                expected_bytes=expected_bytes,
                actual_bytes=payload.numel(),
            )
        return payload
