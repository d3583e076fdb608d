"""Collectives of a back end whose messages have no tags (NCCL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.base import Steps
from gradwire.comm.channel import Scratch, all_reduce_by_shards
from gradwire.errors import CollectiveError, SpecError


class DistCollective:
    """A group's own all-to-all and all-gather, in the order of the calls.

    Nothing is yielded: on a GPU a call only queues work on the current
    stream, on a CPU it blocks. All ranks must make the same calls in the same
    order. Where tags exist, `Channel` over `TorchMailbox` overlaps more.

    Args:
        group: The ranks, or None for all of them.

    Example:
        >>> import tempfile
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> from gradwire.comm.base import complete
        >>> out = torch.zeros(1, 2)
        >>> complete(DistCollective(None).all_gather(out, torch.tensor([1.0, 2.0])))
        >>> out
        tensor([[1., 2.]])
        >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group if group is not None else dist.group.WORLD
        if self._group is None:
            raise SpecError("group", group, "usable before torch.distributed.init_process_group")
        self.rank = self._group.rank()
        self.world_size = self._group.size()

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Replace `data` by the sum over ranks (see `Collective.all_reduce`)."""
        yield from all_reduce_by_shards(data, divisor, self, Scratch())

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Fill row r of `out` with rank r's `data` (see `Collective.all_gather`)."""
        yield from ()
        if data.numel() == 0:
            return
        # all_gather_into_tensor is deprecated from PyTorch 2.13 on.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        try:
            gather(_as_bytes(out), _as_bytes(data), group=self._group)
        except RuntimeError as error:
            raise CollectiveError("all_gather", self.rank, str(error)) from error

    def all_to_all(self, out: Sequence[Tensor], data: Sequence[Tensor]) -> Steps[None]:
        """Send `data[r]` to rank r, fill `out[r]` (see `Collective.all_to_all`)."""
        yield from ()
        own = self.rank
        if out[own].data_ptr() != data[own].data_ptr():
            out[own].copy_(data[own])
        sends = [_as_bytes(x) if r != own else _as_bytes(x)[:0] for r, x in enumerate(data)]
        receives = [_as_bytes(x) if r != own else _as_bytes(x)[:0] for r, x in enumerate(out)]
        packed = torch.cat(receives)
        try:
            dist.all_to_all_single(
                packed,
                torch.cat(sends),
                [x.numel() for x in receives],
                [x.numel() for x in sends],
                group=self._group,
            )
        except RuntimeError as error:
            raise CollectiveError("all_to_all", self.rank, str(error)) from error
        pieces: Sequence[Tensor] = packed.split([x.numel() for x in receives])  # type: ignore[no-untyped-call]
        for box, piece in zip(receives, pieces, strict=True):
            box.copy_(piece)


def _as_bytes(tensor: Tensor) -> Tensor:
    if not tensor.is_contiguous():
        raise SpecError("strides", tensor.stride(), "contiguous; pass tensor.contiguous()")
    return tensor.detach().view(-1).view(torch.uint8)
