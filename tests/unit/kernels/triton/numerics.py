"""Corrects numbers that Triton's interpreter gets wrong without a word.

Its conversion to float8 neither carries nor saturates, and its tf32 is
float32. Here float8 is rounded by ml_dtypes, and products in tf32 lose the
bits that matrix units do not read.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_FLOAT8 = {
    tl.float8e4nv: (ml_dtypes.float8_e4m3fn, 448.0),
    tl.float8e5: (ml_dtypes.float8_e5m2, 57344.0),
}
_convert = InterpreterBuilder.create_fp_to_fp
_dot = InterpreterBuilder.create_dot


def _fp_to_fp(self, source, target, mode):
    if source.dtype.scalar in _FLOAT8:
        kind, _ = _FLOAT8[source.dtype.scalar]
        wide = np.ascontiguousarray(source.data).view(kind).astype(np.float32)
        return TensorHandle(wide, target.scalar)
    if target.scalar in _FLOAT8:
        kind, largest = _FLOAT8[target.scalar]
        short = np.clip(source.data, -largest, largest).astype(kind)
        return TensorHandle(short.view(np.uint8), target.scalar)
    return _convert(self, source, target, mode)


def _as_tf32(handle):
    bits = np.ascontiguousarray(handle.data).view(np.uint32) & np.uint32(0xFFFFE000)
    return TensorHandle(bits.view(np.float32), handle.dtype.scalar)


def _product(self, a, b, acc, precision, most_imprecise):
    if a.dtype.scalar == tl.float32 and precision == ir.INPUT_PRECISION.TF32:
        a, b = _as_tf32(a), _as_tf32(b)
    return _dot(self, a, b, acc, precision, most_imprecise)


def install() -> None:
    """Use these numbers from now on."""
    InterpreterBuilder.create_fp_to_fp = _fp_to_fp
    InterpreterBuilder.create_dot = _product
