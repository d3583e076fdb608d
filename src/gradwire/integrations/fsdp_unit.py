"""Unit: one `fully_shard`ed module, and how its gradients lie in flat tensors.

The only place that reads FSDP2's private state.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError
from gradwire.integrations.fsdp_comm import (
    Averager,
    EncodedAllGather,
    EncodedReduceScatter,
    all_reduce_hook,
)
from gradwire.key import name_hash
from gradwire.plan import Parameter
from gradwire.spec import Entry


class Unit:
    """One module that FSDP gathers and reduces as a whole.

    Args:
        module: The module.
        name: Its name in the model.
    """

    def __init__(self, module: FSDPModule, name: str) -> None:
        self.module = module
        self.name = name or "the root module"
        self._groups: list[Any] = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
        self._sharded: list[Any] = [
            p for g in self._groups for p in g.fsdp_params if p.sharded_param.requires_grad
        ]
        self._names = _names(module, name)

    @property
    def is_trained(self) -> bool:
        """Whether it has parameters of its own with a gradient."""
        return bool(self._sharded)

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that its parameters are sharded over."""
        group: dist.ProcessGroup = self._groups[0].mesh_info.shard_process_group
        return group

    @property
    def device(self) -> torch.device:
        """Where its gradients live."""
        device: torch.device = self._groups[0].device
        return device

    def refuse(self) -> None:
        """Refuse, in words, what cannot be combined with gradwire.

        Raises:
            SpecError: Several groups of parameters, or FSDP's own HSDP.
        """
        if len(self._groups) > 1:
            raise SpecError(f"meshes of {self.name}", len(self._groups), "1 for all parameters")
        if self._groups[0]._is_hsdp:  # noqa: SLF001 - no public way to read it
            remedy = (
                'one dimension: shard over mesh["shard"], and attach(replicate=mesh["replicate"])'
            )
            raise SpecError(f"mesh of {self.name}", "two dimensions", remedy)

    def parameters(self) -> list[Parameter]:
        """Return its parameters, whole."""
        return [self._describe(p, "", p._orig_size) for p in self._sharded]  # noqa: SLF001

    def pieces(self, rank: int) -> list[Parameter]:
        """Return a rank's shards of them, padded, in the order of the flat tensor."""
        return [self._describe(p, f"{rank}@", p.padded_sharded_param_size) for p in self._sharded]

    def shards(self) -> dict[str, Tensor]:
        """Return this rank's shards of the parameters' values."""
        return {self._names[id(p.sharded_param)]: p.sharded_param.to_local() for p in self._sharded}

    def _describe(self, sharded: Any, prefix: str, shape: torch.Size) -> Parameter:  # noqa: ANN401 - private type
        name = prefix + self._names[id(sharded.sharded_param)]
        policy = sharded.mp_policy
        dtype = policy.reduce_dtype or policy.param_dtype or sharded.sharded_param.dtype
        return Parameter(
            name, Entry(name_hash(name), tuple(shape)), str(dtype).removeprefix("torch.")
        )

    def reduce_by(self, sync: Synchronizer, between: dist.ProcessGroup | None) -> None:
        """Have FSDP hand its gradients over.

        Args:
            sync: Averages them.
            between: The replicas of this rank's shard, where only the
                exchange between those is encoded.
        """
        if between is None:
            ranks = range(self.group.size())
            names = [p.name for rank in ranks for p in self.pieces(rank)]
            numel = sum(p.entry.numel for rank in ranks for p in self.pieces(rank))
            averager = Averager(sync, tuple(names), numel)
            plain = self._groups[0]._reduce_scatter_comm  # noqa: SLF001 - no public way to read it
            self.module.set_custom_reduce_scatter(EncodedReduceScatter(averager, plain))
            return
        own = self.pieces(self.group.rank())
        averager = Averager(sync, tuple(p.name for p in own), sum(p.entry.numel for p in own))
        self.module.set_all_reduce_hook(all_reduce_hook(averager, between))

    def gather_by(self, codec: str) -> None:
        """Have FSDP gather parameters in fewer bits."""
        plain = self._groups[0]._all_gather_comm  # noqa: SLF001 - no public way to read it
        self.module.set_custom_all_gather(EncodedAllGather(codec, self.name, plain))


def _names(module: FSDPModule, prefix: str) -> dict[int, str]:
    return {id(p): name for name, p in module.named_parameters(prefix=prefix)}  # type: ignore[attr-defined]
