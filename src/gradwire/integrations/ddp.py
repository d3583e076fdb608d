"""DistributedDataParallel: `attach`, and the communication hook behind it."""

# No `from __future__ import annotations` here: DDP reads the hook's annotations.

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.comm.base import Mailbox
from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.layout import storage_shape
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import GradwireError, RankMismatchError, SpecError
from gradwire.key import name_hash
from gradwire.plan import Parameter, Plan, load_plan
from gradwire.spec import Entry, ReducerSpec

_WRAPPED_IN = ("_orig_mod", "module", "_forward_module", "model", "strategy")
_LOOKED_AT_EVERY = 100


def attach(
    model: object,
    plan: Plan | ReducerSpec | str | Path | None = None,
    *,
    link: Link | None = None,
    check_every: int = 0,
    on_step: Callable[[StepStats], None] | None = None,
) -> Synchronizer:
    """Compress the gradients of a DistributedDataParallel model from now on.

    Call it on every rank, once, after wrapping the model. The training loop
    stays as it is.

    Args:
        model: A DDP model, or an object with exactly one inside (compiled, or
            wrapped by Lightning, Accelerate or the like).
        plan: A plan, the path of a plan file, a reducer spec or its short name
            (`none bf16 fp16 fp8 int8 ... int1 sign topk threshold random_k
            low_rank`). None is the default: 4 bits with error feedback for
            matrices of 1,024 values or more, float32 for the rest.
        link: Make transfers last as long as on such a link, to try one out.
        check_every: Every so many steps verify that nothing is lost and that
            all ranks hold the same parameters; 0 for never.
        on_step: Called with each step's `StepStats` when the next one begins.

    Returns:
        The handle: `stats()`, `state_dict()`, `load_state_dict(d)`,
        `rescale(f)`, `close()`.

    Raises:
        TypeError: No DDP model in `model`, or several.
        SpecError: The plan asks for what cannot exist, or the model uses what
            cannot be combined with a hook; says which.
        RankMismatchError: Ranks differ in plan, parameters or sizes; raised on
            every rank.

    Example:
        >>> import tempfile
        >>> import torch.distributed as dist
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> ddp = DDP(nn.Linear(64, 32))
        >>> sync = attach(ddp, "int8")
        >>> ddp(torch.ones(2, 64)).sum().backward()
        >>> sync.stats().steps_done
        1
        >>> sync.close()
        >>> dist.destroy_process_group()
    """
    ddp = find_ddp(model)
    if ddp.static_graph:
        warnings.warn(
            "DDP(static_graph=True): make one synchronised step before the first no_sync(),"
            " or DDP fails to reduce gradients",
            UserWarning,
            stacklevel=2,
        )
    mailbox: Mailbox = TorchMailbox(ddp.process_group)
    try:
        chosen, parameters = _agree(ddp, plan, mailbox)
        if link is not None:
            mailbox = ShapedMailbox(mailbox, link)
        reference = weakref.ref(ddp)
        forwards = _Forwards()
        sync = Synchronizer(
            chosen,
            parameters,
            mailbox,
            hold_unused=ddp.find_unused_parameters,
            check_every=check_every,
            on_step=on_step,
            replicas=lambda: _replicas(reference),
            forwards=lambda: forwards.count,
        )
        ddp.register_comm_hook(_Hook(sync, ddp), _hook)
        ddp.register_forward_pre_hook(forwards)
    except BaseException:
        mailbox.close()
        raise
    return sync


def find_ddp(model: object) -> DDP:
    """Return the one DDP model in an object.

    Args:
        model: A DDP model, a module that contains one, or an object that
            holds one under a usual name (`_orig_mod`, `module`,
            `_forward_module`, `model`, `strategy`).

    Raises:
        TypeError: There is none, or there are several; says what was found.

    Example:
        >>> find_ddp(nn.Linear(1, 1))
        Traceback (most recent call last):
        ...
        TypeError: no DistributedDataParallel model in Linear; wrap the model before attaching
    """
    found = {id(ddp): ddp for ddp in _ddps(model, depth=3)}
    if len(found) == 1:
        return next(iter(found.values()))
    kind = type(model).__name__
    if not found:
        sharded = [c.__name__ for c in type(model).__mro__ if "FSDP" in c.__name__]
        if sharded:
            raise TypeError(f"{kind} is sharded ({sharded[0]}); attach takes DDP models only")
        raise TypeError(
            f"no DistributedDataParallel model in {kind}; wrap the model before attaching"
        )
    inside = ", ".join(type(ddp.module).__name__ for ddp in found.values())
    raise TypeError(
        f"{len(found)} DistributedDataParallel models in {kind} (of {inside});"
        " attach each by itself"
    )


def _ddps(thing: object, depth: int) -> Iterator[DDP]:
    if isinstance(thing, DDP):
        yield thing
        return
    if isinstance(thing, nn.Module):
        yield from (m for m in thing.modules() if isinstance(m, DDP))
    if depth and not isinstance(thing, (type, torch.Tensor)):
        for name in _WRAPPED_IN:
            inner = getattr(thing, name, None)
            if inner is not None:
                yield from _ddps(inner, depth - 1)


