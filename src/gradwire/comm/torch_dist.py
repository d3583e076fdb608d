"""Bytes between processes: a mailbox and collectives over `torch.distributed`."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.profiler import record_function

from gradwire.comm.base import Pending
from gradwire.comm.torch_group import fresh_store, limit_s
from gradwire.errors import CollectiveError, SpecError

MAX_WORK_BYTES = 1 << 30
"""Longer tensors are sent in pieces: sizes within Gloo pass through 32-bit numbers."""

TAIL_BYTES = 1
"""Longer messages end in a piece of this size, which is waited for first.

When a connection breaks, Gloo wakes the receives that have not begun, but not
the one it is in the midst of: that one would sleep until the time limit.
"""

_ONE_READ_BYTES = 1 << 16
_TAGS = 2**31 - 3
_SIZE_TAG, _OBJECT_TAG, _NEVER_TAG = range(_TAGS, _TAGS + 3)


class TorchMailbox:
    """One rank of a process group, with connections of its own.

    Its traffic never meets that of the given group, so exchanges may overlap
    with DDP's collectives. Creating one is a collective of the given group.
    Tensors live on the CPU; the given group may have any back end.

    Args:
        group: The ranks, or None for all of them.
        timeout_s: After so many seconds from its start an exchange has
            failed; the group's own limit if None.
        store: Where the ranks meet, used for nothing else. If None, they agree
            on a place, for which the group must be one of `torch.distributed`'s.

    Raises:
        CollectiveError: The ranks could not be connected.

    Example:
        >>> import tempfile
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mailbox = TorchMailbox(None)
        >>> mailbox.gather_objects("here")
        ['here']
        >>> mailbox.close()
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        *,
        timeout_s: float | None = None,
        store: Store | None = None,
    ) -> None:
        parent = group if group is not None else dist.group.WORLD
        if parent is None:
            raise SpecError("group", group, "usable before torch.distributed.init_process_group")
        self.rank = parent.rank()
        self.world_size = parent.size()
        self.timeout_s = limit_s(parent) if timeout_s is None else timeout_s
        try:
            backend = _connect(parent, self.timeout_s, store or fresh_store(parent))
            self._wire = _Wire(backend, self.rank, self.world_size)
        except RuntimeError as error:
            raise CollectiveError("connect", self.rank, str(error)) from error
        self._closer = weakref.finalize(self, self._wire.close)

    def exchange(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        """Send and receive one tensor from each named rank (see `Mailbox.exchange`).

        The result is done in the order of the calls. Callbacks of it run on
        the mailbox's thread.

        Raises:
            SpecError: A tensor is not contiguous or not on the CPU, or a rank
                is not another member of the group.
        """
        return self._post(tag % _TAGS, sends, receives)

    def _post(
        self, tag: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> Pending:
        incoming = list(self._pieces("receives", receives))
        outgoing = list(self._pieces("sends", sends))
        job = _Job(tag, time.monotonic() + self.timeout_s)
        job.pending.set_running_or_notify_cancel()  # from here on nobody can cancel it
        backend = self._wire.backend
        if backend is not None:
            # A receiver announces itself on the connection it sends on: posted
            # later, the note would wait behind this rank's own data.
            try:
                for peer, piece in incoming:
                    job.what = f"receiving from rank {peer}"
                    job.works.append((job.what, backend.recv([piece], peer, tag)))
                job.works.reverse()  # a tail's wait ends with the connection, see TAIL_BYTES
                for peer, piece in outgoing:
                    job.what = f"sending to rank {peer}"
                    job.works.append((job.what, backend.send([piece], peer, tag)))
            except RuntimeError as error:
                job.failure = error
        self._wire.put(job)
        return job.pending

    def all_reduce(self, data: Tensor) -> Pending:
        """Sum by Gloo's own ring (see `SummingMailbox.all_reduce`)."""
        job = _Job(None, time.monotonic() + self.timeout_s, what="all_reduce")
        job.pending.set_running_or_notify_cancel()
        backend = self._wire.backend
        if backend is not None:
            try:
                job.works.append((job.what, backend.allreduce([data])))
            except RuntimeError as error:
                job.failure = error
        self._wire.put(job)
        return job.pending

    def _pieces(self, field: str, tensors: Mapping[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        for peer, tensor in tensors.items():
            if not 0 <= peer < self.world_size or peer == self.rank:
                raise SpecError(
                    f"{field} rank", peer, f"another rank than {self.rank} below {self.world_size}"
                )
            if not tensor.is_contiguous():
                stride = f"strides {tensor.stride()} of shape {tuple(tensor.shape)}"
                raise SpecError(f"{field}[{peer}]", stride, "contiguous; pass tensor.contiguous()")
            if tensor.device.type != "cpu":
                raise SpecError(f"{field}[{peer}]", tensor.device, "on the CPU; use DistCollective")
            if tensor.numel():
                for piece in _cut(tensor.detach().view(-1).view(torch.uint8)):
                    yield peer, piece

    def gather_objects(self, value: object) -> list[object]:
        """Return every rank's value, by rank (see `Mailbox.gather_objects`)."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        others = [r for r in range(self.world_size) if r != self.rank]
        size = torch.tensor([data.numel()])
        sizes = {r: torch.empty_like(size) for r in others}
        self._post(_SIZE_TAG, dict.fromkeys(others, size), sizes).result()
        rows = {r: torch.empty(int(sizes[r]), dtype=torch.uint8) for r in others}
        self._post(_OBJECT_TAG, dict.fromkeys(others, data), rows).result()
        rows[self.rank] = data
        return [pickle.loads(rows[r].numpy().tobytes()) for r in range(self.world_size)]  # noqa: S301 - from our own ranks, as in torch.distributed

    def close(self) -> None:
        """Stop the thread and give up what is under way. Can be called twice."""
        self._closer()


def _cut(message: Tensor) -> Iterator[Tensor]:
    tail = TAIL_BYTES if message.numel() > _ONE_READ_BYTES else 0
    yield from message[: message.numel() - tail].split(MAX_WORK_BYTES)  # type: ignore[no-untyped-call]
    if tail:
        yield message[-tail:]


class _Backend(Protocol):
    """What `dist.ProcessGroupGloo` can do beyond its stub."""

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> dist.Work: ...

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> dist.Work: ...

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work: ...


@dataclass(slots=True)
class _Job:
    """One exchange: its works, and the future they complete."""

    tag: int | None
    deadline: float
    works: list[tuple[str, dist.Work]] = field(default_factory=list)
    what: str = "not started"
    failure: Exception | None = None
    pending: Pending = field(default_factory=Pending)

    def wait(self) -> None:
        """Wait for the works, one after the other, up to the deadline."""
        for what, work in self.works:
            self.what = what
            left_s = max(self.deadline - time.monotonic(), 0.001)
            work.wait(timedelta(seconds=left_s))


class _Wire:
    """Connections to the others, and the one thread that waits for works, in order."""

    def __init__(self, backend: _Backend, rank: int, world_size: int) -> None:
        self.backend: _Backend | None = backend
        self._rank = rank
        self._others = [r for r in range(world_size) if r != rank]
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._under_way = 0
        self._closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gradwire-mailbox", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Have a job waited for; after `close` it fails at once."""
        with self._lock:
            self._under_way += 1
            late = self._closed
            if not late:
                self._jobs.put(job)
        if late:
            self._finish(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._finish(job)
            del job  # an idle thread keeps no tensor alive

    def _finish(self, job: _Job) -> None:
        cause = self._failure or job.failure
        if cause is None:
            try:
                with record_function("gradwire::exchange"):
                    job.wait()
            except Exception as error:  # noqa: BLE001 - handed to whoever asks the future
                cause = self._failure or error
        with self._lock:
            self._under_way -= 1
            is_first = cause is not None and self._failure is None
            self._failure = self._failure or cause
        if cause is None:
            job.pending.set_result(None)
            return
        if is_first:
            self._disconnect()  # so that nobody waits for what this rank will not send
        tag = "" if job.tag is None else f"tag {job.tag}, "
        failure = CollectiveError("exchange", self._rank, f"{tag}{job.what}: {cause}")
        failure.__cause__ = cause
        job.pending.set_exception(failure)

    def close(self) -> None:
        """End the thread, if need be by breaking off what it waits for."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, but neither the thread nor a say
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle = self._under_way == 0
            self._failure = self._failure or RuntimeError("the mailbox was closed")
            self._jobs.put(None)
        if not idle:
            self._disconnect()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.backend = None

    def _disconnect(self) -> None:
        """Break all connections: here and there, whoever waits is told.

        Gloo has no call for it, but a receive that times out does it.
        """
        backend = self.backend
        assert backend is not None, "only `close` gives it up, at its end"
        for peer in self._others:
            with contextlib.suppress(RuntimeError):
                backend.recv([torch.empty(1)], peer, _NEVER_TAG).wait(timedelta(milliseconds=1))


def _connect(parent: dist.ProcessGroup, timeout_s: float, store: Store) -> _Backend:
    limit = timedelta(seconds=timeout_s)
    return cast("_Backend", dist.ProcessGroupGloo(store, parent.rank(), parent.size(), limit))
