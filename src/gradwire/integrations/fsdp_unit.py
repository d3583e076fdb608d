"""Unit: one `fully_shard`ed module, and how its gradients lie in flat tensors.

The only place that reads FSDP2's private state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

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
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same shard, if FSDP averages over such (HSDP)."""
        group: dist.ProcessGroup | None = getattr(
            self._groups[0].mesh_info, "replicate_process_group", None
        )
        return group

    @property
    def device(self) -> torch.device:
        """Where its gradients live."""
        device: torch.device = self._groups[0].device
        return device

    def refuse(self) -> None:
        """Refuse, in words, what cannot be combined with gradwire.

        Raises:
            SpecError: Several groups of parameters.
        """
        if len(self._groups) > 1:
            raise SpecError(f"meshes of {self.name}", len(self._groups), "1 for all parameters")

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

    def scatter_by(self, sync: Synchronizer) -> None:
        """Have FSDP send gradients to the owners of their shards through `sync`."""
        pieces = [piece for rank in range(self.group.size()) for piece in self.pieces(rank)]
        plain = self._groups[0]._reduce_scatter_comm  # noqa: SLF001 - no public way to read it
        self.module.set_custom_reduce_scatter(EncodedReduceScatter(_averager(sync, pieces), plain))

    def average_by(self, sync: Synchronizer, replicas: dist.ProcessGroup) -> None:
        """Have FSDP average reduced shards over their replicas through `sync`.

        To the group that reduces, the mesh has one dimension from now on, so
        that it leaves the other one to the hook; to parameters, checkpoints
        and the user it still has two.
        """
        (group,) = self._groups
        before = group.mesh_info
        kept = {f.name: getattr(before, f.name) for f in fields(FSDPMeshInfo) if f.init}
        group.mesh_info = FSDPMeshInfo(**kept | {"replicate_mesh_dim": None})
        if group.post_forward_mesh_info is before:
            group.post_forward_mesh_info = group.mesh_info
        averager = _averager(sync, self.pieces(self.group.rank()))
        self.module.set_all_reduce_hook(all_reduce_hook(averager, replicas, group))

    def gather_by(self, codec: str) -> None:
        """Have FSDP gather parameters in fewer bits."""
        plain = self._groups[0]._all_gather_comm  # noqa: SLF001 - no public way to read it
        self.module.set_custom_all_gather(EncodedAllGather(codec, self.name, plain))


def _names(module: FSDPModule, prefix: str) -> dict[int, str]:
    return {id(p): name for name, p in module.named_parameters(prefix=prefix)}  # type: ignore[attr-defined]


def _averager(sync: Synchronizer, pieces: Sequence[Parameter]) -> Averager:
    return Averager(sync, tuple(p.name for p in pieces), sum(p.entry.numel for p in pieces))
