"""DistributedDataParallel: finding it in a model, and the communication hook."""

# No `from __future__ import annotations` here: DDP reads the hook's annotations.

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.comm.base import Mailbox
from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_collective import DistGroup
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.bucket import place_of
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError
from gradwire.integrations.agreement import Options, agree, device_of, stranger, trained
from gradwire.integrations.clock import Clock
from gradwire.integrations.machine import find_machine
from gradwire.integrations.pilot import AutoPilot, Task
from gradwire.integrations.plain import average
from gradwire.plan import AUTO, DENSE, Parameter, Plan
from gradwire.planner.shortlist import candidates
from gradwire.spec import Auto, ReducerSpec, parse_reducer

_WRAPPED_IN = ("_orig_mod", "module", "_forward_module", "model", "strategy")
_LOOKED_AT_EVERY = 100
_SAMPLE = 1 << 18
"""Values of each gradient from which the planner learns what codecs lose."""


def attach_ddp(
    model: object,
    plan: Plan | ReducerSpec | Auto | str | Path | None = None,
    *,
    link: Link | None = None,
    check_every: int = 0,
    on_step: Callable[[StepStats], None] | None = None,
    mesh: DeviceMesh | None = None,
    mailbox: Mailbox | None = None,
) -> Synchronizer:
    """Compress the gradients of a DistributedDataParallel model; see `attach`.

    `mailbox` connects the ranks in place of the model's process group, and is
    closed with the result.
    """
    ddp = find_ddp(model)
    if ddp.static_graph:
        warnings.warn(
            "DDP(static_graph=True): make one synchronised step before the first no_sync(),"
            " or DDP fails to reduce gradients",
            UserWarning,
            stacklevel=2,
        )
    mailbox = mailbox or TorchMailbox(ddp.process_group)
    group: DistGroup | None = None
    try:
        options = Options(link, check_every, on_step, mesh)
        chosen, parameters = agree(ddp, AUTO if plan is None else plan, options, mailbox)
        device = device_of(ddp)
        group = _group(ddp, device)
        if link is not None:
            mailbox = ShapedMailbox(mailbox, link)
        reference = weakref.ref(ddp)
        chosen, pilot = _pilot(ddp, chosen, parameters, options, mailbox)
        watch = _Watch(ddp, None if pilot is None else pilot.clock)
        sync = Synchronizer(
            chosen,
            parameters,
            mailbox,
            device=device,
            group=group,
            hold_unused=ddp.find_unused_parameters,
            check_every=check_every,
            on_step=on_step,
            replicas=lambda: _replicas(reference),
            forwards=lambda: watch.forwards,
            pilot=pilot,
        )
        ddp.register_comm_hook(_Hook(sync, watch, device, ddp.process_group), _hook)
        ddp.register_forward_pre_hook(watch)
        if watch.clock is not None:
            ddp.register_forward_hook(watch.ends)
    except BaseException:
        mailbox.close()
        if group is not None:
            group.close()
        raise
    return sync


def _pilot(
    ddp: DDP, plan: Plan, parameters: list[Parameter], options: Options, mailbox: Mailbox
) -> tuple[Plan, AutoPilot | None]:
    """Return the plan to begin with, and what chooses further ones where that is asked for."""
    if plan.auto is None:
        return plan, None
    begin = replace(plan, auto=None)
    assigned = plan.assign(parameters, mailbox.world_size)
    if mailbox.world_size == 1 or all(a.reducer == DENSE for a in assigned.values()):
        return begin, None  # nothing that could be compressed
    if device_of(ddp).type != "cpu":
        return begin, None  # a GPU's times are not those at which its hooks are called
    specs = [parse_reducer(name) for name in candidates(plan.auto, mailbox.world_size)]
    is_free = options.link is None
    machine = find_machine(mailbox, specs, is_kept=is_free)
    is_usual = all(p.dtype == "float32" and not p.is_sparse for p in parameters)
    may_leave = is_free and is_usual and not options.check_every
    task = Task(parameters, ddp.bucket_bytes_cap, mailbox.world_size, may_leave)
    return plan, AutoPilot(plan, task, machine, mailbox)


def _group(ddp: DDP, device: torch.device) -> DistGroup | None:
    """Return what carries gradients that are not on the CPU."""
    return None if device.type == "cpu" else DistGroup(ddp.process_group, device)


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


