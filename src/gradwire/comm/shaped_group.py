"""A process group as slow as a given link, for DDP's own collectives and hooks."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.shaped import Link

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BACKEND = "gradwire_shaped"
"""Name of the back end; use `new_shaped_group`, which knows it."""


class Cost(NamedTuple):
    """What a collective costs each rank.

    Attributes:
        num_bytes: Bytes through the busiest direction of the busiest rank.
        trips: Messages that wait for each other, each with its latency.

    Example:
        >>> Cost.all_reduce(1000, world_size=4)
        Cost(num_bytes=1500.0, trips=6)
    """

    num_bytes: float
    trips: int

    @classmethod
    def all_reduce(cls, num_bytes: int, world_size: int) -> Cost:
        """Ring: every rank passes on two times all shards but one."""
        return cls(2 * (world_size - 1) / world_size * num_bytes, 2 * (world_size - 1))

    @classmethod
    def all_gather(cls, num_bytes: int, world_size: int) -> Cost:
        """Ring: every rank passes on `num_bytes` of all ranks but one."""
        return cls(float((world_size - 1) * num_bytes), world_size - 1)

    @classmethod
    def reduce_scatter(cls, num_bytes: int, world_size: int) -> Cost:
        """Ring: every rank passes on all shards but one of `num_bytes`."""
        return cls((world_size - 1) / world_size * num_bytes, world_size - 1)

    @classmethod
    def all_to_all(cls, num_bytes: int, world_size: int) -> Cost:
        """Direct: everything but the own shard leaves at once."""
        return cls((world_size - 1) / world_size * num_bytes, 1)

    @classmethod
    def broadcast(cls, num_bytes: int, world_size: int) -> Cost:
        """Binomial tree: the root sends all of it `ceil(log2(world_size))` times."""
        rounds = math.ceil(math.log2(world_size))
        return cls(float(rounds * num_bytes), rounds)


class ShapedGroup(dist.ProcessGroup):
    """Gloo's collectives, each completed when it would be on a link.

    The ranks agree when the last of them called; from then on, or from the end
    of the collective before, the line is busy for the bytes of the algorithm
    over the rate, and the result is there after its latencies. The real
    transfer runs meanwhile, and so does everything else: waiting is done in a
    thread of the group. Ranks must share a clock, that is, run on one machine.

    With an unlimited link Gloo's own works are handed out.

    Attributes:
        link: The line to imitate; may be changed between steps, on all ranks alike.
        bytes_sent: Bytes of all collectives so far, by `Cost`; set it to 0 to
            start again.

    Example:
        Made by `new_shaped_group`.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self.link = Link()
        self.bytes_sent = 0.0
        self._store = store
        self._name = ""
        self._gloo: Any = _gloo("data", store, rank, world_size, timeout)
        self._clock: Any = _gloo("clock", store, rank, world_size, timeout)
        self._line = _Line()
        self._closer = weakref.finalize(self, self._line.close)

    def _shape(self, work: dist.Work, cost: Cost, results: object) -> dist.Work:
        self.bytes_sent += cost.num_bytes
        if self.link.is_unlimited:
            return work
        called_s = torch.tensor([time.monotonic()], dtype=torch.float64)
        agreed = self._clock.allreduce([called_s], dist.ReduceOp.MAX)
        shaped = _ShapedWork()
        self._line.put(_Transfer(work, agreed, called_s, self.link, cost, shaped, results))
        return shaped

    def allreduce(self, tensors: list[Tensor], opts: object = None) -> dist.Work:  # type: ignore[override]
        """Sum over ranks, as a ring."""
        work = self._gloo.allreduce(tensors, *_given(opts))
        return self._shape(work, Cost.all_reduce(_num_bytes(tensors), self.size()), tensors)

    def broadcast(self, tensors: list[Tensor], opts: object = None) -> dist.Work:  # type: ignore[override]
        """Copy from one rank, as a tree."""
        work = self._gloo.broadcast(tensors, *_given(opts))
        return self._shape(work, Cost.broadcast(_num_bytes(tensors), self.size()), tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: object = None
    ) -> dist.Work:
        """Collect from all ranks, as a ring."""
        work = self._gloo.allgather(outputs, inputs, *_given(opts))
        return self._shape(work, Cost.all_gather(_num_bytes(inputs), self.size()), outputs)

    def _allgather_base(self, out: Tensor, data: Tensor, opts: object = None) -> dist.Work:
        """Collect from all ranks into one tensor, as a ring."""
        work = self._gloo._allgather_base(out, data, *_given(opts))  # noqa: SLF001
        return self._shape(work, Cost.all_gather(_num_bytes([data]), self.size()), [out])

    all_gather_single = _allgather_base  # type: ignore[assignment]  # its name from PyTorch 2.13 on

    def _reduce_scatter_base(self, out: Tensor, data: Tensor, opts: object = None) -> dist.Work:
        """Sum over ranks, each of which keeps a shard, as a ring."""
        work = self._gloo._reduce_scatter_base(out, data, *_given(opts))  # noqa: SLF001
        return self._shape(work, Cost.reduce_scatter(_num_bytes([data]), self.size()), [out])

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def alltoall_base(
        self,
        out: Tensor,
        data: Tensor,
        out_sizes: Sequence[int],
        data_sizes: Sequence[int],
        opts: object = None,
    ) -> dist.Work:
        """Exchange with all ranks, directly."""
        work = self._gloo.alltoall_base(out, data, out_sizes, data_sizes, *_given(opts))
        return self._shape(work, Cost.all_to_all(_num_bytes([data]), self.size()), [out])

    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def barrier(self, opts: object = None) -> dist.Work:
        """Wait for all ranks; takes no time of the link."""
        return self._gloo.barrier(*_given(opts))  # type: ignore[no-any-return]

    def get_group_store(self) -> Store:
        """Return the store the ranks met in."""
        return self._store

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name of the back end."""
        return BACKEND

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The group's name in PyTorch's books."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name


def new_shaped_group(ranks: list[int] | None = None) -> ShapedGroup:
    """Create a group to give to DDP; its link is unlimited until you set it.

    DDP's broadcast of the initial weights is then free, if you like:

        group = new_shaped_group()
        model = DistributedDataParallel(module, process_group=group)
        group.link = Link(parse_rate("100Mbit/s"), parse_seconds("1ms"))

    Collective of the default group, like `torch.distributed.new_group`.

    Args:
        ranks: The members, or None for all ranks.
    """
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, ShapedGroup, devices=["cpu"])
    group = dist.new_group(ranks, backend=BACKEND)
    assert isinstance(group, ShapedGroup), "PyTorch hands out the group it was given"
    return group


class _ShapedWork(dist._Work):  # type: ignore[name-defined,misc]  # noqa: SLF001 - has no public name
    """Done when the line says so."""

    def __init__(self) -> None:
        super().__init__()
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


@dataclass(slots=True)
class _Transfer:
    work: dist.Work
    agreed: dist.Work
    called_s: Tensor
    link: Link
    cost: Cost
    shaped: _ShapedWork
    results: object


@dataclass(slots=True)
class _Line:
    """Completes transfers in order, from one thread."""

    transfers: queue.SimpleQueue[_Transfer | None] = field(default_factory=queue.SimpleQueue)
    closed: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="gradwire-line", daemon=True)
        self.thread.start()

    def put(self, transfer: _Transfer) -> None:
        self.transfers.put(transfer)

    def _run(self) -> None:
        free_s = -math.inf
        while (transfer := self.transfers.get()) is not None:
            free_s = self._complete(transfer, free_s)
            del transfer  # an idle thread keeps no tensor alive

    def _complete(self, transfer: _Transfer, free_s: float) -> float:
        """Complete one transfer and return when the line is free again."""
        future = transfer.shaped.future
        try:
            transfer.agreed.wait()
            transfer.work.wait()
        except RuntimeError as error:
            future.set_exception(error)
            return free_s
        link, cost = transfer.link, transfer.cost
        free_s = max(free_s, float(transfer.called_s)) + cost.num_bytes / link.rate_bytes_per_s
        due_s = free_s + cost.trips * link.latency_s
        self.closed.wait(max(0.0, due_s - time.monotonic()))
        # Callbacks of the future may wait for later transfers (PowerSGD's do).
        threading.Thread(target=future.set_result, args=(transfer.results,)).start()
        return free_s

    def close(self) -> None:
        """Complete at once what is under way, and end the thread."""
        self.closed.set()
        self.transfers.put(None)
        if self.thread is not threading.current_thread():
            self.thread.join()


def _gloo(
    name: str, store: Store, rank: int, world_size: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    own_store = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(own_store, rank, world_size, timeout)


def _given(options: object) -> list[object]:
    return [] if options is None else [options]


def _num_bytes(tensors: list[Tensor]) -> int:
    parts = [(t._indices(), t._values()) if t.is_sparse else (t,) for t in tensors]  # noqa: SLF001
    return sum(p.nbytes for part in parts for p in part)
