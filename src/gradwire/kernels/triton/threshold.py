"""Counts above thresholds, and the search for a wanted density."""

from __future__ import annotations

from collections.abc import Generator

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels import checks, reference_sparse
from gradwire.kernels.triton.blocks import from_row, load_owed, magnitudes, sum_halves
from gradwire.kernels.triton.launch import feedback_mode
from gradwire.kernels.triton.tiles import OPTIONS, are_aligned, kept, rows_of, starts
from gradwire.layout import GROUP

GROUPS = 16
"""Groups that one program looks at."""

_INFINITY = tl.constexpr(0x7F800000)
_Search = Generator[float, tuple[int, float], float]


@triton.jit
def tail_kernel(
    x_ptr,
    residual_ptr,
    thresholds_ptr,
    counts_ptr,
    excess_ptr,
    rows_ptr,
    table_ptr,
    GROUPS: tl.constexpr,
    FEEDBACK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Count, for each sampled group, magnitudes above the threshold, and sum their excess."""
    pid = tl.program_id(0)
    stretch = tl.load(rows_ptr + pid)
    row = table_ptr + stretch * 8
    first = (pid - tl.load(row)) * GROUPS
    sample = first + tl.arange(0, GROUPS)
    x_ptr = from_row(x_ptr, row, 1, 0, ALIGNED)
    residual_ptr = from_row(residual_ptr, row, 2, 0, ALIGNED)
    numel = tl.load(row + 3)
    place = (sample * tl.load(row + 4))[:, None] * 256 + tl.arange(0, 32)[None, :]
    threshold = tl.load(thresholds_ptr + stretch)
    count = tl.zeros((GROUPS, 32), tl.int32)
    excess = tl.zeros((GROUPS, 32), tl.float32)
    for step in range(8):
        value = load_owed(x_ptr, residual_ptr, place + step * 32, numel, False, FEEDBACK)
        magnitude = tl.where(magnitudes(value) < _INFINITY, tl.abs(value), 0.0)
        above = magnitude > threshold
        count += above.to(tl.int32)
        excess += tl.where(above, magnitude - threshold, 0.0)
    at = tl.load(row + 5) + sample
    exists = sample < tl.load(row + 6)
    tl.store(counts_ptr + at, tl.sum(count, 1), mask=exists)
    tl.store(excess_ptr + at, sum_halves(excess), mask=exists)


class _Sample:
    """Which groups of a bucket's stretches are looked at."""

    def __init__(self, rows: list[checks.Row], density: float, device: torch.device) -> None:
        found = [reference_sparse.sampling(row[2], density) for row in rows]
        strides = [stride for stride, _, _ in found]
        self.sizes = [
            -(-row[2] // (GROUP * stride)) for row, stride in zip(rows, strides, strict=True)
        ]
        self.wanted = [(sampled, target) for _, sampled, target in found]
        counts = [-(-size // GROUPS) for size in self.sizes]
        columns = (
            starts(counts),
            *([row[i] for row in rows] for i in range(3)),
            strides,
            starts(self.sizes),
            self.sizes,
            self.sizes,
        )
        self.programs = sum(counts)
        self.rows = rows_of(counts, device)
        self.table = torch.tensor(columns, dtype=torch.int64).T.contiguous().to(device)
        self.is_aligned = are_aligned(rows)


def sparse_threshold(
    x: Tensor, segments: Tensor, residual: Tensor | None, density: float
) -> Tensor:
    """See `gradwire.kernels.reference_sparse.sparse_threshold`.

    All stretches search together: one launch and one small copy to the CPU a
    round. There the groups' sums are added up in their order, in float64.
    """
    most = None if residual is None else residual.numel()

    def make() -> _Sample:
        return _Sample(checks.check_rows(segments, x, residual), density, x.device)

    sample = kept(segments, ("threshold", density, x.numel(), most, x.device), make)
    searches = [reference_sparse.refine(*wanted) for wanted in sample.wanted]
    found = [0.0] * len(searches)
    trying = [next(search) for search in searches]
    open_searches = dict(enumerate(searches))
    while open_searches:
        counts, excess = _tails(x, residual, sample, trying)
        for index, search in list(open_searches.items()):
            try:
                trying[index] = search.send((counts[index], excess[index]))
            except StopIteration as stop:
                found[index] = stop.value
                del open_searches[index]
    return torch.tensor(found, dtype=torch.float32, device=x.device)


def _tails(
    x: Tensor, residual: Tensor | None, sample: _Sample, thresholds: list[float]
) -> tuple[list[int], list[float]]:
    """Return each stretch's count and excess above its threshold."""
    groups = sum(sample.sizes)
    result = torch.empty(2, groups, dtype=torch.int32, device=x.device)
    tail_kernel[(sample.programs,)](
        x,
        x if residual is None else residual,
        torch.tensor(thresholds, dtype=torch.float32, device=x.device),
        result[0],
        result[1].view(torch.float32),
        sample.rows,
        sample.table,
        GROUPS=GROUPS,
        FEEDBACK=feedback_mode(residual, 0.0),
        ALIGNED=sample.is_aligned,
        **OPTIONS,
    )
    counts, excess = result.cpu()
    sums = excess.view(torch.float32).to(torch.float64).split(sample.sizes)
    return (
        [int(part.sum()) for part in counts.split(sample.sizes)],
        [float(part.cumsum(0)[-1]) for part in sums],
    )
