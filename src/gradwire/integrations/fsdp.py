"""FSDP2: encoded reduce-scatters, or encoded all-reduces between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from gradwire.comm.base import Mailbox
from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.scheme import Variant
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError, UnknownIdError
from gradwire.integrations.agreement import Options, agree_on, fixed
from gradwire.integrations.fsdp_comm import PARAMETER_CODECS
from gradwire.integrations.fsdp_reducer import ScatterReducer
from gradwire.integrations.fsdp_unit import Unit
from gradwire.plan import Assignment, Parameter, Plan, Rule, load_plan
from gradwire.spec import Auto, Quantize, ReducerSpec, TwoPhase

_Pieces = tuple[list[Parameter], Variant]

DEFAULT_PLAN = Plan((Rule(TwoPhase(Quantize(8), feedback=False)),))
"""8 bits and no residual: one of the size of the whole model on each rank would
give back much of the memory that sharding saves."""


def find_sharded(model: object) -> nn.Module | None:
    """Return the model if `fully_shard` was applied to it or to modules inside.

    Raises:
        TypeError: It is sharded by the older FullyShardedDataParallel.

    Example:
        >>> find_sharded(nn.Linear(1, 1)) is None
        True
    """
    module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(module, nn.Module):
        return None
    if any(isinstance(m, FullyShardedDataParallel) for m in module.modules()):
        raise TypeError(
            "FullyShardedDataParallel (FSDP1) is not served: shard the model with"
            " torch.distributed.fsdp.fully_shard instead"
        )
    return module if any(isinstance(m, FSDPModule) for m in module.modules()) else None


def attach_sharded(
    model: nn.Module,
    plan: Plan | ReducerSpec | Auto | str | Path | None = None,
    *,
    parameters: str | None = None,
    link: Link | None = None,
    check_every: int = 0,
    on_step: Callable[[StepStats], None] | None = None,
) -> Synchronizer:
    """Compress the gradients of a `fully_shard`ed model from now on; see `attach`.

    On a mesh of one dimension, gradients travel encoded to the owners of
    their shards. On one of two (HSDP), sharding stays as it is, and what is
    encoded is the all-reduce between ranks that hold the same shard.

    Args:
        model: The sharded model.
        plan: As for `attach`; None is 8 bits without a residual.
        parameters: How parameters are gathered: `"bf16"`, `"int8"` or, by
            default, as they are.
        link: Make transfers last as long as on such a link.
        check_every: As for `attach`; on a mesh of two dimensions only.
        on_step: As for `attach`.

    Raises:
        SpecError: An option or a setting of the model asks for what cannot be.
        RankMismatchError: Ranks differ.
    """
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, FSDPModule)]
    units = [unit for unit in (Unit(m, name) for name, m in modules) if unit.is_trained]
    if not units:
        raise SpecError("parameters", "none with a gradient", "at least one to be trained")
    replicas = units[0].replicas
    mailbox: Mailbox = TorchMailbox(replicas or units[0].group)
    try:
        options = Options(link, check_every, on_step)

        def read() -> tuple[Plan, list[Parameter]]:
            options.check(units[0].device)
            _refuse(units, parameters, check_every)
            return DEFAULT_PLAN if plan is None else fixed(load_plan(plan)), [
                p for unit in units for p in unit.parameters()
            ]

        chosen, whole = agree_on(read, options, mailbox)
        if link is not None:
            mailbox = ShapedMailbox(mailbox, link)
        assigned = chosen.assign(whole, mailbox.world_size)
        pieces, variant = _between(units, assigned) if replicas else _within(units, assigned)
        sync = Synchronizer(
            chosen,
            pieces,
            mailbox,
            check_every=check_every,
            on_step=on_step,
            replicas=lambda: {name: p for unit in units for name, p in unit.shards().items()},
            variant=variant,
        )
    except BaseException:
        mailbox.close()
        raise
    for unit in units:
        if replicas is None:
            unit.scatter_by(sync)
        else:
            unit.average_by(sync, replicas)
        if parameters is not None:
            unit.gather_by(parameters)
    return sync


def _within(units: Sequence[Unit], assigned: Mapping[str, Assignment]) -> _Pieces:
    """Return what travels to the owners of shards: each rank's piece of each parameter."""
    ranks = range(dist.get_world_size(units[0].group))
    pieces = [piece for unit in units for rank in ranks for piece in unit.pieces(rank)]
    assignments = {p.name: assigned[p.name.partition("@")[2]] for p in pieces}
    for assignment in assignments.values():
        ScatterReducer(assignment.reducer)  # refuses here what it would refuse in mid-training
    return pieces, Variant(assignments, ScatterReducer, dense_passes=1)


def _between(units: Sequence[Unit], assigned: Mapping[str, Assignment]) -> _Pieces:
    """Return what is averaged over the replicas of this rank's shard."""
    own = dist.get_rank(units[0].group)
    pieces = [piece for unit in units for piece in unit.pieces(own)]
    assignments = {p.name: assigned[p.name.partition("@")[2]] for p in pieces}
    return pieces, Variant(assignments, label=f"shard{own}/")


def _refuse(units: Sequence[Unit], parameters: str | None, check_every: int) -> None:
    """Refuse, in words, what would go wrong later."""
    if parameters is not None and parameters not in PARAMETER_CODECS:
        raise UnknownIdError("codec of parameters", parameters, sorted(PARAMETER_CODECS))
    replicas = units[0].replicas
    if replicas is None and check_every:
        raise SpecError("check_every", check_every, "0: of a sharded model there are no replicas")
    for unit in units:
        unit.refuse()
        if _ranks(unit.replicas) != _ranks(replicas):
            allowed = f"that of {units[0].name}, {_ranks(replicas)}"
            raise SpecError(f"replicas of {unit.name}", _ranks(unit.replicas), allowed)


def _ranks(group: dist.ProcessGroup | None) -> list[int]:
    return [] if group is None else dist.get_process_group_ranks(group)
