"""Products with thin matrices, and an orthonormal basis by Cholesky's factor.

A matrix `M [rows, columns]` is read once for `P = M Q` and once for `Mᵀ P`.
`matrix` splits numbers in three for the matrix units, to float32 accuracy;
`plain` multiplies in float32. By roofline only ranks above about 20 leave
memory speed behind; smaller ones gain nothing from matrix units.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels import reference_products
from gradwire.kernels.forms import form_of
from gradwire.kernels.triton.tiles import OPTIONS

MAX_RANK = 16
"""Most columns of a thin matrix: the narrowest product of matrix units."""

_RIDGE = 1e-7
_SPLIT = 8
_ROWS, _DEPTH = 64, 32
_R = tl.constexpr(MAX_RANK)


@triton.jit
def product_kernel(
    m_ptr,
    q_ptr,
    p_ptr,
    rows,
    columns,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Form some rows of `P = M Q`."""
    pid = tl.program_id(0)
    row = pid * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, _R)
    acc = tl.zeros((ROWS, _R), tl.float32)
    for k in range(0, columns, DEPTH):
        column = k + tl.arange(0, DEPTH)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        a = tl.load(m_ptr + at, mask=inside, other=0.0)
        b_at = column[:, None] * _R + c[None, :]
        b = tl.load(q_ptr + b_at, mask=column[:, None] < columns, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(p_ptr + row[:, None] * _R + c[None, :], acc, mask=row[:, None] < rows)


@triton.jit
def gram_kernel(p_ptr, gram_ptr, rows, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Form one share of `Pᵀ P`."""
    pid = tl.program_id(0)
    row = pid * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, _R)
    at = row[:, None] * _R + c[None, :]
    p = tl.load(p_ptr + at, mask=row[:, None] < rows, other=0.0)
    gram = tl.dot(tl.trans(p), p, input_precision=PRECISION)
    tl.store(gram_ptr + pid * _R * _R + c[:, None] * _R + c[None, :], gram)


@triton.jit
def factor_kernel(gram_ptr, inverse_ptr, parts, ridge):
    """Factor `G = L Lᵀ` in one program, and write `L⁻ᵀ`, so that `P L⁻ᵀ` is orthonormal."""
    c = tl.arange(0, _R)
    i, j = c[:, None], c[None, :]
    gram = tl.zeros((_R, _R), tl.float32)
    for part in range(parts):
        gram += tl.load(gram_ptr + part * _R * _R + i * _R + j)
    trace = tl.sum(tl.sum(tl.where(i == j, gram, 0.0), 1), 0)
    gram += tl.where(i == j, ridge * trace / _R + 1e-30, 0.0)
    inverse = tl.where(i == j, 1.0, 0.0)
    for k in range(_R):
        column = tl.sum(tl.where(j == k, gram, 0.0), 1)
        pivot = tl.sqrt_rn(tl.sum(tl.where(c == k, column, 0.0), 0))
        scaled = tl.where(c >= k, tl.div_rn(column, tl.full((_R,), 1.0, tl.float32) * pivot), 0.0)
        gram -= scaled[:, None] * scaled[None, :]
        row = tl.sum(tl.where(i == k, inverse, 0.0), 0)
        row = tl.div_rn(row, tl.full((_R,), 1.0, tl.float32) * pivot)
        below = tl.where(i > k, scaled[:, None] * row[None, :], 0.0)
        inverse = tl.where(i == k, row[None, :], inverse - below)
    tl.store(inverse_ptr + j * _R + i, inverse)


@triton.jit
def apply_kernel(p_ptr, inverse_ptr, gram_ptr, rows, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply `P` by `L⁻ᵀ` in place, and form the share of the result's `Pᵀ P`."""
    pid = tl.program_id(0)
    row = pid * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, _R)
    at = row[:, None] * _R + c[None, :]
    p = tl.load(p_ptr + at, mask=row[:, None] < rows, other=0.0)
    inverse = tl.load(inverse_ptr + c[:, None] * _R + c[None, :])
    p = tl.dot(p, inverse, input_precision=PRECISION)
    tl.store(p_ptr + at, p, mask=row[:, None] < rows)
    gram = tl.dot(tl.trans(p), p, input_precision=PRECISION)
    tl.store(gram_ptr + pid * _R * _R + c[:, None] * _R + c[None, :], gram)


@triton.jit
def transposed_kernel(
    m_ptr,
    p_ptr,
    out_ptr,
    rows,
    columns,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Form one part of some rows of `Mᵀ P`: every SPLIT-th stretch of `M`'s rows."""
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, _R)
    acc = tl.zeros((_R, COLUMNS), tl.float32)
    for k in range(part * DEPTH, rows, SPLIT * DEPTH):
        row = k + tl.arange(0, DEPTH)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        a = tl.load(m_ptr + at, mask=inside, other=0.0)
        b_at = row[:, None] * _R + c[None, :]
        b = tl.load(p_ptr + b_at, mask=row[:, None] < rows, other=0.0)
        # The thin factor is turned, not M, whose rows then move 16 bytes at once.
        acc = tl.dot(tl.trans(b), a, acc, input_precision=PRECISION)
    at = (part * columns + column)[None, :] * _R + c[:, None]
    tl.store(out_ptr + at, acc, mask=column[None, :] < columns)


def thin_product(m: Tensor, q: Tensor) -> Tensor:
    """See `gradwire.kernels.reference_products.thin_product`; wide ones go to it."""
    rows, columns = m.shape
    rank = q.shape[1]
    if rank > MAX_RANK or not m.numel():
        return reference_products.thin_product(m, q)
    p = torch.empty(rows, MAX_RANK, dtype=torch.float32, device=m.device)
    product_kernel[(-(-rows // _ROWS),)](
        *(m, _widened(q), p, rows, columns), DEPTH=_DEPTH, **_tiling()
    )
    return p[:, :rank].contiguous()


def orthonormal(p: Tensor) -> Tensor:
    """Return an orthonormal basis of `P`'s columns; more than 16 go to the reference.

    Columns that depend on others, to float32 accuracy, come out small rather
    than orthonormal: a ridge on the Gram matrix keeps its factor finite.

    Source:
        Yamamoto et al., Roundoff error analysis of the CholeskyQR2 algorithm
        (ETNA 2015): factoring twice makes up for the squared condition.
    """
    rows, rank = p.shape
    if rank > MAX_RANK or not p.numel():
        return reference_products.orthonormal(p)
    parts = -(-rows // _ROWS)
    wide = _widened(p)
    gram = torch.empty(parts, MAX_RANK, MAX_RANK, dtype=torch.float32, device=p.device)
    inverse = torch.empty(MAX_RANK, MAX_RANK, dtype=torch.float32, device=p.device)
    gram_kernel[(parts,)](wide, gram, rows, **_tiling())
    for _ in range(2):
        factor_kernel[(1,)](gram, inverse, parts, _RIDGE, num_warps=1, enable_fp_fusion=False)
        apply_kernel[(parts,)](wide, inverse, gram, rows, **_tiling())
    return wide[:, :rank].contiguous()


def transposed_product(m: Tensor, p: Tensor) -> Tensor:
    """See `reference_products.transposed_product`; wide ones go to it."""
    rows, columns = m.shape
    rank = p.shape[1]
    if rank > MAX_RANK or not m.numel():
        return reference_products.transposed_product(m, p)
    parts = torch.empty(_SPLIT, columns, MAX_RANK, dtype=torch.float32, device=m.device)
    transposed_kernel[(-(-columns // _ROWS), _SPLIT)](
        *(m, _widened(p), parts, rows, columns),
        COLUMNS=_ROWS,
        DEPTH=_DEPTH,
        SPLIT=_SPLIT,
        PRECISION=precision(),
        **OPTIONS,
    )
    return parts.sum(0)[:, :rank].contiguous()


def precision() -> str:
    """Return how products are formed; AMD's units have no three tf32 parts."""
    if form_of("low_rank") == "plain":
        return "ieee"
    return "ieee" if torch.version.hip is not None else "tf32x3"


def _tiling() -> dict[str, Any]:
    return {"ROWS": _ROWS, "PRECISION": precision(), **OPTIONS}


def _widened(thin: Tensor) -> Tensor:
    return torch.nn.functional.pad(thin, (0, MAX_RANK - thin.shape[1])).contiguous()
