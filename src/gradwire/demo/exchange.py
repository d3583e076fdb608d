"""Wraps a model for one method: DDP with a link, and a hook or gradwire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.comm.shaped import Link
from gradwire.comm.shaped_group import ShapedGroup, new_shaped_group
from gradwire.demo.settings import Method


@dataclass(frozen=True, slots=True)
class Exchange:
    """A wrapped model, and what its exchange has sent.

    Attributes:
        module: The DDP wrapper.
        take_sent_bytes: Returns the payload this rank sent in the step that
            has just ended.
        close: Ends the exchange.
    """

    module: DistributedDataParallel
    take_sent_bytes: Callable[[], int]
    close: Callable[[], None]


def wrap(method: Method, module: nn.Module, link: Link) -> Exchange:
    """Wrap a model so that its gradients are exchanged by one method over a link.

    Args:
        method: How they are exchanged.
        module: The model; equal on all ranks.
        link: The link to imitate.
    """
    if method.family == "gradwire":
        return _with_gradwire(method, module, link)
    group = new_shaped_group()
    group.link = link
    ddp = DistributedDataParallel(
        module, process_group=group, bucket_cap_mb=method.bucket_cap_mb, init_sync=False
    )
    if method.name == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif method.name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def take_sent_bytes() -> int:
        return _take_group_bytes(group)

    return Exchange(ddp, take_sent_bytes, lambda: None)


def _take_group_bytes(group: ShapedGroup) -> int:
    sent_bytes, group.bytes_sent = group.bytes_sent, 0.0
    return round(sent_bytes)


def _with_gradwire(method: Method, module: nn.Module, link: Link) -> Exchange:
    ddp = DistributedDataParallel(module, bucket_cap_mb=method.bucket_cap_mb, init_sync=False)
    sync = gradwire.attach(ddp, method.plan, link=link)
    return Exchange(ddp, lambda: sync.stats().recent[-1].sent_bytes, sync.close)
