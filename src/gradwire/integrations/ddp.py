"""DistributedDataParallel: finding it in a model, and the communication hook."""

# No `from __future__ import annotations` here: DDP reads the hook's annotations.

import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.comm.base import Mailbox
from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_collective import DistGroup
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.engine.stats import StepStats
from gradwire.engine.synchronizer import Synchronizer
from gradwire.integrations.agreement import Options, agree, device_of, stranger, trained
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec

_WRAPPED_IN = ("_orig_mod", "module", "_forward_module", "model", "strategy")
_LOOKED_AT_EVERY = 100


def attach_ddp(
    model: object,
    plan: Plan | ReducerSpec | str | Path | None = None,
    *,
    link: Link | None = None,
    check_every: int = 0,
    on_step: Callable[[StepStats], None] | None = None,
    mesh: DeviceMesh | None = None,
) -> Synchronizer:
    """Compress the gradients of a DistributedDataParallel model; see `attach`."""
    ddp = find_ddp(model)
    if ddp.static_graph:
        warnings.warn(
            "DDP(static_graph=True): make one synchronised step before the first no_sync(),"
            " or DDP fails to reduce gradients",
            UserWarning,
            stacklevel=2,
        )
    mailbox: Mailbox = TorchMailbox(ddp.process_group)
    group: DistGroup | None = None
    try:
        chosen, parameters = agree(ddp, plan, Options(link, check_every, on_step, mesh), mailbox)
        device = device_of(ddp)
        group = _group(ddp, device)
        if link is not None:
            mailbox = ShapedMailbox(mailbox, link)
        reference = weakref.ref(ddp)
        watch = _Watch(ddp)
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
        )
        ddp.register_comm_hook(_Hook(sync, watch.names, device), _hook)
        ddp.register_forward_pre_hook(watch)
    except BaseException:
        mailbox.close()
        if group is not None:
            group.close()
        raise
    return sync


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

    def __init__(self, ddp: DDP) -> None:
        self.names = {id(p): name for name, p in trained(ddp).items()}
        self.forwards = 0
        self._model = id(ddp)

    # Not compiled, or a compiled model would be compiled anew for each count.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, ddp: DDP, _inputs: object) -> None:
        """Refuse parameters that came after attaching: DDP does not know them."""
        if id(ddp) != self._model:
            return  # a copy has no hook
        if self.forwards % _LOOKED_AT_EVERY < 3:  # noqa: PLR2004 - at the start, then rarely
            for name, p in trained(ddp).items():
                if id(p) not in self.names:
                    raise stranger(name)
        self.forwards += torch.is_grad_enabled()


class _Hook:
    """What DDP keeps for us: the synchronizer, and names by parameter.

    It must not hold the DDP model, which would then never be freed.
    """

    def __init__(self, sync: Synchronizer, names: dict[int, str], device: torch.device) -> None:
        self.sync = sync
        self.devices: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
        self._names = names

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in a copy of the model: DDP gives copies a reducer without hook."""
        return type(None), ()

    def names(self, bucket: GradBucket) -> tuple[str, ...]:
        """Return the names of a bucket's parameters, in order."""
        return tuple(self._names[id(p)] for p in bucket.parameters())


def _hook(state: _Hook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Start averaging a bucket; DDP calls this once per bucket, in order."""
    arrived: torch.futures.Future[tuple[Tensor | None, BaseException | None]] = (
        torch.futures.Future(devices=state.devices)
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
    return {} if ddp is None else {n: p.detach() for n, p in trained(ddp).items()}
