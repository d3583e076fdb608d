"""Native kernels of the sparse codec."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import GradwireError
from gradwire.kernels import checks, reference_sparse
from gradwire.kernels.cpu_library import decode, encode, library, memory


def sparse_threshold(
    x: Tensor, segments: Tensor, residual: Tensor | None, density: float
) -> Tensor:
    """See `reference_sparse.sparse_threshold`."""
    thresholds = torch.empty(segments.shape[0])
    head = (*memory(x), segments.data_ptr(), segments.shape[0])
    tail = (*memory(residual), density, thresholds.data_ptr())
    if library().gw_sparse_threshold(*head, *tail):
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
    if encode(function, x, segments, residual, gain, payload, *details):
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
    status = decode(function, payloads, segments, divisor, accumulate, out, *details)
    if status > 0:
        raise GradwireError(reference_sparse.malformed(status - 1))
    if status:
        _refuse_sparse("sparse_decode", payloads, segments, capacities, out)
