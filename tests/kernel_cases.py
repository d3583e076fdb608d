"""Stretches and values that kernels are tested on, and how results are compared."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
FEEDBACK = {"none": (False, 0.0), "owed": (True, 0.0), "gain": (True, 0.75)}
UNWRITTEN = 0xA5


def stretches(numels: tuple[int, ...], block_size: int) -> Tensor:
    """Stretches with odd gaps, so that none of them is aligned."""
    rows, offset, residual_offset = [], 3, 1
    for index, numel in enumerate(numels):
        rows.append((offset, residual_offset, numel, index * block_size, 1234567891011 * index - 5))
        offset += numel + 5
        residual_offset += numel + 2
    return torch.tensor(rows, dtype=torch.int64).view(-1, 5)


def values(numel: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(2, numel, generator=generator)
    return normal[0] * torch.exp(normal[1])


def harsh_values(numel: int) -> Tensor:
    """Blocks of 256 with every kind of odd content."""
    x = values(numel, 3)
    kinds = (
        0.0,
        -0.0,
        1e-40,
        3e-38,
        1.2e-38,
        1e38,
        3e38,
        1e-25,
        1e25,
        "nan",
        "inf",
        "-inf",
        "huge",
    )
    for index, kind in enumerate(kinds):
        block = x[index * 256 : (index + 1) * 256]
        if isinstance(kind, float):
            block.copy_(block.clamp(-1, 1) * kind)
        else:
            block[min(77, block.numel() - 1) :][:1] = 3.4028e38 if kind == "huge" else float(kind)
    return x


def residual_of(numel: int) -> Tensor:
    return values(numel, 1) * 0.1


def length(segments: Tensor) -> int:
    return int(segments[:, :3].sum(1).max()) + 9 if len(segments) else 9


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    wrong = (a.view(torch.int32) != b.view(torch.int32)) & ~(a.isnan() & b.isnan())
    assert not wrong.any(), f"{int(wrong.sum())} values differ, first at {wrong.nonzero()[0]}"
