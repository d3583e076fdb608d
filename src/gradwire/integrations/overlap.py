"""Training without DDP: `overlap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it
from torch.optim import Optimizer

from gradwire.comm.base import RankedMailbox
from gradwire.comm.priority import PriorityMailbox
from gradwire.comm.shaped import Link
from gradwire.comm.sockets import connect
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.control.base import Controller
from gradwire.control.overlap import OverlapController
from gradwire.engine.overlap import Overlap, Settings
from gradwire.engine.overlap_layers import find_layers
from gradwire.engine.overlap_stats import OverlapStep
from gradwire.engine.overlap_update import Updater
from gradwire.errors import SpecError
from gradwire.integrations.agreement import settle
from gradwire.integrations.overlap_hooks import Hooks
from gradwire.plan import Parameter, Plan, load_plan
from gradwire.spec import ReducerSpec, check_number, check_whole

_START_TAG = 1 << 60


def overlap(  # noqa: PLR0913 - all but the first three by keyword
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    plan: Plan | ReducerSpec | str | Path | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    controller: Controller | None = None,
    link: Link | None = None,
    check_every: int = 0,
    clip_by_last_norm: float | None = None,
    on_step: Callable[[OverlapStep], None] | None = None,
) -> Overlap:
    """Train data-parallel, with communication hidden behind computation, without DDP.

    Gradients leave as soon as they are accumulated, those of front layers
    first; the next forward of a module waits only for that module's own
    gradients and update. `optimizer.step()` returns at once. The training
    loop stays as it is. Call this on every rank, once, before the first
    forward; all ranks begin with rank 0's parameters and buffers.

    Args:
        model: A plain module, not wrapped in DDP.
        optimizer: What updates its parameters, or several of them; in use as before.
        plan: As for `attach`, but not `"auto"`; or `"aqgb"`: each layer in as
            many bits as can be hidden behind computation. None is 6 bits.
        group: The ranks, or None for all of them.
        controller: Chooses the reducer of each layer while training runs, in
            place of that of an adaptive plan.
        link: Make transfers last as long as on such a link, to try one out.
        check_every: Every so many steps verify that all ranks hold the same
            parameters; 0 for never.
        clip_by_last_norm: Scale gradients by the limit over the norm that the
            averaged gradient had one step before, where that was above the
            limit: `clip_grad_norm_` with a norm that is one step old.
        on_step: Called with each step's `OverlapStep` when the next one begins.

    Returns:
        The handle: `synchronize()`, `accumulate()`, `stats()`, `timeline()`,
        `state_dict()`, `load_state_dict(d)`, `close()`.

    Raises:
        SpecError: The plan or an option asks for what cannot exist, or model or
            optimizer cannot be run layer by layer; says which.
        RankMismatchError: Ranks differ in plan, parameters or options; raised on
            every rank.

    Example:
        >>> import tempfile
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = nn.Linear(64, 32)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = overlap(model, optimizer, "int8")
        >>> for _ in range(3):
        ...     model(torch.ones(2, 64)).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> step.stats().steps_done
        3
        >>> step.close()
        >>> dist.destroy_process_group()
    """
    setup = TorchMailbox(group)
    try:
        settings = Settings(controller, check_every, clip_by_last_norm, on_step)
        reading = _Reading(model, optimizer, plan, settings, link)
        options = {
            "check_every": str(check_every),
            "links": str(link),
            "clip_by_last_norm": str(clip_by_last_norm),
            "controllers": type(controller).__name__,
        }
        settle("overlap", reading.problem, reading.plan, reading.parameters, options, setup)
        sockets = connect(setup, setup.timeout_s)
        mailbox = PriorityMailbox(setup.rank, sockets, link, setup.timeout_s)
        return start(model, reading.optimizers, reading.plan, mailbox, settings)
    finally:
        setup.close()


def start(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    plan: Plan,
    mailbox: RankedMailbox,
    settings: Settings,
) -> Overlap:
    """Join a model, its optimisers and ranks that are connected already.

    Args:
        model: A plain module.
        optimizers: What updates its parameters.
        plan: Which reducer each parameter uses.
        mailbox: Connects the ranks; closed with the result.
        settings: Everything else.
    """
    model = getattr(model, "_orig_mod", model)
    mailbox.measure_latency()
    _copy_from_first(model, mailbox)
    table = find_layers(model, optimizers)
    if settings.controller is None and plan.adaptive is not None:
        settings = settings._replace(controller=OverlapController(plan.adaptive))
    engine = Overlap(plan, table, [Updater(o) for o in optimizers], mailbox, settings)
    Hooks(engine, model, table).install(optimizers)
    return engine


class _Reading:
    """What a rank makes of the arguments, or why it cannot."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        plan: Plan | ReducerSpec | str | Path | None,
        settings: Settings,
        link: Link | None,
    ) -> None:
        self.plan = Plan(())
        self.optimizers: tuple[Optimizer, ...] = ()
        self.parameters: list[Parameter] = []
        self.problem: Exception | None = None
        try:
            self.plan = _given(load_plan(plan))
            self.optimizers = _optimizers(optimizer)
            _check(settings, link)
            _refuse(model, self.optimizers)
            plain = getattr(model, "_orig_mod", model)
            self.parameters = find_layers(plain, self.optimizers).parameters
            for each in self.optimizers:
                Updater(each)
        except Exception as error:  # noqa: BLE001 - raised once the others know
            self.problem = error


