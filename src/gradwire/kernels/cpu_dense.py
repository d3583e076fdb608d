"""Native kernels of levels, signs, floats and the transform."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from gradwire.kernels import reference_rotated
from gradwire.kernels.cpu_library import decode, encode, library, refuse
from gradwire.kernels.forms import form_of
from gradwire.spec import FLOAT_BYTES, Float, FloatFormat, Quantize, Sign

_FORMATS = {name: number for number, name in enumerate(FLOAT_BYTES)}


def _last(function: Callable[..., int], last: int, *arguments: object) -> int:
    return function(*arguments, last)


def quantize_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    nearest: bool,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    l2: bool = False,
) -> None:
    """See `reference.quantize_encode`."""
    function = partial(_last, library().gw_quantize_encode, l2)
    details = (stream, bits, block_size, nearest)
    if encode(function, x, segments, residual, gain, payload, *details):
        spec = Quantize(bits, block_size)
        refuse("quantize_encode", spec, payload, segments, x, residual)


def quantize_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference.quantize_decode`."""
    function = library().gw_quantize_decode
    if decode(function, payloads, segments, divisor, accumulate, out, bits, block_size):
        refuse("quantize_decode", Quantize(bits, block_size), payloads, segments, out)


def sign_encode(
    x: Tensor,
    segments: Tensor,
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `reference.sign_encode`."""
    function = library().gw_sign_encode
    if encode(function, x, segments, residual, gain, payload, block_size):
        refuse("sign_encode", Sign(block_size), payload, segments, x, residual)


def sign_decode(
    payloads: Tensor,
    segments: Tensor,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference.sign_decode`."""
    function = library().gw_sign_decode
    if decode(function, payloads, segments, divisor, accumulate, out, block_size):
        refuse("sign_decode", Sign(block_size), payloads, segments, out)


def float_encode(
    x: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `reference_float.float_encode`."""
    function = library().gw_float_encode
    details = (_FORMATS[format], block_size)
    if encode(function, x, segments, residual, gain, payload, *details):
        refuse("float_encode", Float(format, block_size), payload, segments, x, residual)


def float_decode(
    payloads: Tensor,
    segments: Tensor,
    format: FloatFormat,  # noqa: A002 - the spec's word
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference_float.float_decode`."""
    function = library().gw_float_decode
    details = (_FORMATS[format], block_size)
    if decode(function, payloads, segments, divisor, accumulate, out, *details):
        refuse("float_decode", Float(format, block_size), payloads, segments, out)


def hadamard(x: Tensor, block_size: int, out: Tensor) -> None:
    """See `reference.hadamard`: butterflies, or two products for each block."""
    blocks = x.numel() // block_size
    if form_of("hadamard") == "matrix":
        left, right = (hadamard_base(size) for size in _sides(block_size))
        grid = x.view(blocks, left.shape[0], right.shape[0])
        scaled = torch.matmul(torch.matmul(left, grid), right) * block_size**-0.5
        out.copy_(scaled.view(-1))
        return
    library().gw_hadamard(x.data_ptr(), out.data_ptr(), blocks, block_size, block_size**-0.5)


def _sides(block_size: int) -> tuple[int, int]:
    power = block_size.bit_length() - 1
    return 1 << power // 2, 1 << (power - power // 2)


@cache
def hadamard_base(size: int) -> Tensor:
    """Return the matrix of ones and minus ones, `[size, size]`, not normalised.

    Example:
        >>> hadamard_base(2).tolist()
        [[1.0, 1.0], [1.0, -1.0]]
    """
    base = torch.ones(1, 1)
    while base.shape[0] < size:
        base = torch.cat([torch.cat([base, base], 1), torch.cat([base, -base], 1)])
    return base


_ROTATION = reference_rotated.Rotation(quantize_encode, quantize_decode, hadamard)
rotated_encode, rotated_decode = _ROTATION.rotated_encode, _ROTATION.rotated_decode
