"""The native CPU kernels: a C++ library called through ctypes.

`ctypes.CDLL` drops the interpreter lock around every call. The library keeps
no state, starts no threads and allocates nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks, reference_planes, reference_rotated, reference_sparse
from gradwire.kernels.forms import form_of
from gradwire.spec import FLOAT_BYTES, BitPlanes, Float, FloatFormat, Quantize, Sign

ISA_LEVELS = ("baseline", "x86-64-v3", "x86-64-v4")
"""Instruction sets the library is compiled for, by number."""

PATH = Path(__file__).parent / "native" / "libgradwire.so"
"""Where the build puts the library."""

_FORMATS = {name: number for number, name in enumerate(FLOAT_BYTES)}
_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_LONG = ctypes.c_int64
_FLOAT = ctypes.c_float
_ENCODE_HEAD = (_POINTER, _LONG, _POINTER, _LONG)
_ENCODE_TAIL = (_POINTER, _LONG, _FLOAT, _POINTER, _LONG)
_DECODE_HEAD = (_POINTER, _LONG, _LONG, _POINTER, _LONG)
_DECODE_TAIL = (_FLOAT, _INT, _POINTER, _LONG)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "gw_quantize_encode": (*_ENCODE_HEAD, ctypes.c_uint64, _INT, _INT, _INT, *_ENCODE_TAIL, _INT),
    "gw_quantize_decode": (*_DECODE_HEAD, _INT, _INT, *_DECODE_TAIL),
    "gw_planes_encode": (*_ENCODE_HEAD, ctypes.c_uint64, _INT, _INT, _INT, *_ENCODE_TAIL),
    "gw_planes_decode": (*_DECODE_HEAD, _INT, _INT, _INT, *_DECODE_TAIL),
    "gw_mixed_decode": (*(_POINTER,) * 5, _LONG, _POINTER, _LONG, *_DECODE_TAIL),
    "gw_sign_encode": (*_ENCODE_HEAD, _INT, *_ENCODE_TAIL),
    "gw_sign_decode": (*_DECODE_HEAD, _INT, *_DECODE_TAIL),
    "gw_float_encode": (*_ENCODE_HEAD, _INT, _INT, *_ENCODE_TAIL),
    "gw_float_decode": (*_DECODE_HEAD, _INT, _INT, *_DECODE_TAIL),
    "gw_sparse_threshold": (*_ENCODE_HEAD, _POINTER, _LONG, ctypes.c_double, _POINTER),
    "gw_sparse_encode": (*_ENCODE_HEAD, _POINTER, _POINTER, *_ENCODE_TAIL),
    "gw_sparse_decode": (*_DECODE_HEAD, _POINTER, *_DECODE_TAIL),
    "gw_shared_peaks": (*_ENCODE_HEAD, _INT, _POINTER, _LONG, _POINTER, _LONG),
    "gw_shared_encode": (
        *(*_ENCODE_HEAD, _POINTER, _LONG, ctypes.c_uint64, _INT, _INT),
        *(_POINTER, _LONG, _POINTER, _LONG),
    ),
    "gw_shared_sum": (_POINTER, _LONG, _LONG, _INT, _POINTER, _INT),
    "gw_shared_decode": (
        *(_POINTER, _LONG, _INT, _POINTER, _LONG, _POINTER, _LONG, _INT, _INT, _FLOAT),
        *(_POINTER, _LONG),
    ),
    "gw_hadamard": (_POINTER, _POINTER, _LONG, _LONG, _FLOAT),
    "gw_best_isa": (),
    "gw_isa": (),
    "gw_set_isa": (_INT,),
}


def _load() -> ctypes.CDLL | str:
    """Return the library, or why there is none."""
    if not PATH.is_file():
        return f"{PATH.name} was not built: the package was installed without a C++ compiler"
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return f"{PATH.name} cannot be loaded: {error}"
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _LONG
    return library


_LIBRARY = _load()


def missing() -> str | None:
    """Return why the native library cannot be used, or None."""
    return _LIBRARY if isinstance(_LIBRARY, str) else None


def library() -> ctypes.CDLL:
    """Return the loaded library. Call it only where `missing()` is None."""
    assert not isinstance(_LIBRARY, str)
    return _LIBRARY


def best_isa() -> int:
    """Return the highest level in `ISA_LEVELS` that this processor has."""
    return int(library().gw_best_isa())


def isa() -> int:
    """Return the level in use, an index into `ISA_LEVELS`."""
    return int(library().gw_isa())


def set_isa(level: int) -> None:
    """Use another level; results are the same.

    Raises:
        GradwireError: This processor has no such level.
    """
    if library().gw_set_isa(level):
        raise GradwireError(f"instruction level {level} is not between 0 and {best_isa()}")


def _encode(
    function: Callable[..., int],
    x: Tensor,
    segments: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    *details: int,
) -> int:
    pointer, values = (None, 0) if residual is None else (residual.data_ptr(), residual.numel())
    return function(
        x.data_ptr(),
        x.numel(),
        segments.data_ptr(),
        segments.shape[0],
        *details,
        pointer,
        values,
        gain,
        payload.data_ptr(),
        payload.numel(),
    )


def _last(function: Callable[..., int], last: int, *arguments: object) -> int:
    return function(*arguments, last)


def _decode(
    function: Callable[..., int],
    payloads: Tensor,
    segments: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
    *details: int,
) -> int:
    return function(
        payloads.data_ptr(),
        *payloads.shape,
        segments.data_ptr(),
        segments.shape[0],
        *details,
        divisor,
        accumulate,
        out.data_ptr(),
        out.numel(),
    )


def _refuse(
    op: str,
    spec: Quantize | BitPlanes | Sign | Float,
    payload: Tensor,
    segments: Tensor,
    x: Tensor,
    residual: Tensor | None = None,
) -> None:
    """Raise the error for arguments that the library found not to fit together."""
    rows = checks.check_rows(segments, x, residual, spec.block_size)
    checks.check_size(op, payload, spec.num_bytes([row[2] for row in rows]))
    raise AssertionError(op)


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
    if _encode(function, x, segments, residual, gain, payload, *details):
        spec = Quantize(bits, block_size)
        _refuse("quantize_encode", spec, payload, segments, x, residual)


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
    if _decode(function, payloads, segments, divisor, accumulate, out, bits, block_size):
        _refuse("quantize_decode", Quantize(bits, block_size), payloads, segments, out)


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
    if _encode(function, x, segments, residual, gain, payload, *details):
        spec = BitPlanes(bits, planes, block_size)
        _refuse("planes_encode", spec, payload, segments, x, residual)


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
    status = _decode(function, payloads, segments, divisor, accumulate, out, *details)
    if status > 0:
        reference_planes.check_planes(ctypes.c_int32(status - 1).value, planes)
    if status:
        spec = BitPlanes(bits, planes, block_size)
        _refuse("planes_decode", spec, payloads, segments, out)


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
        out.data_ptr(),
        out.numel(),
    ):
        for payload, form, block_size in zip(payloads, formats, block_sizes, strict=True):
            spec = checks.mixed_spec(form, block_size)
            rows = checks.check_rows(segments, out, None, block_size)
            checks.check_size("mixed_decode", payload, spec.num_bytes([row[2] for row in rows]))
        raise AssertionError("mixed_decode")


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
    if _encode(function, x, segments, residual, gain, payload, block_size):
        _refuse("sign_encode", Sign(block_size), payload, segments, x, residual)


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
    if _decode(function, payloads, segments, divisor, accumulate, out, block_size):
        _refuse("sign_decode", Sign(block_size), payloads, segments, out)


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
    if _encode(function, x, segments, residual, gain, payload, *details):
        _refuse("float_encode", Float(format, block_size), payload, segments, x, residual)


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
    if _decode(function, payloads, segments, divisor, accumulate, out, *details):
        _refuse("float_decode", Float(format, block_size), payloads, segments, out)


def sparse_threshold(
    x: Tensor, segments: Tensor, residual: Tensor | None, density: float
) -> Tensor:
    """See `reference_sparse.sparse_threshold`."""
    thresholds = torch.empty(segments.shape[0])
    pointer, values = (None, 0) if residual is None else (residual.data_ptr(), residual.numel())
    if library().gw_sparse_threshold(
        x.data_ptr(),
        x.numel(),
        segments.data_ptr(),
        segments.shape[0],
        pointer,
        values,
        density,
        thresholds.data_ptr(),
    ):
        checks.check_rows(segments, x, residual)
    return thresholds


def _refuse_sparse(
    op: str,
    payload: Tensor,
    segments: Tensor,
    capacities: Tensor,
    x: Tensor,
    residual: Tensor | None = None,
) -> None:
    rows = checks.check_rows(segments, x, residual)
    limits = checks.check_capacities(rows, capacities.tolist())
    checks.check_size(op, payload, reference_sparse.num_bytes(limits))
    raise AssertionError(op)


def sparse_encode(
    x: Tensor,
    segments: Tensor,
    thresholds: Tensor,
    capacities: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `reference_sparse.sparse_encode`."""
    function = library().gw_sparse_encode
    details = (thresholds.data_ptr(), capacities.data_ptr())
    if _encode(function, x, segments, residual, gain, payload, *details):
        _refuse_sparse("sparse_encode", payload, segments, capacities, x, residual)


