"""What FSDP2 calls in place of its own collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from gradwire.codecs.base import Segment, Segments, build
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError, UnknownIdError
from gradwire.key import Key, name_hash
from gradwire.spec import CodecSpec, Float, Quantize

PARAMETER_CODECS: dict[str, CodecSpec] = {
    "bf16": Float("bfloat16"),
    "int8": Quantize(8, rounding="nearest"),
}
"""How parameters can be gathered; without noise, so that they do not flicker."""


class Averager:
    """Averages flat tensors of one module through a synchronizer, and waits for each.

    Args:
        sync: Owns residuals and step count.
        names: What a flat tensor holds, in order, when all parameters have a
            gradient.
        numel: Values of such a tensor.
    """

    def __init__(self, sync: Synchronizer, names: tuple[str, ...], numel: int) -> None:
        self._sync = sync
        self._names = names
        self._numel = numel

    def fits(self, flat: Tensor) -> bool:
        """Return whether all parameters of the module have a gradient this time."""
        return flat.numel() == self._numel

    def average(self, flat: Tensor) -> Tensor:
        """Replace `flat` by its mean over ranks, or this rank's part of it.

        Raises:
            CollectiveError: Something went wrong on this rank or another.
        """
        if self._sync.begins_step:
            # After FSDP's own callback, which may reduce the last gradients.
            engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - no public way
            engine.queue_callback(self._sync.end_backward)
        outcome: Future[Tensor] = Future()

        def deliver(mean: Tensor | None, error: BaseException | None) -> None:
            if mean is None:
                outcome.set_exception(error or AssertionError("neither a mean nor an error"))
            else:
                outcome.set_result(mean)

        self._sync.reduce_next(flat, self._names, deliver)
        return outcome.result()


class EncodedReduceScatter(ReduceScatter):
    """Sends gradients to the owners of their shards, encoded.

    Args:
        averager: Does it.
        plain: What FSDP used before; serves where a parameter has no gradient.
    """

    def __init__(self, averager: Averager, plain: ReduceScatter) -> None:
        self._averager = averager
        self._plain = plain

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Allocate a flat tensor."""
        return self._plain.allocate(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ANN401 - ReduceOp, or a struct of torch's with factors
        async_op: bool = False,  # noqa: FBT001, FBT002 - FSDP's signature
    ) -> dist.Work | None:
        """Write the mean (or sum) over ranks of the own shard into `output_tensor`.

        Raises:
            SpecError: An op other than sum and average.
        """
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            remedy = "AVG or SUM: call set_force_sum_reduction_for_comms(True)"
            raise SpecError("reduce-scatter op", str(op), remedy)
        if not self._averager.fits(input_tensor):
            return self._plain(output_tensor, input_tensor, group, op, async_op)
        ranks = group.size()
        mean = self._averager.average(input_tensor).view(ranks, -1)[group.rank()]
        output_tensor.copy_(mean)
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(ranks)
        return None


class Settings(Protocol):
    """What the user may set on a module at any time."""

    all_reduce_grads: bool
    gradient_divide_factor: float | None


def all_reduce_hook(
    averager: Averager, replicas: dist.ProcessGroup, settings: Settings
) -> Callable[[Tensor], None]:
    """Return what averages reduced shards over replicas, for `set_all_reduce_hook`.

    Without `all_reduce_grads`, shards are added up until they are to be averaged.
    """
    kept: list[Tensor] = []

    def hook(reduced: Tensor) -> None:
        if kept:
            reduced.add_(kept.pop())
        if not settings.all_reduce_grads:
            kept.append(reduced.clone())
            reduced.zero_()
            return
        if averager.fits(reduced):
            reduced.copy_(averager.average(reduced))
        else:
            dist.all_reduce(reduced, group=replicas)
            reduced.div_(replicas.size())
        if settings.gradient_divide_factor is not None:  # then FSDP wants a sum
            reduced.mul_(replicas.size())

    return hook


class EncodedAllGather(AllGather):
    """Gathers parameters in fewer bits; all ranks use the decoded ones.

    A rank decodes its own shard as well, or it would compute with other values.

    Args:
        codec: One of `PARAMETER_CODECS`.
        name: The module's, for the stream.
        plain: What FSDP used before; serves for mixed dtypes.

    Raises:
        UnknownIdError: No such codec.
    """

    def __init__(self, codec: str, name: str, plain: AllGather) -> None:
        if codec not in PARAMETER_CODECS:
            raise UnknownIdError("codec of parameters", codec, sorted(PARAMETER_CODECS))
        self._codec = build(PARAMETER_CODECS[codec])
        self._stream = name_hash(name)
        self._plain = plain

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Allocate a flat tensor."""
        return self._plain.allocate(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: FBT001, FBT002 - FSDP's signature
    ) -> dist.Work | None:
        """Fill `output_tensor` with every rank's decoded shard."""
        if not input_tensor.dtype.is_floating_point:
            return self._plain(output_tensor, input_tensor, group, async_op)
        numel, ranks = input_tensor.numel(), group.size()
        values = input_tensor.to(torch.float32)
        payload = self._codec.encode(values, self._segments(0, numel), Key(0, 0, group.rank()))
        rows = payload.new_empty(ranks * payload.numel())
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(rows, payload, group=group)
        is_float32 = output_tensor.dtype == torch.float32
        whole = output_tensor if is_float32 else values.new_empty(output_tensor.numel())
        for rank, row in enumerate(rows.view(ranks, 1, -1)):
            self._codec.decode(row, self._segments(rank * numel, numel), whole)
        if not is_float32:
            output_tensor.copy_(whole)
        return None

    def _segments(self, offset: int, numel: int) -> Segments:
        return Segments.of([Segment(offset, 0, numel, 0, self._stream)])
