"""The native library, called through ctypes, and what its kernels share.

`ctypes.CDLL` drops the interpreter lock around every call. The library keeps
no state, starts no threads and allocates nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks
from gradwire.spec import BitPlanes, Float, Quantize, Sign

ISA_LEVELS = ("baseline", "x86-64-v3", "x86-64-v4")
"""Instruction sets the library is compiled for, by number."""

PATH = Path(__file__).parent / "native" / "libgradwire.so"
"""Where the build puts the library."""

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


def memory(tensor: Tensor | None) -> tuple[int | None, int]:
    """Return pointer and length."""
    return (None, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())


def encode(
    function: Callable[..., int],
    x: Tensor,
    segments: Tensor,
    residual: Tensor | None,
    gain: float,
    payload: Tensor,
    *details: int,
) -> int:
    """Call an encoder, whose `details` follow the stretches."""
    head = (*memory(x), segments.data_ptr(), segments.shape[0])
    return function(*head, *details, *memory(residual), gain, *memory(payload))


def decode(
    function: Callable[..., int],
    payloads: Tensor,
    segments: Tensor,
    divisor: float,
    accumulate: bool,
    out: Tensor,
    *details: int,
) -> int:
    """Call a decoder, whose `details` follow the stretches."""
    head = (payloads.data_ptr(), *payloads.shape, segments.data_ptr(), segments.shape[0])
    return function(*head, *details, divisor, accumulate, *memory(out))


def refuse(
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
