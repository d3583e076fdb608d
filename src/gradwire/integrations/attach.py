"""`attach`: the one call for models that DDP or FSDP2 has wrapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from gradwire.comm.shaped import Link
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError
from gradwire.integrations.ddp import attach_ddp
from gradwire.integrations.fsdp import attach_sharded, find_sharded
from gradwire.plan import Plan
from gradwire.spec import Auto, ReducerSpec


def attach(
    model: object,
    plan: Plan | ReducerSpec | Auto | str | Path | None = None,
    *,
    link: Link | None = None,
    check_every: int = 0,
    on_step: Callable[[StepStats], None] | None = None,
    parameters: str | None = None,
    mesh: DeviceMesh | None = None,
) -> Synchronizer:
    """Compress the gradients of a data-parallel model from now on.

    Call it on every rank, once, after wrapping the model. The training loop
    stays as it is. Parameters that DDP ignores or averages by itself
    (`delay_all_reduce_named_params`) are left to it.

    Of a `fully_shard`ed model gradients travel encoded to the owners of their
    shards; on a mesh of two dimensions (HSDP), sharding stays as it is, and
    what is encoded is the all-reduce between ranks that hold the same shard,
    as those of several nodes.

    Args:
        model: A DDP model, or an object with exactly one inside (compiled, or
            wrapped by Lightning, Accelerate or the like), or a model that
            `torch.distributed.fsdp.fully_shard` was applied to.
        plan: A plan, the path of a plan file, a reducer spec or its short name
            (`none bf16 fp16 fp8 int8 ... int1 nearest8 ... nearest3 sign topk
            threshold random_k low_rank`; `int8@hierarchical` for nodes of several
            ranks). None is `"auto"` for a DDP model: measure codecs and links now,
            which takes a few seconds, observe the first steps, and use what reaches
            a loss soonest, plain DDP where nothing can be gained; see `decision`.
            `Auto(max_harm=...)` says how many more steps it may take. On a GPU
            `"auto"` is 6 bits with error feedback for matrices of 1,024 values or
            more, float32 for the rest; for a sharded model None is 8 bits without
            feedback.
        link: Make transfers last as long as on such a link, to try one out.
        check_every: Every so many steps verify that nothing is lost and that
            all ranks hold the same parameters; 0 for never.
        on_step: Called with each step's `StepStats` when the next one begins.
        parameters: For a sharded model: gather parameters in `"bf16"` or
            `"int8"` instead of as they are.
        mesh: For a DDP model and a plan with `hierarchical`: the ranks as
            `[nodes, ranks of a node]`. Without it `LOCAL_WORLD_SIZE` says how
            many share a node.

    Returns:
        The handle: `stats()`, `plan`, `decision`, `state_dict()`,
        `load_state_dict(d)`, `rescale(f)`, `close()`.

    Raises:
        TypeError: No model to attach to in `model`, or several.
        SpecError: The plan or an option asks for what cannot exist, or the
            model uses what cannot be combined with a hook; says which.
        RankMismatchError: Ranks differ in plan, parameters, sizes, link or
            `check_every`; raised on every rank.

    Example:
        >>> import tempfile, torch
        >>> import torch.distributed as dist
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 32))
        >>> sync = attach(ddp, "int8")
        >>> ddp(torch.ones(2, 64)).sum().backward()
        >>> sync.stats().steps_done
        1
        >>> sync.close()
        >>> dist.destroy_process_group()
    """
    sharded = find_sharded(model)
    if sharded is not None:
        if mesh is not None:
            raise SpecError("mesh", mesh, "None: a sharded model has one")
        return attach_sharded(
            sharded,
            plan,
            parameters=parameters,
            link=link,
            check_every=check_every,
            on_step=on_step,
        )
    if parameters is not None:
        raise SpecError("parameters", parameters, "None: only those of a sharded model travel")
    return attach_ddp(model, plan, link=link, check_every=check_every, on_step=on_step, mesh=mesh)
