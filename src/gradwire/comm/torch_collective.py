"""Collectives of a back end whose messages have no tags (NCCL)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from gradwire.comm.base import Steps
from gradwire.comm.channel import Scratch, all_reduce_by_shards
from gradwire.comm.record import Traffic
from gradwire.comm.torch_group import fresh_store, limit_s
from gradwire.errors import CollectiveError, SpecError
from gradwire.spec import even_transfers

_FLOAT8_NCCL = (2, 24)
_FLOAT8_CAPABILITY = (9, 0)


class _Backend(Protocol):
    """What process groups can do beyond the stub of their base class."""

    def alltoall_base(
        self, out: Tensor, data: Tensor, received: list[int], sent: list[int], /
    ) -> dist.Work: ...

    def _allgather_base(self, out: Tensor, data: Tensor, /) -> dist.Work: ...

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work: ...


class DistGroup:
    """Ranks connected anew, so that their collectives never meet those of others.

    Making one is a collective of the given group.

    Args:
        parent: The ranks, or None for all of them.
        device: Where the tensors live: NCCL serves GPUs, Gloo the CPU.

    Example:
        >>> import tempfile
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> from gradwire.comm.base import complete
        >>> group = DistGroup(None, torch.device("cpu"))
        >>> out = torch.zeros(1, 2)
        >>> complete(group.collective().all_gather(out, torch.tensor([1.0, 2.0])))
        >>> out
        tensor([[1., 2.]])
        >>> dist.destroy_process_group()
    """

    def __init__(self, parent: dist.ProcessGroup | None, device: torch.device) -> None:
        parent = parent if parent is not None else dist.group.WORLD
        if parent is None:
            raise SpecError("group", parent, "usable before torch.distributed.init_process_group")
        self.rank = parent.rank()
        self.world_size = parent.size()
        self._device = device
        store, limit = fresh_store(parent), timedelta(seconds=limit_s(parent))
        try:
            self._backend: object = _connect(store, self.rank, self.world_size, limit, device)
        except RuntimeError as error:
            raise CollectiveError("connect", self.rank, str(error)) from error

    def collective(self) -> DistCollective:
        """Return collectives that count their bytes from zero."""
        if self._backend is None:
            raise CollectiveError("connect", self.rank, "the group was closed")
        return DistCollective(cast("_Backend", self._backend), self.rank, self.world_size)

    def float8_refusal(self) -> str | None:
        """Return why sums of 8-bit floats cannot be left to the back end, or None."""
        nccl = getattr(dist, "ProcessGroupNCCL", None)
        if nccl is None or not isinstance(self._backend, nccl):
            return f"{type(self._backend).__name__} adds up no FP8, only NCCL does"
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        if version < _FLOAT8_NCCL:
            return f"NCCL {'.'.join(map(str, version))} adds up no FP8, from 2.24 on it does"
        capability = torch.cuda.get_device_capability(self._device)
        if capability < _FLOAT8_CAPABILITY:
            return f"NCCL adds up FP8 from compute capability 9.0 on, this is {capability}"
        return None

    def close(self) -> None:
        """Let go of the connections. Can be called twice."""
        self._backend = None


def _connect(
    store: Store, rank: int, world_size: int, limit: timedelta, device: torch.device
) -> object:
    if device.type == "cpu":
        return dist.ProcessGroupGloo(store, rank, world_size, limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit  # noqa: SLF001 - no public way to set it
    return dist.ProcessGroupNCCL(store, rank, world_size, options)


class DistCollective:
    """A back end's own all-to-all and all-gather, in the order of the calls.

    Nothing is yielded: on a GPU a call only queues work on the current
    stream, on a CPU it blocks. All ranks must make the same calls in the same
    order. Where tags exist, `Channel` over `TorchMailbox` overlaps more. Bytes
    are counted as a `Recorder` does.

    Args:
        backend: Moves the bytes.
        rank: This process's number in the group.
        world_size: Number of processes in the group.
    """

    def __init__(self, backend: _Backend, rank: int, world_size: int) -> None:
        self._backend = backend
        self.rank = rank
        self.world_size = world_size
        self._sent_bytes = self._received_bytes = self._exchanges = 0

    def take(self) -> Traffic:
        """Return what was counted since the last call; how long it took is not known."""
        traffic = Traffic(self._sent_bytes, self._received_bytes, self._exchanges, ())
        self._sent_bytes = self._received_bytes = self._exchanges = 0
        return traffic

    def _count(self, sent_bytes: int, received_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes
        self._exchanges += 1

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Replace `data` by the sum over ranks (see `Collective.all_reduce`)."""
        yield from all_reduce_by_shards(data, divisor, self, Scratch())

    def sum_float8(self, data: Tensor) -> Steps[None]:
        """Leave a sum of 8-bit floats to the back end (see `Float8Collective`)."""
        yield from ()
        try:
            self._backend.allreduce([data]).wait()
        except RuntimeError as error:
            raise CollectiveError("sum_float8", self.rank, str(error)) from error
        for t in even_transfers(data.numel(), 1, self.world_size, self.rank):
            self._count(*t)

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Fill row r of `out` with rank r's `data` (see `Collective.all_gather`)."""
        yield from ()
        if data.numel() == 0:
            return
        try:
            self._backend._allgather_base(_as_bytes(out), _as_bytes(data)).wait()  # noqa: SLF001 - no public name
        except RuntimeError as error:
            raise CollectiveError("all_gather", self.rank, str(error)) from error
        self._count(*[data.nbytes * (self.world_size - 1)] * 2)

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
            self._backend.alltoall_base(
                packed,
                torch.cat(sends),
                [x.numel() for x in receives],
                [x.numel() for x in sends],
            ).wait()
        except RuntimeError as error:
            raise CollectiveError("all_to_all", self.rank, str(error)) from error
        self._count(sum(x.numel() for x in sends), packed.numel())
        pieces: Sequence[Tensor] = packed.split([x.numel() for x in receives])  # type: ignore[no-untyped-call]
        for box, piece in zip(receives, pieces, strict=True):
            box.copy_(piece)


def _as_bytes(tensor: Tensor) -> Tensor:
    if not tensor.is_contiguous():
        raise SpecError("strides", tensor.stride(), "contiguous; pass tensor.contiguous()")
    return tensor.detach().view(-1).view(torch.uint8)