class _Watch:
    """Runs before each forward pass: counts them, and looks for new parameters."""

    def __init__(self, ddp: DDP, clock: Clock | None = None) -> None:
        self.clock = clock
        self.names = {id(p): name for name, p in trained(ddp).items()}
        self.forwards = 0
        self._model = id(ddp)
        self._dtype = next(ddp.parameters()).dtype

    # Not compiled, or a compiled model would be compiled anew for each count.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, ddp: DDP, _inputs: object) -> None:
        """Refuse parameters that came after attaching: DDP does not know them."""
        if id(ddp) != self._model:
            return  # a copy has no hook
        if (dtype := next(ddp.parameters()).dtype) != self._dtype:
            allowed = f"{self._dtype}, as attached: DDP averages nothing after a cast; cast before"
            raise SpecError("dtype of the model", str(dtype), allowed)
        if self.forwards % _LOOKED_AT_EVERY < 3:  # noqa: PLR2004 - at the start, then rarely
            for name, p in trained(ddp).items():
                if id(p) not in self.names:
                    raise stranger(name)
        self.forwards += torch.is_grad_enabled()
        if self.clock is not None and torch.is_grad_enabled():
            self.clock.forward_begins()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def ends(self, ddp: DDP, _inputs: object, _output: object) -> None:
        """Note the end of a forward pass."""
        if self.clock is not None and id(ddp) == self._model and torch.is_grad_enabled():
            self.clock.forward_ends()


class _Hook:
    """What DDP keeps for us: the synchronizer, and names by parameter.

    It must not hold the DDP model, which would then never be freed.
    """

    def __init__(
        self,
        sync: Synchronizer,
        watch: _Watch,
        device: torch.device,
        group: dist.ProcessGroup,
    ) -> None:
        self.sync = sync
        self.clock = watch.clock
        self.devices: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
        self._names = watch.names
        self._group = group
        self._left: list[tuple[int, int]] = []

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in a copy of the model: DDP gives copies a reducer without hook."""
        return type(None), ()

    def names(self, bucket: GradBucket) -> tuple[str, ...]:
        """Return the names of a bucket's parameters, in order."""
        return tuple(self._names[id(p)] for p in bucket.parameters())

    def look(self, names: tuple[str, ...], bucket: GradBucket) -> None:
        """Let the clock see a bucket whose gradients are there."""
        if self.clock is None:
            return
        if self.clock.is_sampling and not bucket.buffer().is_sparse:
            for name, gradient in zip(names, bucket.gradients(), strict=True):
                self.clock.samples[name] = _sample(gradient)
        self.clock.bucket(names, is_last=bucket.is_last())

    def leave(self, names: tuple[str, ...], bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average a bucket as DDP does without a hook."""
        place = place_of(self.sync.steps_done, bucket.index(), names)
        buffer = bucket.buffer()
        self._left.append((len(names), buffer.nbytes))
        if bucket.is_last():
            self.sync.pass_by(self._left)
            self._left = []
        return average(buffer, self._group, place)


def _hook(state: _Hook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Start averaging a bucket; DDP calls this once per bucket, in order."""
    names = state.names(bucket)
    state.look(names, bucket)
    if state.sync.is_left_to_backend:
        return state.leave(names, bucket)
    arrived: torch.futures.Future[tuple[Tensor | None, BaseException | None]] = (
        torch.futures.Future(devices=state.devices)
    )
    result = arrived.then(_unwrap)
    state.sync.reduce(
        bucket.index(),
        bucket.buffer(),
        names,
        lambda mean, error: arrived.set_result((mean, error)),
        is_last=bucket.is_last(),
    )
    return result


def _sample(gradient: Tensor) -> Tensor:
    """Copy the first values of a gradient."""
    return gradient.detach().reshape(-1)[:_SAMPLE].clone()


def _unwrap(arrived: torch.futures.Future[tuple[Tensor | None, BaseException | None]]) -> Tensor:
    mean, error = arrived.value()
    if error is not None:
        raise error
    assert mean is not None
    return mean


def _replicas(reference: weakref.ref[DDP]) -> dict[str, Tensor]:
    ddp = reference()
    return {} if ddp is None else {n: p.detach() for n, p in trained(ddp).items()}
