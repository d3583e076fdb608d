"""What a prediction needs, measured where the modes run: layers, codecs, links."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from gradwire.bench.predict import plan_of
from gradwire.bench.settings import CellJob
from gradwire.demo.tasks import Task, loss_of
from gradwire.hardware import Hardware, LinkSpeed
from gradwire.measure.device import measure_device
from gradwire.measure.interference import measure_interference
from gradwire.measure.kernels import measure_kernels
from gradwire.measure.links import measure_links
from gradwire.measure.model import measure_workload
from gradwire.spec import ReducerSpec
from gradwire.workload import Workload

_STEPS = 2
_KERNEL_S = 0.004
_LINKS_S = 1.0
_INTERFERENCE_S = 0.5


def measure_inputs(job: CellJob, task: Task, rank: int) -> tuple[Workload, Hardware]:
    """Measure on all ranks at once, as training does.

    Args:
        job: The cell.
        task: Its model and data.
        rank: This process's number.
    """
    module = task.model(job.seed)
    inputs, targets = task.batch(rank, job.ranks, job.seed, 0)
    workload = measure_workload(
        module,
        lambda model: loss_of(model, inputs, targets),
        optimizer=task.optimiser(module),
        steps=_STEPS,
        name=job.model,
        batch_size=len(inputs),
    )
    cpu = torch.device("cpu")
    device = replace(measure_device(cpu), interference=measure_interference(cpu, _INTERFERENCE_S))
    kernels = measure_kernels(list(_reducers(job)), cpu, budget_s=_KERNEL_S)
    link = _link(job)
    return workload, Hardware(device, kernels, link, link)


def _reducers(job: CellJob) -> Iterator[ReducerSpec]:
    for mode in job.modes:
        if (plan := plan_of(mode)) is not None:
            yield from (rule.reducer for rule in plan.rules)


def _link(job: CellJob) -> LinkSpeed:
    """Return the link that is imitated, or measure the one there is."""
    if job.network == "shaped":
        rate = math.inf if job.rate_bytes_per_s is None else job.rate_bytes_per_s
        return LinkSpeed(job.latency_s, rate)
    return measure_links(ranks_per_node=1, budget_s=_LINKS_S, is_after=True).between
