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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import SpecError
from gradwire.kernels.checks import (
    check_capacity_table,
    check_decode,
    check_encode,
    check_segments,
    check_shared,
    check_sums,
    check_tensor,
    mixed_spec,
)
from gradwire.spec import MAX_BITS, MAX_HADAMARD, BitPlanes, Float, FloatFormat, Quantize, Sign

MAX_THRESHOLDS = 16
"""Most thresholds of one call of `statistics`."""

_quantize = functools.cache(Quantize)
_sign = functools.cache(Sign)
_float = functools.cache(Float)
_planes = functools.cache(BitPlanes)
_rotated = functools.cache(functools.partial(Quantize, rotation="hadamard"))

_LIBRARY = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]
_CHECKS: dict[str, Callable[..., Tensor | None]] = {}


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
    check_encode(x, segments, residual, gain, payload)
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
    check_decode(payloads, segments, divisor, out)
    _quantize(bits, block_size)


@_define(
    "rotated_encode(Tensor x, Tensor segments, int stream, int bits, int block_size, "
    "bool nearest, Tensor(a!)? residual, float gain, Tensor(b!) payload) -> ()"
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
) -> None:
    check_encode(x, segments, residual, gain, payload)
    _rotated(bits, block_size)


@_define(
    "rotated_decode(Tensor payloads, Tensor segments, int bits, int block_size, "
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
    check_decode(payloads, segments, divisor, out)
    _rotated(bits, block_size)


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
    check_encode(x, segments, residual, gain, payload)
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
    check_decode(payloads, segments, divisor, out)
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
    check_encode(x, segments, residual, gain, payload)
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
    check_decode(payloads, segments, divisor, out)
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
    check_encode(x, segments, residual, gain, payload)
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
    check_decode(payloads, segments, divisor, out)
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
        check_decode(payload[None], segments, divisor, out)
        mixed_spec(form, block_size)


@_define("sparse_threshold(Tensor x, Tensor segments, Tensor? residual, float density) -> Tensor")
def _(x: Tensor, segments: Tensor, residual: Tensor | None, density: float) -> Tensor:
    check_tensor("x", x, torch.float32)
    check_segments(segments)
    if residual is not None:
        check_tensor("residual", residual, torch.float32)
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
    check_encode(x, segments, residual, gain, payload)
    check_capacity_table(segments, capacities)
    check_tensor("thresholds", thresholds, torch.float32)
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
    check_encode(x, segments, residual, gain, payload)
    check_capacity_table(segments, capacities)


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
    check_decode(payloads, segments, divisor, out)
    check_capacity_table(segments, capacities)


@_define(
    "shared_peaks(Tensor x, Tensor segments, Tensor? residual, int block_size, "
    "Tensor(a!) peaks) -> ()"
)
def _(x: Tensor, segments: Tensor, residual: Tensor | None, block_size: int, peaks: Tensor) -> None:
    check_shared(x, segments, peaks, MAX_BITS, block_size)
    if residual is not None:
        check_tensor("residual", residual, torch.float32)


@_define(
    "shared_encode(Tensor x, Tensor segments, Tensor peaks, int stream, int bits, "
    "int block_size, Tensor(a!)? residual, Tensor(b!) levels) -> ()"
)
def _(
    x: Tensor,
    segments: Tensor,
    peaks: Tensor,
    _stream: int,
    bits: int,
    block_size: int,
    residual: Tensor | None,
    levels: Tensor,
) -> None:
    check_shared(x, segments, peaks, bits, block_size)
    check_tensor("levels", levels, torch.int8)
    if residual is not None:
        check_tensor("residual", residual, torch.float32)


@_define("shared_sum(Tensor levels, bool accumulate, Tensor(a!) total) -> ()")
def _(levels: Tensor, _accumulate: bool, total: Tensor) -> None:
    check_tensor("levels", levels, torch.int8, 2)
    check_sums("total", total)
    if levels.shape[0] < 1 or levels.shape[1] != total.shape[0]:
        raise SpecError("levels", list(levels.shape), f"rows of {total.shape[0]}, at least one")


@_define(
    "shared_decode(Tensor sums, Tensor segments, Tensor peaks, int bits, int block_size, "
    "float divisor, Tensor(a!) out) -> ()"
)
def _(
    sums: Tensor,
    segments: Tensor,
    peaks: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    out: Tensor,
) -> None:
    check_shared(out, segments, peaks, bits, block_size)
    check_sums("sums", sums)
    if not 0 < divisor < math.inf:
        raise SpecError("divisor", divisor, "finite and above 0")


@_define("hadamard(Tensor x, int block_size, Tensor(a!) out) -> ()")
def _(x: Tensor, block_size: int, out: Tensor) -> None:
    check_tensor("x", x, torch.float32)
    check_tensor("out", out, torch.float32)
    if not 1 <= block_size <= MAX_HADAMARD or block_size & (block_size - 1):
        raise SpecError("block_size", block_size, f"a power of two up to {MAX_HADAMARD}")
    if x.shape[0] % block_size:
        raise SpecError("x", list(x.shape), f"a multiple of {block_size} values long")
    if out.shape != x.shape:
        raise SpecError("out", list(out.shape), f"{list(x.shape)}, as long as x")


@_define("statistics(Tensor x, float[] thresholds) -> Tensor")
def _(x: Tensor, thresholds: Sequence[float]) -> Tensor:
    check_tensor("x", x, torch.float32)
    if len(thresholds) > MAX_THRESHOLDS:
        raise SpecError("thresholds", len(thresholds), f"at most {MAX_THRESHOLDS}")
    return x.new_empty(4 + len(thresholds), dtype=torch.float64)


@_define("thin_product(Tensor m, Tensor q) -> Tensor")
def _(m: Tensor, q: Tensor) -> Tensor:
    _check_product(m, q, 1)
    return m.new_empty(m.shape[0], q.shape[1])


@_define("transposed_product(Tensor m, Tensor p) -> Tensor")
def _(m: Tensor, p: Tensor) -> Tensor:
    _check_product(m, p, 0)
    return m.new_empty(m.shape[1], p.shape[1])


@_define("orthonormal(Tensor p) -> Tensor")
def _(p: Tensor) -> Tensor:
    check_tensor("p", p, torch.float32, 2)
    return torch.empty_like(p)


def _check_product(m: Tensor, thin: Tensor, inner: int) -> None:
    check_tensor("m", m, torch.float32, 2)
    check_tensor("thin matrix", thin, torch.float32, 2)
    if thin.shape[0] != m.shape[inner]:
        raise SpecError("thin matrix", list(thin.shape), f"of {m.shape[inner]} rows")


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
shared_peaks = torch.ops.gradwire.shared_peaks.default
shared_encode = torch.ops.gradwire.shared_encode.default
shared_sum = torch.ops.gradwire.shared_sum.default
shared_decode = torch.ops.gradwire.shared_decode.default
hadamard = torch.ops.gradwire.hadamard.default
rotated_encode = torch.ops.gradwire.rotated_encode.default
rotated_decode = torch.ops.gradwire.rotated_decode.default
statistics = torch.ops.gradwire.statistics.default
thin_product = torch.ops.gradwire.thin_product.default
transposed_product = torch.ops.gradwire.transposed_product.default
orthonormal = torch.ops.gradwire.orthonormal.default
