"""Two thin factors for each matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Steps
from gradwire.kernels import ops
from gradwire.key import Key, mix
from gradwire.reduce.base import REDUCERS, Part, Slot, State
from gradwire.spec import LowRank


@REDUCERS.register("low_rank")
class LowRankReducer:
    """One step of subspace iteration, shared by all ranks.

    With the owed matrix `M` of each rank: `P` is an orthonormal basis of
    `sum(M) Q`, the new `Q` is `mean(M)ᵀ P`, the mean is `P Qᵀ`, and this
    rank's share of it is `P Pᵀ M`. `Q` is kept for the next step.

    A matrix with a value that is not finite on any rank becomes NaN on all of
    them, and leaves residual and `Q` as they were.

    Args:
        spec: The parameters.

    Source:
        Vogels, Karimireddy and Jaggi, PowerSGD (NeurIPS 2019).
    """

    def __init__(self, spec: LowRank) -> None:
        self.spec = spec

    def part(self, slots: tuple[Slot, ...], world_size: int) -> Part:
        """See `Reducer.part`."""
        return Part.of(tuple(slot for slot in slots if slot.entry.numel))

    def reduce(
        self, x: Tensor, part: Part, state: State, key: Key, group: Collective, out: Tensor
    ) -> Steps[None]:
        """See `Reducer.reduce`."""
        if group.world_size == 1 or not part.slots:
            part.copy(x, out)
            return
        residual = state.residual if self.spec.feedback else None
        owed = [self._owed(x, slot, residual) for slot in part.slots]
        starts = [self._start(slot, state, key, x.device) for slot in part.slots]
        products = [ops.thin_product(m, q) for m, q in zip(owed, starts, strict=True)]
        spans = yield from _summed(products, group)
        bases = [ops.orthonormal(_scaled(p)) for p in spans]
        own = [ops.transposed_product(m, p) for m, p in zip(owed, bases, strict=True)]
        sums = yield from _summed(own, group)
        for slot, m, p, share, total in zip(part.slots, owed, bases, own, sums, strict=True):
            mean = total / group.world_size
            target = _matrix(out, slot.offset, slot)
            if not mean.isfinite().all():
                target.fill_(torch.nan)
                continue
            torch.mm(p, mean.T, out=target)
            if residual is not None:
                kept = _matrix(residual, slot.residual_offset, slot)
                torch.addmm(m, p, share.T, alpha=-1, out=kept)
            if self.spec.warm_start:
                state.factors[slot.name] = mean

    def _owed(self, x: Tensor, slot: Slot, residual: Tensor | None) -> Tensor:
        """Return a fresh matrix: products depend on how memory is aligned."""
        values = _matrix(x, slot.offset, slot)
        if residual is None:
            return values.clone()
        return values + _matrix(residual, slot.residual_offset, slot)

    def _start(self, slot: Slot, state: State, key: Key, device: torch.device) -> Tensor:
        """Return `Q`, `[columns, rank]`: the kept one, or one that all ranks draw alike.

        Columns that became 0, as after a step without gradient, are drawn
        anew: from 0 the iteration would never leave.
        """
        rows, columns = LowRank.matrix_shape(slot.entry.shape)
        rank = min(self.spec.matrix_rank, rows, columns)
        kept = state.factors.get(slot.name) if self.spec.warm_start else None
        if kept is not None and kept.any(0).all():
            return _scaled(kept)
        stream = key._replace(rank=None).stream()
        generator = torch.Generator().manual_seed(mix(stream + slot.entry.stream) >> 1)
        drawn = torch.randn(columns, rank, generator=generator).to(device)
        return drawn if kept is None else torch.where(kept.any(0), _scaled(kept), drawn)


def _matrix(bucket: Tensor, offset: int, slot: Slot) -> Tensor:
    return bucket.narrow(0, offset, slot.entry.numel).view(LowRank.matrix_shape(slot.entry.shape))


def _summed(factors: Sequence[Tensor], group: Collective) -> Steps[list[Tensor]]:
    """Sum factors over ranks, all in one exchange."""
    flat = torch.cat([f.reshape(-1) for f in factors])
    yield from group.all_reduce(flat)
    parts = torch.split(flat, [f.numel() for f in factors])
    return [part.view_as(f).clone() for part, f in zip(parts, factors, strict=True)]


def _scaled(factor: Tensor) -> Tensor:
    """Divide each column by its largest magnitude, so that no product over- or underflows."""
    peak = factor.abs().amax(0)
    return factor / torch.where(peak > 0, peak, 1)
