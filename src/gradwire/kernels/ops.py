"""Every kernel once: its schema, the checks of its arguments, its typed entry.

The ops live in the `torch.library` namespace `gradwire`. A back end adds
kernels with `implement`; `reference.py` covers every device, `cpu.py` puts the
native library over it. All ops work on stretches of a flat bucket, given by
`segments`: an int64 tensor `[count, 5]` on the CPU with one row
`(offset, residual_offset, numel, start, stream)` for each stretch. What these
numbers, `residual`, `gain`, `divisor` and `accumulate` mean is said in
`gradwire.codecs.base`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gradwire.errors import PayloadError, SpecError
from gradwire.spec import FLOAT_BYTES, MAX_BITS, BitPlanes, Float, FloatFormat, Quantize, Sign

Row = tuple[int, int, int, int, int]
"""One line of `segments`: offset, residual_offset, numel, start, stream."""

MAX_HADAMARD = 4096
"""Longest block of `hadamard`."""

_quantize = functools.cache(Quantize)
_sign = functools.cache(Sign)
_float = functools.cache(Float)
_planes = functools.cache(BitPlanes)

MIXED_FORMATS = (*FLOAT_BYTES, "sign", *(f"quantize{bits}" for bits in range(1, MAX_BITS + 1)))
"""What payloads of `mixed_decode` can be, by number."""

_LIBRARY = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]
_CHECKS: dict[str, Callable[..., Tensor | None]] = {}


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


def _define(
    schema: str,
) -> Callable[[Callable[..., Tensor | None]], Callable[..., Tensor | None]]:
    """Return a decorator that makes a check the definition of an op."""

    def define(check: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"gradwire::{name}", check, lib=_LIBRARY)
        _CHECKS[name] = check
        return check

    return define


def names() -> tuple[str, ...]:
    """Return the names of all ops.

    Example:
        >>> "hadamard" in names()
        True
    """
    return tuple(_CHECKS)


def implement(name: str, dispatch_key: str, kernel: Callable[..., Tensor | None]) -> None:
    """Register a kernel; the op's checks run before it.

    Args:
        name: Name of the op, without namespace.
        dispatch_key: `"CPU"`, `"CUDA"`, or `"CompositeExplicitAutograd"` for
            every device that has no kernel of its own.
        kernel: Takes the op's arguments by position.
    """
    check = _CHECKS[name]

    def run(*args: Any) -> Tensor | None:  # noqa: ANN401 - the op's own arguments
        check(*args)
        return kernel(*args)

    _LIBRARY.impl(name, run, dispatch_key)  # type: ignore[no-untyped-call]


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


def _check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, ndim: int = 1) -> None:
    if tensor.dtype != dtype or tensor.ndim != ndim or not tensor.is_contiguous():
        found = f"{tensor.dtype} {list(tensor.shape)}"
        raise SpecError(name, found, f"{dtype}, {ndim}-D and contiguous")


def _check_segments(segments: Tensor) -> None:
    _check_tensor("segments", segments, torch.int64, 2)
    if segments.shape[1] != 5 or segments.device.type not in ("cpu", "meta"):  # noqa: PLR2004 - see Row
        found = f"{list(segments.shape)} on {segments.device}"
        raise SpecError("segments", found, "[count, 5] on cpu")


def _check_encode(
    x: Tensor, segments: Tensor, residual: Tensor | None, gain: float, payload: Tensor
) -> None:
    _check_tensor("x", x, torch.float32)
    _check_segments(segments)
    _check_tensor("payload", payload, torch.uint8)
    if residual is not None:
        _check_tensor("residual", residual, torch.float32)
    if not 0 <= gain < math.inf:
        raise SpecError("gain", gain, "finite and at least 0")


def _check_decode(payloads: Tensor, segments: Tensor, divisor: float, out: Tensor) -> None:
    _check_tensor("payloads", payloads, torch.uint8, 2)
    _check_segments(segments)
    _check_tensor("out", out, torch.float32)
    if payloads.shape[0] < 1:
        raise SpecError("payloads", list(payloads.shape), "at least one row")
    if not 0 < divisor < math.inf:
        raise SpecError("divisor", divisor, "finite and above 0")


def _check_capacities(segments: Tensor, capacities: Tensor) -> None:
    _check_tensor("capacities", capacities, torch.int64)
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


@_define(
    "quantize_encode(Tensor x, Tensor segments, int stream, int bits, int block_size, "
    "bool nearest, Tensor(a!)? residual, float gain, Tensor(b!) payload, bool l2=False) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    _stream: int,
    bits: int,
    block_size: int,
    _nearest: bool,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    l2: bool = False,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _quantize(bits, block_size, scale="l2" if l2 else "max")


@_define(
    "quantize_decode(Tensor payloads, Tensor segments, int bits, int block_size, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    _check_decode(payloads, segments, divisor, out)
    _quantize(bits, block_size)


@_define(
    "sign_encode(Tensor x, Tensor segments, int block_size, "
    "Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _sign(block_size)


@_define(
    "sign_decode(Tensor payloads, Tensor segments, int block_size, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Tensor,
    segments: Tensor,
    block_size: int,
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    _check_decode(payloads, segments, divisor, out)
    _sign(block_size)


@_define(
    "float_encode(Tensor x, Tensor segments, str format, int block_size, "
    "Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _float(format, block_size)


@_define(
    "float_decode(Tensor payloads, Tensor segments, str format, int block_size, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    _check_decode(payloads, segments, divisor, out)
    _float(format, block_size)


@_define(
    "planes_encode(Tensor x, Tensor segments, int stream, int bits, int planes, int block_size, "
    "Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    _stream: int,
    bits: int,
    planes: int,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _planes(bits, planes, block_size)


@_define(
    "planes_decode(Tensor payloads, Tensor segments, int bits, int planes, int block_size, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    planes: int,
    block_size: int,
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    _check_decode(payloads, segments, divisor, out)
    _planes(bits, planes, block_size)


@_define(
    "mixed_decode(Tensor[] payloads, Tensor segments, str[] formats, int[] block_sizes, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Sequence[Tensor],
    segments: Tensor,
    formats: Sequence[str],
    block_sizes: Sequence[int],
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    if not len(payloads) == len(formats) == len(block_sizes):
        found = f"{len(payloads)} payloads, {len(formats)} formats, {len(block_sizes)} block sizes"
        raise SpecError("mixed_decode", found, "one format and one block size for each payload")
    for payload, form, block_size in zip(payloads, formats, block_sizes, strict=True):
        _check_decode(payload[None], segments, divisor, out)
        mixed_spec(form, block_size)


@_define("sparse_threshold(Tensor x, Tensor segments, Tensor? residual, float density) -> Tensor")
def _(x: Tensor, segments: Tensor, residual: Tensor | None, density: float) -> Tensor:
    _check_tensor("x", x, torch.float32)
    _check_segments(segments)
    if residual is not None:
        _check_tensor("residual", residual, torch.float32)
    if not 0 < density <= 1:
        raise SpecError("density", density, "above 0 and at most 1")
    return x.new_empty(segments.shape[0])


@_define(
    "sparse_encode(Tensor x, Tensor segments, Tensor thresholds, Tensor capacities, "
    "Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    thresholds: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _check_capacities(segments, capacities)
    _check_tensor("thresholds", thresholds, torch.float32)
    if thresholds.shape[0] != segments.shape[0]:
        raise SpecError("thresholds", list(thresholds.shape), f"[{segments.shape[0]}]")


@_define(
    "sparse_topk_encode(Tensor x, Tensor segments, Tensor capacities, "
    "Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    _check_encode(x, segments, residual, gain, payload)
    _check_capacities(segments, capacities)


@_define(
    "sparse_decode(Tensor payloads, Tensor segments, Tensor capacities, "
    "float divisor, bool accumulate, Tensor(a!) out) -> ()"
)
def _(
    payloads: Tensor,
    segments: Tensor,
    capacities: Tensor,
    divisor: float,
    _accumulate: bool,
    out: Tensor,
) -> None:
    _check_decode(payloads, segments, divisor, out)
    _check_capacities(segments, capacities)


@_define("hadamard(Tensor x, int block_size, Tensor(a!) out) -> ()")
def _(x: Tensor, block_size: int, out: Tensor) -> None:
    _check_tensor("x", x, torch.float32)
    _check_tensor("out", out, torch.float32)
    if not 1 <= block_size <= MAX_HADAMARD or block_size & (block_size - 1):
        raise SpecError("block_size", block_size, f"a power of two up to {MAX_HADAMARD}")
    if x.shape[0] % block_size:
        raise SpecError("x", list(x.shape), f"a multiple of {block_size} values long")
    if out.shape != x.shape:
        raise SpecError("out", list(out.shape), f"{list(x.shape)}, as long as x")


planes_encode = torch.ops.gradwire.planes_encode.default
planes_decode = torch.ops.gradwire.planes_decode.default
mixed_decode = torch.ops.gradwire.mixed_decode.default
quantize_encode = torch.ops.gradwire.quantize_encode.default
quantize_decode = torch.ops.gradwire.quantize_decode.default
sign_encode = torch.ops.gradwire.sign_encode.default
sign_decode = torch.ops.gradwire.sign_decode.default
float_encode = torch.ops.gradwire.float_encode.default
float_decode = torch.ops.gradwire.float_decode.default
sparse_threshold = torch.ops.gradwire.sparse_threshold.default
sparse_encode = torch.ops.gradwire.sparse_encode.default
sparse_topk_encode = torch.ops.gradwire.sparse_topk_encode.default
sparse_decode = torch.ops.gradwire.sparse_decode.default
hadamard = torch.ops.gradwire.hadamard.default