def _given(plan: Plan) -> Plan:
    """Refuse a plan that is chosen from what steps of DDP take."""
    if plan.auto is not None:
        allowed = 'a fixed plan, or adaptive: "aqgb" gives each layer what can be hidden'
        raise SpecError("plan", "auto", allowed)
    return plan


def _optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    found = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not found or not all(isinstance(o, Optimizer) for o in found):
        raise SpecError("optimizer", optimizer, "an optimizer of PyTorch, or several")
    return found


def _check(settings: Settings, link: Link | None) -> None:
    if link is not None and not isinstance(link, Link):
        raise SpecError("link", link, "a Link or None")
    check_whole("check_every", settings.check_every, 0)
    limit = settings.clip_by_last_norm
    if limit is not None:
        check_number("clip_by_last_norm", limit, "a number above 0, or None")
        if not limit > 0:
            raise SpecError("clip_by_last_norm", limit, "a number above 0, or None")
    if settings.on_step is not None and not callable(settings.on_step):
        raise SpecError("on_step", settings.on_step, "a function or None")


def _refuse(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Refuse, in words, what cannot be run layer by layer."""
    if not isinstance(model, nn.Module):
        raise SpecError("model", type(model).__name__, "a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, DDP):
            raise SpecError("model", "DistributedDataParallel", "a plain module: pass ddp.module")
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise SpecError(f"{name}.sparse", "True", "False: overlap has no sparse exchange")
    for optimizer in optimizers:
        if hasattr(optimizer.step, "_gradwire"):
            raise SpecError("optimizer", "in use", "one that overlap was not called with before")


def _copy_from_first(model: nn.Module, mailbox: RankedMailbox) -> None:
    """Begin with rank 0's parameters and buffers everywhere, as DDP does."""
    others = range(1, mailbox.world_size)
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    copies = [t.detach().contiguous() for t in tensors]
    pendings = [
        mailbox.exchange(_START_TAG + i, dict.fromkeys(others, copy), {})
        if mailbox.rank == 0
        else mailbox.exchange(_START_TAG + i, {}, {0: copy})
        for i, copy in enumerate(copies)
    ]
    for tensor, copy, pending in zip(tensors, copies, pendings, strict=True):
        pending.result(mailbox.timeout_s)
        with torch.no_grad():
            tensor.copy_(copy)
