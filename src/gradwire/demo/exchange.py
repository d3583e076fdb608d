"""Wraps a model for one method: DDP with a link, and a hook or gradwire."""

# No `from __future__ import annotations` here: DDP reads the hook's annotations.

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.comm.echo import EchoMailbox
from gradwire.comm.shaped import Link
from gradwire.comm.shaped_group import ShapedGroup, new_shaped_group
from gradwire.demo.settings import Method
from gradwire.engine.overlap import Overlap, Settings
from gradwire.errors import UnknownIdError
from gradwire.integrations import overlap
from gradwire.integrations.ddp import attach_ddp
from gradwire.plan import Plan, load_plan
from gradwire.timeline import Span, Timeline


def nothing() -> None:
    """Do nothing."""


def always() -> bool:
    """Say yes."""
    return True


class Settled(NamedTuple):
    """A plan that was chosen in training, and why, for the result."""

    plan: str
    why: str
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A wrapped model, and what its exchange has sent.

    Attributes:
        module: What forward and backward run on, such as the DDP wrapper.
        take_sent_bytes: Returns the payload this rank sent since the last call.
        close: Ends the exchange.
        finish: Runs after backward, before the optimiser.
        wait: Runs after the optimiser of the last step, before parameters
            are looked at.
        record: Returns bits by layer of the latest steps, and the last one's
            timeline, where those are kept.
        spans: Returns what the last step encoded, sent and decoded, in seconds
            of `time.perf_counter`.
        waits: Returns how long the last step's forward waited for gradients,
            and how long transfers ran under computation, where gradients may
            arrive after backward.
        is_ready: Whether steps are as they will go on; the same on all ranks.
        plan: Returns gradwire's plan in use; the same on all ranks.
        settled: Returns the plan in use and why, where one was chosen.
    """

    module: nn.Module
    take_sent_bytes: Callable[[], int]
    close: Callable[[], None] = nothing
    finish: Callable[[], None] = nothing
    wait: Callable[[], None] = nothing
    waits: Callable[[], tuple[float, float]] | None = None
    is_ready: Callable[[], bool] = always
    plan: Callable[[], Plan | None] = lambda: None
    settled: Callable[[], Settled | None] = lambda: None
    record: Callable[[], tuple[dict[str, float], Timeline]] | None = None
    spans: Callable[[], tuple[Span, ...]] = tuple


def wrap(
    method: Method,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    link: Link | None,
    plan: Plan | None = None,
) -> Exchange:
    """Wrap a model so that its gradients are exchanged by one method over a link.

    Args:
        method: How they are exchanged.
        module: The model; equal on all ranks.
        optimiser: What updates it.
        link: The link to imitate; None leaves it to the network.
        plan: Of gradwire, in place of the method's.

    Raises:
        UnknownIdError: There is no such hook.
    """
    if method.hook == "overlap":
        return _with_overlap(gradwire.overlap(module, optimiser, method.plan, link=link), module)
    if method.family == "gradwire":
        return _with_gradwire(method, module, link, plan)
    group: dist.ProcessGroup | None = None
    if link is not None:
        group = new_shaped_group()
        group.link = link
    ddp = _ddp(method, module, group)
    if method.hook is not None:
        _register(ddp, method.hook, group)
    return Exchange(ddp, lambda: _take_group_bytes(group))


def wrap_alone(
    method: Method,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    world_size: int,
) -> Exchange:
    """Wrap a model as a method does, with an exchange that takes no time.

    Args:
        method: How gradients are exchanged.
        module: The model.
        optimiser: What updates it.
        group: This rank and no other.
        world_size: How many ranks are imitated, where gradwire exchanges.
    """
    if method.family != "gradwire":
        ddp = _ddp(method, module, group)
        if method.hook is not None:
            _register(ddp, method.hook, group)
        return Exchange(ddp, lambda: 0)
    mailbox, plan = EchoMailbox(0, world_size), load_plan(method.plan)
    if method.hook == "overlap":
        engine = overlap.start(module, [optimiser], plan, mailbox, Settings(None, 0, None, None))
        return _with_overlap(engine, module)
    ddp = _ddp(method, module, group)
    return Exchange(ddp, lambda: 0, attach_ddp(ddp, plan, mailbox=mailbox).close)


def _ddp(
    method: Method, module: nn.Module, group: dist.ProcessGroup | None
) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        process_group=group,
        bucket_cap_mb=method.bucket_cap_mb,
        gradient_as_bucket_view=method.has_views,
        init_sync=False,
        broadcast_buffers=False,
    )


def _register(ddp: DistributedDataParallel, hook: str, group: dist.ProcessGroup | None) -> None:
    match hook:
        case "fp16":
            ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "bf16":
            ddp.register_comm_hook(group, _bf16)
        case "powersgd1" | "powersgd2":
            ddp.register_comm_hook(_powersgd(group, int(hook[-1])), powerSGD_hook.powerSGD_hook)
        case "powersgd_batched":
            ddp.register_comm_hook(_powersgd(group, 1), powerSGD_hook.batched_powerSGD_hook)
        case _:
            known = ["fp16", "bf16", "powersgd1", "powersgd2", "powersgd_batched"]
            raise UnknownIdError("hook", hook, known)


def _bf16(state: dist.ProcessGroup | None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    # DDP refuses the hook itself without CUDA: it looks at the function's name.
    return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]


def _powersgd(group: dist.ProcessGroup | None, rank: int) -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=2)


def _take_group_bytes(group: dist.ProcessGroup | None) -> int:
    if not isinstance(group, ShapedGroup):
        return 0
    sent_bytes, group.bytes_sent = group.bytes_sent, 0.0
    return round(sent_bytes)


def _with_gradwire(
    method: Method, module: nn.Module, link: Link | None, plan: Plan | None
) -> Exchange:
    ddp = _ddp(method, module, None)
    sync = gradwire.attach(ddp, method.plan if plan is None else plan, link=link)

    def settled() -> Settled | None:
        choice = sync.decision
        if choice is None:
            return None
        return Settled(sync.plan.to_json(), str(choice), choice.predicted_s)

    return Exchange(
        ddp,
        lambda: sync.stats().recent[-1].sent_bytes,
        sync.close,
        is_ready=lambda: sync.plan.auto is None,
        plan=lambda: sync.plan,
        settled=settled,
        spans=lambda: sync.stats().recent[-1].spans(sync.rank) if sync.stats().recent else (),
    )


def _with_overlap(engine: Overlap, module: nn.Module) -> Exchange:
    """Wrap the engine; a step of its stats ends with the forward of the next one."""

    def sent_bytes() -> int:
        recent = engine.stats().recent
        return recent[-1].sent_bytes if recent else 0

    def waits() -> tuple[float, float]:
        recent = engine.stats().recent
        return (recent[-1].wait_s, recent[-1].overlap_s) if recent else (0.0, 0.0)

    def record() -> tuple[dict[str, float], Timeline]:
        by_layer: dict[str, list[float]] = {}
        for step in engine.stats().recent:
            for layer in step.layers:
                by_layer.setdefault(layer.name, []).append(layer.bits)
        return {name: fmean(bits) for name, bits in by_layer.items()}, engine.timeline()

    return Exchange(
        module,
        sent_bytes,
        engine.close,
        wait=engine.synchronize,
        waits=waits,
        record=record,
    )
