"""The kernels for CUDA devices, in Triton.

ROCm's devices go by the same name in PyTorch. Triton is imported when a kernel
first runs: that it can be imported says nothing about whether there is a device.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

OPS = (
    "quantize_encode",
    "quantize_decode",
    "sign_encode",
    "sign_decode",
    "float_encode",
    "float_decode",
    "sparse_threshold",
    "sparse_encode",
    "sparse_decode",
    "planes_encode",
    "planes_decode",
    "mixed_decode",
    "hadamard",
    "rotated_encode",
    "rotated_decode",
    "statistics",
    "thin_product",
    "transposed_product",
    "orthonormal",
)
"""Ops that have a kernel."""

_LEAST_CAPABILITY = (8, 0)


@functools.cache
def missing() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device was found"
    capability = torch.cuda.get_device_capability()
    if torch.version.hip is None and capability < _LEAST_CAPABILITY:
        return f"the device has compute capability {capability[0]}.{capability[1]}, 8.0 is needed"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton"
    return None


@functools.cache
def kernels() -> dict[str, Callable[..., Tensor | None]]:
    """Load the kernels. Call it only where Triton is installed."""
    from gradwire.kernels.triton import (  # noqa: PLC0415 - Triton may be missing
        floats,
        hadamard,
        low_rank,
        mixed,
        planes,
        quantize,
        rotated,
        sign,
        sparse,
        sparse_decode,
        statistics,
        threshold,
    )

    dense = (quantize, rotated, planes, sign, floats, mixed)
    modules = (*dense, threshold, sparse, sparse_decode, hadamard, statistics, low_rank)
    return {name: getattr(m, name) for name in OPS for m in modules if hasattr(m, name)}
