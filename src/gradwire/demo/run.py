"""The worker's side: trains each method on the same data and times every step."""

from __future__ import annotations

import gc
import hashlib
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm.shaped import Link
from gradwire.demo import tasks
from gradwire.demo.events import (
    Finished,
    MethodDone,
    MethodStarted,
    PlanChosen,
    Recorded,
    StepDone,
    Validated,
)
from gradwire.demo.exchange import Exchange, wrap
from gradwire.demo.settings import Job, Method
from gradwire.demo.worker import Tell
from gradwire.plan import AUTO, Plan
from gradwire.report.model import Step
from gradwire.spec import Auto

_TIMEOUT = timedelta(seconds=120)
_CHOOSING_STEPS = 90
"""A plan is not waited for any longer."""

_HASTY = Auto(tried_steps=2, turns=2)
"""How it is chosen: a demo has minutes, so plans are tried for a quarter of the steps."""


def run_job(job: Job, rank: int, rendezvous: str, tell: Tell) -> None:
    """Train every method of a job, one after the other.

    Args:
        job: What to do.
        rank: This process's number.
        rendezvous: A file, not there yet, by which the ranks meet.
        tell: Takes each event.
    """
    where = Path(rendezvous).as_uri()
    dist.init_process_group(
        "gloo", init_method=where, rank=rank, world_size=job.ranks, timeout=_TIMEOUT
    )
    task = tasks.build(job.task, job.batch_size)
    for method in job.methods:
        _run_method(job, rank, task, method, tell)
        gc.collect()
    dist.destroy_process_group()
    tell(Finished(torch.__version__))


def _run_method(job: Job, rank: int, task: tasks.Task, method: Method, tell: Tell) -> None:
    plan = _choose_plan(job, rank, task, method, tell) if method.plan == AUTO else None
    module = task.model(job.seed)
    optimiser = task.optimiser(module)
    exchange = wrap(method, module, optimiser, _link(job), plan)
    clock = BackwardClock(module)
    dist.barrier()
    tell(MethodStarted(method.name, sum(p.numel() for p in module.parameters())))
    for step in range(job.steps):
        batch = task.batch(rank, job.ranks, job.seed, step)
        tell(StepDone(method.name, _timed_step(exchange, optimiser, clock, step, batch)))
        if job.validates_after(step):
            score = tasks.evaluate(task, module, rank, job.ranks)
            tell(Validated(method.name, step + 1, *score))
            dist.barrier()
    exchange.wait()
    if exchange.record is not None and rank == 0 and job.steps > 1:
        tell(Recorded(method.name, *exchange.record()))
    exchange.close()
    tell(MethodDone(method.name, parameters_digest(module)))


def _link(job: Job) -> Link:
    return Link(job.link_bytes_per_s, job.latency_s)


def _choose_plan(job: Job, rank: int, task: tasks.Task, method: Method, tell: Tell) -> Plan | None:
    """Train a model that is thrown away until a plan is chosen; these steps are not shown."""
    module = task.model(job.seed)
    optimiser = task.optimiser(module)
    exchange = wrap(method, module, optimiser, _link(job), Plan.of(_HASTY))
    for step in range(_CHOOSING_STEPS):
        if exchange.is_ready():
            break
        batch = task.batch(rank, job.ranks, job.seed, step)
        tasks.loss_of(exchange.module, *batch).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
    plan, settled = exchange.plan(), exchange.settled()
    exchange.close()
    if settled is not None:
        tell(PlanChosen(method.name, *settled))
    return None if plan is None else replace(plan, auto=None)


class BackwardClock:
    """Notes when the last gradient of a backward pass became ready.

    Args:
        module: The model whose parameters are watched.
    """

    def __init__(self, module: nn.Module) -> None:
        self.last_ready_s = 0.0
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, _parameter: torch.Tensor) -> None:
        # Runs before DDP's own hook of the same parameter, which may launch
        # or even wait for communication.
        self.last_ready_s = time.perf_counter()


def _timed_step(
    exchange: Exchange,
    optimiser: torch.optim.Optimizer,
    clock: BackwardClock,
    step: int,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> Step:
    start_s = time.perf_counter()
    loss = tasks.loss_of(exchange.module, *batch)
    forward_end_s = time.perf_counter()
    loss.backward()  # type: ignore[no-untyped-call]
    backward_end_s = time.perf_counter()
    optimiser.step()
    optimiser.zero_grad()
    end_s = time.perf_counter()
    # What overlap waits for, it waits for in forward; its backward waits for nothing.
    forward_s = forward_end_s - start_s
    wait_s = min(exchange.waits()[0], forward_s) if exchange.waits is not None else 0.0
    ready_s = clock.last_ready_s if exchange.waits is None else backward_end_s
    return Step(
        step,
        loss.item(),
        forward_s=forward_s - wait_s,
        backward_s=ready_s - forward_end_s,
        exposed_s=backward_end_s - ready_s + wait_s,
        optimiser_s=end_s - backward_end_s,
        sent_bytes=exchange.take_sent_bytes(),
    )


def parameters_digest(module: nn.Module) -> str:
    """Return a hash of every parameter's bytes; equal for bit-identical models.

    Example:
        >>> one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        >>> parameters_digest(one) == parameters_digest(other)
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
