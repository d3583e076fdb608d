"""Checks of the ops' arguments: dtypes, shapes, stretches, sizes of payloads."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from gradwire.errors import PayloadError, SpecError
from gradwire.layout import num_blocks
from gradwire.spec import FLOAT_BYTES, MAX_BITS, Float, FloatFormat, Quantize, SharedScale, Sign

_shared = functools.cache(SharedScale)

Row = tuple[int, int, int, int, int]
"""One line of `segments`: offset, residual_offset, numel, start, stream."""

MIXED_FORMATS = (*FLOAT_BYTES, "sign", *(f"quantize{bits}" for bits in range(1, MAX_BITS + 1)))
"""What payloads of `mixed_decode` can be, by number."""


@functools.cache
def mixed_spec(form: str, block_size: int) -> Float | Sign | Quantize:
    """Return the spec of one of `MIXED_FORMATS`; scales of levels do not matter here.

    Raises:
        SpecError: No such format.

    Example:
        >>> mixed_spec("quantize4", 256).bits
        4
    """
    if form not in MIXED_FORMATS:
        raise SpecError("mixed_decode format", form, "one of: " + ", ".join(MIXED_FORMATS))
    if form == "sign":
        return Sign(block_size)
    if form.startswith("quantize"):
        return Quantize(int(form[len("quantize") :]), block_size)
    return Float(cast("FloatFormat", form), block_size)


def check_rows(
    segments: Tensor, x: Tensor, residual: Tensor | None = None, block_size: int = 1
) -> list[Row]:
    """Read `segments` and make sure that every stretch lies inside its tensors.

    Raises:
        SpecError: A stretch is empty or reaches beyond a tensor, or its start
            is no multiple of the block size.
    """
    rows: list[Row] = [tuple(row) for row in segments.tolist()]
    limit = None if residual is None else residual.numel()
    for row in rows:
        offset, residual_offset, numel, start, _ = row
        if numel < 1 or offset < 0 or offset + numel > x.numel():
            raise SpecError("segments", row, f"inside a bucket of {x.numel()} values")
        if limit is not None and (residual_offset < 0 or residual_offset + numel > limit):
            raise SpecError("segments", row, f"inside a residual of {limit} values")
        if start < 0 or start % block_size:
            raise SpecError("segments", row, f"begun at a multiple of {block_size} values")
    return rows


def check_size(what: str, payload: Tensor, expected_bytes: int) -> None:
    """Make sure that a payload, or each row of payloads, has the right size.

    Raises:
        PayloadError: It has not.
    """
    if payload.shape[-1] != expected_bytes:
        raise PayloadError(what, expected_bytes=expected_bytes, actual_bytes=int(payload.shape[-1]))


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, ndim: int = 1) -> None:
    """Check dtype, number of dimensions and layout.

    Raises:
        SpecError: It does not fit the op.
    """
    if tensor.dtype != dtype or tensor.ndim != ndim or not tensor.is_contiguous():
        found = f"{tensor.dtype} {list(tensor.shape)}"
        raise SpecError(name, found, f"{dtype}, {ndim}-D and contiguous")


def check_segments(segments: Tensor) -> None:
    """Check the table of stretches.

    Raises:
        SpecError: It does not fit the op.
    """
    check_tensor("segments", segments, torch.int64, 2)
    if segments.shape[1] != 5 or segments.device.type not in ("cpu", "meta"):  # noqa: PLR2004 - see Row
        found = f"{list(segments.shape)} on {segments.device}"
        raise SpecError("segments", found, "[count, 5] on cpu")


def check_encode(
    x: Tensor, segments: Tensor, residual: Tensor | None, gain: float, payload: Tensor
) -> None:
    """Check what all encoders take.

    Raises:
        SpecError: It does not fit the op.
    """
    check_tensor("x", x, torch.float32)
    check_segments(segments)
    check_tensor("payload", payload, torch.uint8)
    if residual is not None:
        check_tensor("residual", residual, torch.float32)
    if not 0 <= gain < math.inf:
        raise SpecError("gain", gain, "finite and at least 0")


def check_decode(payloads: Tensor, segments: Tensor, divisor: float, out: Tensor) -> None:
    """Check what all decoders take.

    Raises:
        SpecError: It does not fit the op.
    """
    check_tensor("payloads", payloads, torch.uint8, 2)
    check_segments(segments)
    check_tensor("out", out, torch.float32)
    if payloads.shape[0] < 1:
        raise SpecError("payloads", list(payloads.shape), "at least one row")
    if not 0 < divisor < math.inf:
        raise SpecError("divisor", divisor, "finite and above 0")


def check_capacity_table(segments: Tensor, capacities: Tensor) -> None:
    """Check that there is a capacity for each stretch.

    Raises:
        SpecError: It does not fit the op.
    """
    check_tensor("capacities", capacities, torch.int64)
    if capacities.shape[0] != segments.shape[0]:
        raise SpecError("capacities", list(capacities.shape), f"[{segments.shape[0]}]")


def check_capacities(rows: Sequence[Row], capacities: Iterable[int]) -> list[int]:
    """Make sure that no stretch is asked for more values than it has.

    Raises:
        SpecError: A capacity is negative or larger than its stretch.
    """
    limits = list(capacities)
    for row, capacity in zip(rows, limits, strict=True):
        if not 0 <= capacity <= row[2]:
            raise SpecError("capacities", capacity, f"between 0 and the stretch's {row[2]} values")
    return limits


def check_blocks(rows: Sequence[Row], block_size: int, peaks: Tensor) -> None:
    """Make sure that there is a peak for each block.

    Raises:
        SpecError: There are more or fewer.
    """
    expected = sum(num_blocks(row[2], block_size) for row in rows)
    if peaks.numel() != expected:
        raise SpecError("peaks", list(peaks.shape), f"[{expected}], one for each block")


def check_levels(rows: Sequence[Row], levels: Tensor) -> None:
    """Make sure that there is a level for each value.

    Raises:
        SpecError: There are more or fewer.
    """
    expected = sum(row[2] for row in rows)
    if levels.numel() != expected:
        raise SpecError("levels", list(levels.shape), f"[{expected}], one for each value")


def check_shared(x: Tensor, segments: Tensor, peaks: Tensor, bits: int, block_size: int) -> None:
    """Check what ops with shared scales take.

    Raises:
        SpecError: It does not fit the op.
    """
    check_tensor("x", x, torch.float32)
    check_segments(segments)
    check_tensor("peaks", peaks, torch.int32)
    _shared(bits, block_size=block_size)


def check_sums(name: str, sums: Tensor) -> None:
    """Check the dtype of sums of levels.

    Raises:
        SpecError: It does not fit the op.
    """
    if sums.dtype not in (torch.int8, torch.int16, torch.int32):
        raise SpecError(f"dtype of {name}", sums.dtype, "int8, int16 or int32")
    check_tensor(name, sums, sums.dtype)
