"""Sums of a vector and products of thin matrices, in plain PyTorch.

Back ends sum them in an order of their own and agree to float32 accuracy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def statistics(x: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return sums of values, squares and magnitudes, the peak, counts above limits."""
    magnitude = x.abs()
    wide = x.double()
    peak = magnitude.amax() if x.numel() else x.new_zeros(())
    sums = (wide.sum(), wide.square().sum(), magnitude.double().sum(), peak.double())
    counts = [(magnitude > cut).sum().double() for cut in thresholds]
    return torch.stack([*sums, *counts])


def thin_product(m: Tensor, q: Tensor) -> Tensor:
    """Return `M Q`."""
    return m @ q


def transposed_product(m: Tensor, p: Tensor) -> Tensor:
    """Return `Mᵀ P`."""
    return m.T @ p


def orthonormal(p: Tensor) -> Tensor:
    """Return orthonormal columns that span `P`'s columns, NaN if it has one.

    Householder's method completes the basis where columns are 0 or depend on
    each other, and is the fastest on a CPU at every size that occurs here.
    """
    basis: Tensor = torch.linalg.qr(p).Q
    return basis.contiguous()
