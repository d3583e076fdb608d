"""A process-group back end, for code that cannot be changed.

Importing this module registers it under the name `gradwire`. It is Gloo, but
for the sums and averages of large float tensors, which are encoded.

It sees flat tensors, not parameters, so it does less than `attach`: rules of a
plan go by size only, and residuals by the place of a call in its backward pass.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.comm.torch_dist import TorchMailbox
from gradwire.errors import RankMismatchError
from gradwire.integrations.agreement import fixed
from gradwire.integrations.flat import FlatAverager, check_flat
from gradwire.plan import Plan, load_plan
from gradwire.spec import ReducerSpec

NAME = "gradwire"
PLAN_VARIABLE = "GRADWIRE_PLAN"
"""Environment variable with the plan: a short name, or the path of a plan file."""

_ENCODED_OPS: tuple[Any, ...] = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
_ENCODED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PASSED_ON = (
    *("allgather", "allgather_into_tensor_coalesced", "allreduce_coalesced", "alltoall_base"),
    *("barrier", "broadcast", "recv", "reduce_scatter", "reduce_scatter_tensor_coalesced", "send"),
    *("all_gather_single_coalesced", "all_to_all_single", "reduce_scatter_single_coalesced"),
)
"""What `torch` overrides for subclasses in Python, besides `allreduce`; some by version."""


class GradwireProcessGroup(dist.ProcessGroup):
    """Gloo, with large all-reduces encoded; made by `init_process_group("gradwire")`.

    What is encoded: one dense CPU tensor of float32, bfloat16 or float16 to be
    summed or averaged, large enough for the plan to shrink it. In a backward
    pass residuals are kept by the place of the call in it. Elsewhere nothing
    says what a tensor is, so only codecs that need no residual are used, such
    as `int8`; with others it is summed as it is.

    Args:
        store: Where the ranks meet.
        rank: This process's number.
        world_size: Number of ranks.
        timeout: Time limit of each operation.
        plan: What to use; see `gradwire.attach`.

    Raises:
        SpecError: A plan that needs parameters.
        RankMismatchError: Ranks have different plans.

    Example:
        >>> import tempfile
        >>> import torch.distributed as dist
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gradwire", store=store, rank=0, world_size=1)
        >>> x = torch.ones(10_000)
        >>> dist.all_reduce(x)
        >>> dist.group.WORLD.encoded_calls  # one rank has nothing to send
        0
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        timeout: timedelta,
        plan: Plan | ReducerSpec | str | Path | None = None,
    ) -> None:
        # The stub has only the constructor that subclasses cannot use.
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self._store = store
        gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, world_size, timeout)
        self._plain = dist.ProcessGroup(store, rank, world_size)
        for group in (self, self._plain):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # noqa: SLF001
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)  # noqa: SLF001
        self.plan = check_flat(fixed(load_plan(plan)))
        self._averager: FlatAverager | None = None
        if world_size > 1:
            meeting = PrefixStore("gradwire", store)
            mailbox = TorchMailbox(self, timeout_s=timeout.total_seconds(), store=meeting)
            self._averager = FlatAverager(self.plan, mailbox)
            weakref.finalize(self, self._averager.close)
            _agree(self.plan, mailbox)

    @property
    def encoded_calls(self) -> int:
        """Number of all-reduces that were encoded."""
        return 0 if self._averager is None else self._averager.calls

    @property
    def sent_bytes(self) -> int:
        """Bytes sent by encoded all-reduces."""
        return 0 if self._averager is None else self._averager.sent_bytes

    def get_group_store(self) -> Store:
        """Return where the ranks meet."""
        return self._store

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return `gradwire`."""
        return NAME

    def allreduce(  # type: ignore[override]
        self,
        tensors: Any,  # noqa: ANN401
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> dist.Work:
        """Encode what can be, and leave the rest to Gloo."""
        options = args[0] if args else kwargs.get("opts")
        if isinstance(options, dist.AllreduceOptions) and self._averager is not None:
            is_sum, is_mean = (options.reduceOp == op for op in _ENCODED_OPS)
            if (is_sum or is_mean) and len(tensors) == 1 and _is_encodable(tensors[0]):
                work = self._averager.start(tensors[0], is_sum=is_sum)
                if work is not None:
                    return work
        plain: dist.Work = self._plain.allreduce(tensors, *args, **kwargs)
        return plain


def _passed_on(name: str) -> Callable[..., dist.Work]:
    def call(self: GradwireProcessGroup, *args: Any, **kwargs: Any) -> dist.Work:  # noqa: ANN401
        work: dist.Work = getattr(self._plain, name)(*args, **kwargs)
        return work

    call.__name__ = name
    call.__doc__ = "Leave it to Gloo."
    return call


# Inherited, these would run with Python's lock held, for which Gloo's thread may wait
# while it holds the lock of Gloo's queue: the two would never part.
for _name in _PASSED_ON:
    if hasattr(dist.ProcessGroup, _name):
        setattr(GradwireProcessGroup, _name, _passed_on(_name))


def _is_encodable(tensor: Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.dtype in _ENCODED_DTYPES


def _agree(plan: Plan, mailbox: TorchMailbox) -> None:
    digests = {r: str(d) for r, d in enumerate(mailbox.gather_objects(plan.digest()))}
    if len(set(digests.values())) > 1:
        detail = f"plans differ (digests {digests}); set {PLAN_VARIABLE} alike on all ranks"
        raise RankMismatchError("init_process_group", mailbox.rank, detail, digests)


def _create(options: Any, plan: Plan | ReducerSpec | str | Path | None) -> GradwireProcessGroup:  # noqa: ANN401 - torch's private class
    chosen = os.environ.get(PLAN_VARIABLE) if plan is None else plan
    return GradwireProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, chosen
    )


def register() -> None:
    """Make the back end known to `torch.distributed`; importing the module does it."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


register()
