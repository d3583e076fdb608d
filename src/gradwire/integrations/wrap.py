"""`wrap`: DDP with buckets of the size that a plan wants."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everyone calls it

from gradwire.comm.torch_dist import TorchMailbox
from gradwire.integrations.machine import find_machine
from gradwire.measure.errors import measure_model_errors
from gradwire.measure.model import Loss, measure_workload
from gradwire.planner.select import Limits, select_plan
from gradwire.planner.shortlist import candidates
from gradwire.planner.step import Setting
from gradwire.spec import Auto, parse_reducer

USUAL_CAP_MB = 5
"""Buckets of the usual models on the CPU: measured never slower than DDP's own 25, and
up to 1.2 times faster, for less is left to send when backward ends."""


def wrap(model: nn.Module, loss: Loss | None = None, **ddp_options: Any) -> DDP:  # noqa: ANN401 - DDP's own
    """Wrap a model in DDP, with buckets of the size that a plan wants.

    Call it on every rank. `attach` still has to be called. On the CPU gradients
    lie in DDP's buckets (`gradient_as_bucket_view`), so that nobody has to wait
    until they are copied out of them.

    Args:
        model: The model, on its device.
        loss: Runs one forward pass of the given model on a batch, and returns
            the loss. With it layers, gradients and links are measured, which
            takes some seconds and leaves the model as it was, and the planner
            decides; without it buckets hold 5 MiB on the CPU, and what DDP
            gives them on a GPU.
        ddp_options: Passed on; a `bucket_cap_mb` among them is kept.

    Example:
        >>> import tempfile
        >>> import torch, torch.distributed as dist
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> wrap(torch.nn.Linear(64, 32)).bucket_bytes_cap >> 20
        5
        >>> dist.destroy_process_group()
    """
    is_cpu = all(p.device.type == "cpu" for p in model.parameters())
    is_free = "bucket_cap_mb" not in ddp_options and "bucket_cap_mb_list" not in ddp_options
    if is_cpu and is_free:
        cap_mb = USUAL_CAP_MB if loss is None else _advised(model, loss, ddp_options)
        ddp_options = {**ddp_options, "bucket_cap_mb": cap_mb}
    if is_cpu:
        ddp_options = {"gradient_as_bucket_view": True, **ddp_options}
    return DDP(model, **ddp_options)


def _advised(model: nn.Module, loss: Loss, ddp_options: dict[str, Any]) -> int:
    """Return the planner's size of buckets, rank 0's on all ranks."""
    mailbox = TorchMailbox(ddp_options.get("process_group"))
    try:
        if mailbox.world_size == 1:
            return USUAL_CAP_MB
        names = candidates(Auto(), mailbox.world_size)
        specs = [parse_reducer(name) for name in names]
        machine = find_machine(mailbox, specs, is_kept=True)
        work = measure_workload(model, loss)
        errors = measure_model_errors(model, loss, specs)
        setting = Setting(work, machine.hardware, mailbox.world_size, machine.ranks_per_node)
        decision = select_plan(setting, errors=errors, limits=Limits(candidates=names))
        agreed: int = mailbox.gather_objects(decision.bucket_cap_mb)[0]  # type: ignore[assignment]
        return agreed
    finally:
        mailbox.close()
