"""Native kernels of levels under scales that all ranks share."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels import checks
from gradwire.kernels.cpu_library import library, memory


def shared_peaks(
    x: Tensor, segments: Tensor, residual: Tensor | None, block_size: int, peaks: Tensor
) -> None:
    """See `reference_shared.shared_peaks`."""
    head = (*memory(x), segments.data_ptr(), segments.shape[0])
    if library().gw_shared_peaks(*head, block_size, *memory(residual), *memory(peaks)):
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
    head = (*memory(x), segments.data_ptr(), segments.shape[0])
    details = (*memory(peaks), stream, bits, block_size)
    if library().gw_shared_encode(*head, *details, *memory(residual), *memory(levels)):
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
    head = (*memory(sums), sums.element_size(), segments.data_ptr(), segments.shape[0])
    if library().gw_shared_decode(*head, *memory(peaks), bits, block_size, divisor, *memory(out)):
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
