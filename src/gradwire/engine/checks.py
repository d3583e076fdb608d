"""Checks: sums and equal steps before training, and those of the debug mode."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.comm.base import Collective, Steps
from gradwire.comm.torch_collective import DistGroup
from gradwire.errors import CollectiveError, RankMismatchError, SpecError
from gradwire.plan import Assignment
from gradwire.reduce.base import Part

_TOLERANCE = 1e-4
_DIGEST_BYTES = 16


class Conservation:
    """Remembers what is owed before a reduction, and verifies its result.

    With x and e0 this rank's gradient and residual before, and e1 the residual
    after, the sum over ranks of `x + e0 - e1` is `world_size` times the mean.

    Args:
        x: The bucket.
        part: Its stretch under test.
        residual: None for a reducer without feedback.
    """

    def __init__(self, x: Tensor, part: Part, residual: Tensor | None) -> None:
        self._part = part
        self._residual = residual
        self._owed = self._gather(x)
        if residual is not None:
            self._owed += self._gather_residual(residual)

    def verify(self, mean: Tensor, group: Collective) -> Steps[None]:
        """Compare after the reduction.

        Raises:
            CollectiveError: Something was lost or invented; names the first
                parameter where.
        """
        sent = self._owed
        if self._residual is not None:
            sent = sent - self._gather_residual(self._residual)
        yield from group.all_reduce(sent)
        error = (sent / group.world_size - self._gather(mean)).abs()
        limit = _TOLERANCE * sent.abs().amax() / group.world_size
        wrong = (error > limit) & torch.isfinite(error)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            raise CollectiveError(
                "conservation check",
                group.rank,
                f"{self._name(place)}: what was sent and what"
                f" arrived differ by {float(error[place]):.3g} (limit {float(limit):.3g})",
            )

    def _gather(self, flat: Tensor) -> Tensor:
        return torch.cat([flat.narrow(0, s.offset, s.entry.numel) for s in self._part.slots])

    def _gather_residual(self, flat: Tensor) -> Tensor:
        slots = self._part.slots
        return torch.cat([flat.narrow(0, s.residual_offset, s.entry.numel) for s in slots])

    def _name(self, place: int) -> str:
        for slot in self._part.slots:
            if place < slot.entry.numel:
                return slot.name
            place -= slot.entry.numel
        raise AssertionError(place)


def check_replicas(parameters: Mapping[str, Tensor], step: int, group: Collective) -> Steps[None]:
    """Compare every rank's parameters bit for bit.

    Args:
        parameters: This rank's parameters by name, in the same order everywhere.
        step: Number of the step about to be synchronised, for the message.
        group: The ranks.

    Raises:
        RankMismatchError: Ranks differ; names the first parameter that does.
    """
    digests = [digest(p) for p in parameters.values()]
    mine = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8)
    rows = torch.empty(group.world_size, mine.numel(), dtype=torch.uint8)
    yield from group.all_gather(rows, mine)
    by_parameter = rows.view(group.world_size, -1, _DIGEST_BYTES)
    differs = (by_parameter != by_parameter[0]).any(dim=2)
    if bool(differs.any()):
        index = int(differs.any(dim=0).nonzero()[0])
        ranks = differs[:, index].nonzero().flatten().tolist()
        raise RankMismatchError(
            "replica check",
            group.rank,
            f"before the update of step {step}, parameter {list(parameters)[index]!r} of ranks"
            f" {ranks} differs from rank 0's; look for updates that are not the same on all"
            " ranks (loss scales, clipping, seeds)",
            {r: bytes(by_parameter[r, index].tolist()).hex() for r in range(group.world_size)},
        )


def check_steps(step: int, group: Collective) -> Steps[None]:
    """Make sure that all ranks have done as many steps, before the first one.

    Raises:
        RankMismatchError: They differ, as when a checkpoint was loaded on some
            ranks only.
    """
    rows = torch.empty(group.world_size, 1, dtype=torch.int64)
    yield from group.all_gather(rows, torch.tensor([step]))
    steps = {rank: int(row) for rank, row in enumerate(rows)}
    if len(set(steps.values())) > 1:
        raise RankMismatchError(
            "step check",
            group.rank,
            f"steps done differ by rank: {steps}; load the state on every rank, or on none",
            {rank: str(number) for rank, number in steps.items()},
        )


def refuse_float8(assignments: Mapping[str, Assignment], group: DistGroup | None) -> None:
    """Refuse sums that the back end cannot form, before the first one.

    Raises:
        SpecError: A reducer adds up FP8 on the wire, and this back end does not.
    """
    if not any(getattr(a.reducer, "is_float", False) for a in assignments.values()):
        return
    reason = "Gloo adds up no FP8, only NCCL does" if group is None else group.float8_refusal()
    if reason is not None:
        allowed = f"possible here: {reason}; use fp8, whose owners sum in float32"
        raise SpecError("SharedScale.accumulator", "float8_e4m3", allowed)


def digest(tensor: Tensor) -> bytes:
    """Hash a tensor bit by bit, `[16]` bytes."""
    data = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