def sparse_decode(
    payloads: Tensor,
    segments: Tensor,
    capacities: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference_sparse.sparse_decode`."""
    function = library().gw_sparse_decode
    details = (capacities.data_ptr(),)
    status = _decode(function, payloads, segments, divisor, accumulate, out, *details)
    if status > 0:
        raise GradwireError(reference_sparse.malformed(status - 1))
    if status:
        _refuse_sparse("sparse_decode", payloads, segments, capacities, out)


def _memory(tensor: Tensor | None) -> tuple[int | None, int]:
    return (None, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())


def shared_peaks(
    x: Tensor, segments: Tensor, residual: Tensor | None, block_size: int, peaks: Tensor
) -> None:
    """See `reference_shared.shared_peaks`."""
    head = (*_memory(x), segments.data_ptr(), segments.shape[0])
    if library().gw_shared_peaks(*head, block_size, *_memory(residual), *_memory(peaks)):
        _refuse_shared(segments, x, residual, block_size, peaks, None)


def shared_encode(
    x: Tensor,
    segments: Tensor,
    peaks: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    residual: Tensor | None,
    levels: Tensor,
) -> None:
    """See `reference_shared.shared_encode`."""
    head = (*_memory(x), segments.data_ptr(), segments.shape[0])
    details = (*_memory(peaks), stream, bits, block_size)
    if library().gw_shared_encode(*head, *details, *_memory(residual), *_memory(levels)):
        _refuse_shared(segments, x, residual, block_size, peaks, levels)


def shared_sum(levels: Tensor, accumulate: bool, total: Tensor) -> None:
    """See `reference_shared.shared_sum`."""
    rows, numel = levels.shape
    library().gw_shared_sum(
        levels.data_ptr(), rows, numel, accumulate, total.data_ptr(), total.element_size()
    )


def shared_decode(
    sums: Tensor,
    segments: Tensor,
    peaks: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    out: Tensor,
) -> None:
    """See `reference_shared.shared_decode`."""
    head = (*_memory(sums), sums.element_size(), segments.data_ptr(), segments.shape[0])
    if library().gw_shared_decode(*head, *_memory(peaks), bits, block_size, divisor, *_memory(out)):
        _refuse_shared(segments, out, None, block_size, peaks, sums)


def _refuse_shared(
    segments: Tensor,
    x: Tensor,
    residual: Tensor | None,
    block_size: int,
    peaks: Tensor,
    levels: Tensor | None,
) -> None:
    rows = checks.check_rows(segments, x, residual, block_size)
    checks.check_blocks(rows, block_size, peaks)
    if levels is not None:
        checks.check_levels(rows, levels)
    raise AssertionError(block_size)


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


_PARTS = reference_rotated.Parts(quantize_encode, quantize_decode, hadamard)


def rotated_encode(
    x: Tensor,
    segments: Tensor,
    stream: int,
    bits: int,
    block_size: int,
    nearest: bool,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
) -> None:
    """See `reference_rotated.encode_with`: of the native kernels."""
    where = (segments, stream, bits, block_size, nearest)
    reference_rotated.encode_with(_PARTS, x, *where, residual, gain, payload)


def rotated_decode(
    payloads: Tensor,
    segments: Tensor,
    bits: int,
    block_size: int,
    divisor: float,
    accumulate: bool,
    out: Tensor,
) -> None:
    """See `reference_rotated.decode_with`: of the native kernels."""
    where = (segments, bits, block_size)
    reference_rotated.decode_with(_PARTS, payloads, *where, divisor, accumulate, out)


KERNELS: dict[str, Callable[..., Tensor | None]] = {
    "quantize_encode": quantize_encode,
    "quantize_decode": quantize_decode,
    "planes_encode": planes_encode,
    "planes_decode": planes_decode,
    "mixed_decode": mixed_decode,
    "sign_encode": sign_encode,
    "sign_decode": sign_decode,
    "float_encode": float_encode,
    "float_decode": float_decode,
    "sparse_threshold": sparse_threshold,
    "sparse_encode": sparse_encode,
    "sparse_decode": sparse_decode,
    "shared_peaks": shared_peaks,
    "shared_encode": shared_encode,
    "shared_sum": shared_sum,
    "shared_decode": shared_decode,
    "hadamard": hadamard,
    "rotated_encode": rotated_encode,
    "rotated_decode": rotated_decode,
}
