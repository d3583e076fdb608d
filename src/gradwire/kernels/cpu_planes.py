"""Native kernels of bit planes, and of payloads of different formats."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels import checks, reference_planes
from gradwire.kernels.cpu_library import decode, encode, library, memory, refuse
from gradwire.spec import BitPlanes


def planes_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    planes: int,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `reference_planes.planes_encode`."""
    function = library().gw_planes_encode
    details = (stream, bits, planes, block_size)
    if encode(function, x, segments, residual, gain, payload, *details):
        spec = BitPlanes(bits, planes, block_size)
        refuse("planes_encode", spec, payload, segments, x, residual)


def planes_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    planes: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference_planes.planes_decode`."""
    function = library().gw_planes_decode
    details = (bits, planes, block_size)
    status = decode(function, payloads, segments, divisor, accumulate, out, *details)
    if status > 0:
        reference_planes.check_planes(ctypes.c_int32(status - 1).value, planes)
    if status:
        spec = BitPlanes(bits, planes, block_size)
        refuse("planes_decode", spec, payloads, segments, out)


def mixed_decode(
    payloads: Sequence[Tensor],
    segments: Tensor,
    formats: Sequence[str],
    block_sizes: Sequence[int],
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference_planes.mixed_decode`."""
    numbers = (
        [payload.data_ptr() for payload in payloads],
        [payload.numel() for payload in payloads],
        [checks.MIXED_FORMATS.index(form) for form in formats],
        list(block_sizes),
        [0] * (2 * len(payloads)),
    )
    tables = [torch.tensor(row, dtype=torch.int64) for row in numbers]
    if library().gw_mixed_decode(
        *(table.data_ptr() for table in tables),
        len(payloads),
        segments.data_ptr(),
        segments.shape[0],
        divisor,
        accumulate,
        *memory(out),
    ):
        for payload, form, block_size in zip(payloads, formats, block_sizes, strict=True):
            spec = checks.mixed_spec(form, block_size)
            rows = checks.check_rows(segments, out, None, block_size)
            checks.check_size("mixed_decode", payload, spec.num_bytes([row[2] for row in rows]))
        raise AssertionError("mixed_decode")
