"""One measurement of everything: device, kernels, and links between ranks."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm.shaped import Link, ShapedMailbox
from gradwire.comm.torch_dist import TorchMailbox
from gradwire.errors import CommandError
from gradwire.hardware import Hardware, LinkSpeed
from gradwire.measure import cache
from gradwire.measure.device import measure_device, this_device
from gradwire.measure.errors import measure_model_errors
from gradwire.measure.interference import measure_interference
from gradwire.measure.kernels import SPECS, measure_forms, measure_kernels
from gradwire.measure.launch import run_processes
from gradwire.measure.links import BUDGET_S, Links, measure_links
from gradwire.measure.model import Loss, measure_workload
from gradwire.spec import parse_reducer
from gradwire.workload import Workload

UNMEASURED = LinkSpeed(0.0, math.inf)
"""Stands for a link that nobody has measured: `ranks` is 0."""

_THOROUGH = 10
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure.

    Attributes:
        link: Make gradwire's exchanges last as long as on such a link; the back
            end's all-reduce, which knows no such link, is left out.
        ranks_per_node: See `measure_links`.
        is_thorough: Whether to take ten times as long.
        specs: Short names of what to measure.
    """

    link: Link | None = None
    ranks_per_node: int | None = None
    is_thorough: bool = False
    specs: tuple[str, ...] = SPECS

    @property
    def effort(self) -> int:
        """How often everything is repeated."""
        return _THOROUGH if self.is_thorough else 1


def measure_here(options: Options) -> Hardware:
    """Measure device and kernels, and the links of the default group if there is one.

    All ranks measure their kernels at the same time, as in training: ranks
    that share a node share its memory. The result is rank 0's. It is
    kept in the cache, unless the link is only imitated.
    """
    device = this_device()
    is_group = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    found = replace(
        measure_device(device), interference=measure_interference(device, options.effort)
    )
    specs = [parse_reducer(name) for name in options.specs]
    kernels = measure_kernels(specs, device, budget_s=0.01 * options.effort)
    kernels |= measure_forms(device, budget_s=0.01 * options.effort)
    links = _links(options) if is_group else Links(UNMEASURED, UNMEASURED)
    machine = _machine() if is_group else cache.Machine.here()
    hardware = Hardware(found, kernels, *links, machine.fingerprint())
    is_first = not is_group or dist.get_rank() == 0
    if is_first and options.link is None:
        cache.keep(hardware, machine)
    return hardware


def _links(options: Options) -> Links:
    budget_s = BUDGET_S * options.effort
    if options.link is None:
        return measure_links(ranks_per_node=options.ranks_per_node, budget_s=budget_s)
    mailbox = ShapedMailbox(TorchMailbox(None), options.link)
    try:
        return measure_links(mailbox, ranks_per_node=options.ranks_per_node, budget_s=budget_s)
    finally:
        mailbox.close()


def _machine() -> cache.Machine:
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, platform.node())
    return cache.Machine.here(tuple(hosts), len(hosts), dist.get_backend())


def measure_ranks(world_size: int, options: Options) -> Hardware:
    """Start ranks on this machine, joined by Gloo, and measure on them.

    Raises:
        CollectiveError: A rank failed.
    """
    return run_processes(world_size, measure_here, options)


def is_launched() -> bool:
    """Return whether a launcher such as torchrun has started this process as a rank.

    Example:
        >>> is_launched()
        False
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def measure_launched(options: Options) -> tuple[Hardware, bool]:
    """Join the group a launcher has prepared, and measure.

    Returns:
        What was measured, and whether this is rank 0, which is to show it.
    """
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if is_gpu else "gloo", timeout=_TIMEOUT)
    try:
        return measure_here(options), dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


class Named(NamedTuple):
    """A model's layers, and what each codec loses of its gradients."""

    workload: Workload
    errors: dict[str, dict[str, float]]


def measure_named(name: str, steps: int) -> Named:
    """Measure the model that a function of a module makes.

    Args:
        name: `module:function`; the function takes nothing and returns the
            model, the loss (see `measure_workload`), and perhaps an optimizer.
        steps: How many steps to measure.

    Raises:
        CommandError: There is no such function, or it returns something else.
    """
    model, loss, optimizer = _made(name)
    errors = measure_model_errors(model, loss, [parse_reducer(spec) for spec in SPECS])
    work = measure_workload(model, loss, optimizer=optimizer, steps=steps, name=name)
    return Named(work, errors)


def _made(name: str) -> tuple[nn.Module, Loss, torch.optim.Optimizer | None]:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise CommandError(f"--model {name} is not of the form module:function", exit_code=2)
    try:
        make: Callable[[], Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"--model {name} cannot be loaded: {error}", exit_code=2) from None
    made = make()
    match made:
        case (nn.Module() as model, loss) if callable(loss):
            return model, loss, None
        case (nn.Module() as model, loss, torch.optim.Optimizer() as optimizer) if callable(loss):
            return model, loss, optimizer
        case _:
            wanted = "(model, loss) or (model, loss, optimizer), with loss(model) the loss"
            raise CommandError(f"--model {name} returned {type(made).__name__}, not {wanted}")