def _agree(
    ddp: DDP, plan: Plan | ReducerSpec | str | Path | None, mailbox: Mailbox
) -> tuple[Plan, list[Parameter]]:
    """Read plan and parameters here, and make sure that all ranks read the same."""
    problem: Exception | None = None
    chosen, parameters = Plan(()), []
    try:
        chosen = load_plan(plan)
        parameters = _parameters(ddp)
        _refuse(ddp)
    except (GradwireError, TypeError) as error:
        problem = error
    mine = {
        "problem": str(problem) if problem else "",
        "plan": chosen.digest(),
        "parameters": [tuple(p) for p in parameters],
    }
    everyone = [v for v in mailbox.gather_objects(mine) if isinstance(v, dict)]
    if problem is not None:
        raise problem
    digests = {r: str(v["plan"]) for r, v in enumerate(everyone)}
    for rank, theirs in enumerate(everyone):
        difference = _difference(everyone[0], theirs, rank)
        if difference:
            raise RankMismatchError("attach", mailbox.rank, difference, digests)
    return chosen, parameters


def _difference(first: Mapping[str, Any], theirs: Mapping[str, Any], rank: int) -> str | None:
    """Say how a rank's reading differs from rank 0's, or return None."""
    for number, reading in ((0, first), (rank, theirs)):
        if reading["problem"]:
            return f"rank {number} refused: {reading['problem']}"
    if first["plan"] != theirs["plan"]:
        return f"plans differ: digest {first['plan']} on rank 0, {theirs['plan']} on rank {rank}"
    ours, others = first["parameters"], theirs["parameters"]
    if len(ours) != len(others):
        return f"{len(ours)} parameters on rank 0, {len(others)} on rank {rank}"
    for a, b in zip(ours, others, strict=True):
        if a != b:
            return f"parameters differ: {Parameter(*a)} on rank 0, {Parameter(*b)} on rank {rank}"
    return None


def _trained(ddp: DDP) -> dict[str, nn.Parameter]:
    """Return the parameters DDP synchronises, by name."""
    ignored = set(ddp.parameters_to_ignore) | {
        f"module.{name}" for name in ddp.parameters_to_ignore
    }
    return {
        name: p
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ignored
    }


def _parameters(ddp: DDP) -> list[Parameter]:
    sparse = {
        id(module.weight)
        for module in ddp.module.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return [
        Parameter(
            name,
            Entry(name_hash(name), storage_shape(p)),
            str(p.dtype).removeprefix("torch."),
            id(p) in sparse,
        )
        for name, p in _trained(ddp).items()
    ]


def _refuse(ddp: DDP) -> None:
    """Refuse, in words, what cannot be combined with a hook."""
    for name, p in _trained(ddp).items():
        if p.device.type != "cpu":
            raise SpecError(f"device of {name}", str(p.device), "the CPU; GPUs are not served yet")
        if getattr(p, "_in_backward_optimizers", None):
            raise SpecError(
                f"optimizer of {name}",
                "inside backward",
                "outside of it: it would step before gradients are averaged",
            )
    if ddp.mixed_precision is not None:
        raise SpecError("DDP(mixed_precision)", "set", "None: it brings a hook of its own")
    if getattr(torch._dynamo.config, "optimize_ddp", None) == "python_reducer":  # noqa: SLF001
        raise SpecError(
            "torch._dynamo.config.optimize_ddp",
            "python_reducer",
            "True or False: that reducer does not use hooks",
        )


class _Forwards:
    """Counts forward passes that will have a backward pass."""

    count = 0

    @torch.compiler.disable  # or a compiled model would be compiled anew for each number
    def __call__(self, model: nn.Module, inputs: object) -> None:
        self.count += torch.is_grad_enabled()


class _Hook:
    """What DDP keeps for us: the synchronizer, and names by parameter.

    It must not hold the DDP model, which would then never be freed.
    """

    def __init__(self, sync: Synchronizer, ddp: DDP) -> None:
        self.sync = sync
        self._ddp = weakref.ref(ddp)
        self._names = {id(p): name for name, p in _trained(ddp).items()}
        self._steps = 0

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in a copy of the model: DDP gives copies a reducer without hook."""
        return type(None), ()

    def names(self, bucket: GradBucket) -> tuple[str, ...]:
        """Return the names of a bucket's parameters, in order."""
        if bucket.index() == 0:
            if self._steps % _LOOKED_AT_EVERY < 3:  # noqa: PLR2004 - soon after wrapping, then rarely
                self._look_for_strangers()
            self._steps += 1
        return tuple(self._names[id(p)] for p in bucket.parameters())

    def _look_for_strangers(self) -> None:
        ddp = self._ddp()
        for name, p in _trained(ddp).items() if ddp is not None else ():
            if id(p) not in self._names:
                raise SpecError(
                    f"parameter {name}",
                    "new",
                    "one of those DDP was built with, and would not be synchronised:"
                    " wrap the model again after replacing or unfreezing parameters",
                )


def _hook(state: _Hook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Start averaging a bucket; DDP calls this once per bucket, in order."""
    arrived: torch.futures.Future[tuple[Tensor | None, BaseException | None]] = (
        torch.futures.Future()
    )
    result = arrived.then(_unwrap)
    state.sync.reduce(
        bucket.index(),
        bucket.buffer(),
        state.names(bucket),
        lambda mean, error: arrived.set_result((mean, error)),
        is_last=bucket.is_last(),
    )
    return result


def _unwrap(arrived: torch.futures.Future[tuple[Tensor | None, BaseException | None]]) -> Tensor:
    mean, error = arrived.value()
    if error is not None:
        raise error
    assert mean is not None
    return mean


def _replicas(reference: weakref.ref[DDP]) -> dict[str, Tensor]:
    ddp = reference()
    return {} if ddp is None else {n: p.detach() for n, p in _trained(ddp).items()}
