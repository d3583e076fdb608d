"""The tools of these tests: the interpreter with a GPU's numbers, the sanitizer."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

import interpreter  # noqa: E402 - after the skip
import numerics  # noqa: E402
import triton.language as tl  # noqa: E402
from sanitizer import KernelFaultError, sanitized  # noqa: E402

interpreter.install()
numerics.install()


@triton.jit
def _cast(x_ptr, y_ptr, KIND: tl.constexpr):
    i = tl.arange(0, 1024)
    y = tl.load(x_ptr + i).to(KIND)
    tl.store(y_ptr + i, y.to(tl.uint8, bitcast=True))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2)],
    ids=["e4m3", "e5m2"],
)
def test_float8_rounds_as_torch_does(kind, expected):
    x = (torch.randn(1024) * torch.exp(2 * torch.randn(1024))).clamp(-448, 448)
    y = torch.empty(1024, dtype=torch.uint8)
    _cast[(1,)](x, y, KIND=kind)
    assert torch.equal(y, x.to(expected).view(torch.uint8))


@triton.jit
def _product(x_ptr, y_ptr, PRECISION: tl.constexpr):
    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, tl.dot(x, x, input_precision=PRECISION))


def test_tf32_is_less_exact_than_float32():
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    errors = []
    for precision in ("tf32", "ieee"):
        y = torch.empty(16, 16)
        _product[(1,)](x, y, PRECISION=precision)
        errors.append(float((y - x @ x).norm() / (x @ x).norm()))
    assert errors[0] > 1e-4
    assert errors[1] < 1e-6


@triton.jit
def _unmasked(x_ptr, y_ptr, numel, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + i, tl.load(x_ptr + i), mask=i < numel)


@triton.jit
def _one_place(x_ptr, y_ptr, numel, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + i, mask=i < numel, other=0.0), 0))


@triton.jit
def _neighbours(x_ptr, _y_ptr, numel, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    right = tl.load(x_ptr + i + 1, mask=i + 1 < numel, other=0.0)
    tl.store(x_ptr + i, right, mask=i < numel)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(_unmasked, "outside"), (_one_place, "both write"), (_neighbours, "reads|writes")],
    ids=["bounds", "writes", "stencil"],
)
def test_sanitizer_finds_planted_bugs(kernel, message):
    x, y = torch.randn(1000), torch.zeros(1000)
    with sanitized(), pytest.raises(Exception, match=message) as caught:
        kernel[(4,)](x, y, 1000, SIZE=256)
    chain = [caught.value, caught.value.__cause__]
    assert any(isinstance(e, KernelFaultError) for e in chain)
