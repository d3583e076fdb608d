"""The native CPU kernels: a C++ library that may be missing."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradwire.kernels import cpu_dense, cpu_planes, cpu_shared, cpu_sparse
from gradwire.kernels.cpu_library import ISA_LEVELS, PATH, best_isa, isa, missing, set_isa

__all__ = ["ISA_LEVELS", "KERNELS", "PATH", "best_isa", "isa", "missing", "set_isa"]

KERNELS: dict[str, Callable[..., Tensor | None]] = {
    kernel.__name__: kernel
    for kernel in (
        *(cpu_dense.quantize_encode, cpu_dense.quantize_decode),
        *(cpu_dense.sign_encode, cpu_dense.sign_decode),
        *(cpu_dense.float_encode, cpu_dense.float_decode),
        *(cpu_dense.hadamard, cpu_dense.rotated_encode, cpu_dense.rotated_decode),
        *(cpu_planes.planes_encode, cpu_planes.planes_decode, cpu_planes.mixed_decode),
        *(cpu_sparse.sparse_threshold, cpu_sparse.sparse_encode, cpu_sparse.sparse_decode),
        *(cpu_shared.shared_peaks, cpu_shared.shared_encode),
        *(cpu_shared.shared_sum, cpu_shared.shared_decode),
    )
}
"""The kernels by op."""
