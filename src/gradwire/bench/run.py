"""The worker's side: all modes of a cell take turns, and every step is timed."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.bench import models
from gradwire.bench.events import AloneDone, Profiled, Refused, RoundDone, RoundStarted
from gradwire.bench.exchange import wrap
from gradwire.bench.profile import measure_inputs
from gradwire.bench.settings import LEAST_STEPS, WARMUP_STEPS, CellJob
from gradwire.comm.shaped import Link
from gradwire.demo import tasks
from gradwire.demo.events import (
    Finished,
    MethodDone,
    MethodStarted,
    PlanChosen,
    Recorded,
    Validated,
)
from gradwire.demo.exchange import Exchange, wrap_alone
from gradwire.demo.run import BackwardClock, parameters_digest
from gradwire.demo.settings import Method
from gradwire.demo.worker import Tell
from gradwire.lab.counters import interface_bytes
from gradwire.plan import AUTO
from gradwire.report.results import StepTimes
from gradwire.timeline import Kind, Span, Timeline

_FIRST_LOOK_STEPS = 10
"""Costs are looked at right after a plan was chosen, in steps that are not left to DDP."""
_NEVER_ALONE = ("nosync", "torchft", "hivemind")
_ALONE_ROUNDS = 2
_ALONE = 3
"""Share of a round that steps without network take: they spread less."""
_TIMEOUT = timedelta(seconds=120)
_SETTLING_STEPS = 100
"""A mode that chooses its plan is not waited for any longer."""


def run_cell(job: CellJob, rank: int, rendezvous: str, tell: Tell) -> None:
    """Measure all modes of a cell, in rounds.

    Args:
        job: What to do.
        rank: This process's number.
        rendezvous: A file, not there yet, by which the ranks meet.
        tell: Takes each event.
    """
    dist.init_process_group(
        "gloo",
        init_method=Path(rendezvous).as_uri(),
        rank=rank,
        world_size=job.ranks,
        timeout=_TIMEOUT,
    )
    task = models.build(job.model, rank)
    running: list[_Mode] = []
    for mode in job.modes:
        tell(MethodStarted(mode.name, 0))
        started = _admit(job, mode, task, rank)
        if isinstance(started, str):
            tell(Refused(mode.name, started))
        else:
            tell(MethodStarted(mode.name, started.num_parameters))
            running.append(started)
    alone = [_start_alone(job, one.mode, task, rank) for one in running if one.can_be_alone]
    workload, hardware = measure_inputs(job, task, rank)
    tell(Profiled(workload.to_json(), hardware.to_json()))
    for number in range(job.rounds):
        for one in running:
            one.run_round(number, tell)
        if number < _ALONE_ROUNDS:
            for one in alone:
                one.run_alone(number, tell)
    for one in running:
        one.finish(tell)
    for one in alone:
        one.close()
    tell(Finished(torch.__version__))


def _admit(job: CellJob, mode: Method, task: tasks.Task, rank: int) -> _Mode | str:
    """Start a mode and warm it up; return why it cannot run where it cannot."""
    reason: str | None = None
    try:
        started = _Mode(job, mode, task, rank)
        started.warm_up()
    except Exception as error:  # noqa: BLE001 - becomes the reason in the result
        reason = _reason(error)
    reasons: list[str | None] = [None] * job.ranks
    dist.all_gather_object(reasons, reason)
    return next((r for r in reasons if r is not None), None) or started


def _start_alone(job: CellJob, mode: Method, task: tasks.Task, rank: int) -> _Mode:
    """Start a mode whose exchange takes no time: it is what predictions add the network to."""
    own = dist.new_group([rank], use_local_synchronization=True)
    started = _Mode(job, mode, task, rank, own)
    started.warm_up()
    return started


def _with_waits(times: StepTimes, wait_s: float, overlap_s: float) -> StepTimes:
    """Take what forward waited out of it; backward then waits for nothing."""
    return StepTimes(
        forward_s=max(0.0, times.forward_s - wait_s),
        backward_s=times.backward_s + times.exposed_s,
        exposed_s=min(wait_s, times.forward_s),
        optimiser_s=times.optimiser_s,
        overlap_s=overlap_s,
        processor_s=times.processor_s,
    )


def _reason(error: Exception) -> str:
    """Say in a line what was raised, and where if it says nothing itself."""
    if str(error):
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name} of {Path(place.filename).name}: {place.line}"


@dataclass(slots=True)
class _Took:
    """What the last step took."""

    times: StepTimes
    sent_bytes: int


class _Mode:
    """One mode's model, which keeps training from round to round."""

    def __init__(
        self,
        job: CellJob,
        mode: Method,
        task: tasks.Task,
        rank: int,
        own: dist.ProcessGroup | None = None,
    ) -> None:
        self._job = job
        self.mode = mode
        self._task = task
        self._rank = rank
        self._module = task.model(job.seed)
        self._optimiser = task.optimiser(self._module)
        self._exchange = self._wrapped(own)
        self._clock = BackwardClock(self._module)
        self._steps_done = 0
        self._elapsed_s = 0.0
        self._last_s = 0.0
        self._marks = (0.0,) * 5

    def _wrapped(self, own: dist.ProcessGroup | None) -> Exchange:
        job, mode = self._job, self.mode
        if own is not None:
            return wrap_alone(mode, self._module, self._optimiser, own, job.ranks)
        link = None
        if job.network != "lab":
            rate = math.inf if job.rate_bytes_per_s is None else job.rate_bytes_per_s
            link = Link(rate, job.latency_s)
        return wrap(mode, self._module, self._optimiser, link)

    @property
    def can_be_alone(self) -> bool:
        """Whether it can be measured with an exchange that takes no time."""
        return self.mode.hook not in _NEVER_ALONE and self.mode.plan != AUTO

    @property
    def num_parameters(self) -> int:
        """Number of parameter values."""
        return sum(p.numel() for p in self._module.parameters())

    @property
    def _is_synchronised(self) -> bool:
        return self.mode.hook != "nosync"

    def step(self) -> _Took:
        """Make one step."""
        batch = self._task.batch(self._rank, self._job.ranks, self._job.seed, self._steps_done)
        exchange = self._exchange
        used_s = time.process_time()
        start_s = time.perf_counter()
        loss = tasks.loss_of(exchange.module, *batch)
        forward_end_s = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        exchange.finish()
        backward_end_s = time.perf_counter()
        self._optimiser.step()
        self._optimiser.zero_grad()
        end_s = time.perf_counter()
        self._steps_done += 1
        self._last_s = end_s - start_s
        self._elapsed_s += self._last_s
        self._marks = (start_s, forward_end_s, self._clock.last_ready_s, backward_end_s, end_s)
        times = StepTimes(
            forward_s=forward_end_s - start_s,
            backward_s=self._clock.last_ready_s - forward_end_s,
            exposed_s=backward_end_s - self._clock.last_ready_s,
            optimiser_s=end_s - backward_end_s,
            processor_s=time.process_time() - used_s,
        )
        if exchange.waits is not None:
            times = _with_waits(times, *exchange.waits())
        return _Took(times, exchange.take_sent_bytes())

    def warm_up(self) -> None:
        """Make untimed steps until they are as they will go on."""
        for _ in range(WARMUP_STEPS):
            self.step()
        for _ in range(_SETTLING_STEPS):
            if self._exchange.is_ready():
                break
            self.step()
        else:
            return
        if self.mode.plan == AUTO:
            for _ in range(_FIRST_LOOK_STEPS):
                self.step()

    def run_round(self, number: int, tell: Tell) -> None:
        """Make this mode's steps of a round, and score held-out data after them."""
        count = self._count(self._job.round_s)
        if number and count > LEAST_STEPS:
            self.step()  # the caches are another mode's
        dist.barrier()
        tell(RoundStarted(self.mode.name, number))
        carried_bytes, start_s = self._carried_bytes(), time.perf_counter()
        took = [self.step() for _ in range(count)]
        wall_s = time.perf_counter() - start_s
        dist.barrier()
        if self._job.network == "lab":
            sent_bytes = self._carried_bytes() - carried_bytes
        else:
            sent_bytes = sum(t.sent_bytes for t in took)
        steps = tuple(t.times for t in took)
        tell(
            RoundDone(
                self.mode.name,
                number,
                steps,
                round(sent_bytes / count) if self._is_synchronised else 0,
                self._elapsed_s,
                wall_s,
            )
        )
        if self._is_synchronised:
            self._validate(tell)

    def run_alone(self, number: int, tell: Tell) -> None:
        """Make a few steps and nothing else; all ranks at once, as they share the cores."""
        count = self._count(self._job.round_s / _ALONE)
        dist.barrier()
        self.step()  # the caches are another mode's
        steps = tuple(self.step().times for _ in range(count))
        tell(AloneDone(self.mode.name, number, steps))
        dist.barrier()

    def _carried_bytes(self) -> int:
        return interface_bytes().sent if self._job.network == "lab" else 0

    def _count(self, round_s: float) -> int:
        """Agree on the number of steps: rank 0's last step tells how many fit."""
        fit = int(round_s / self._last_s) if self._last_s else self._job.steps
        count = torch.tensor([max(LEAST_STEPS, min(self._job.steps, fit))])
        dist.broadcast(count, 0)
        return int(count)

    def _validate(self, tell: Tell) -> None:
        score = tasks.evaluate(self._task, self._module, self._rank, self._job.ranks)
        if score.num_targets:
            tell(Validated(self.mode.name, self._steps_done, *score))

    def finish(self, tell: Tell) -> None:
        """End the exchange and tell the parameters' digest."""
        self._exchange.wait()
        settled = self._exchange.settled()
        if settled is not None:
            tell(PlanChosen(self.mode.name, *settled))
        if self._rank == 0:
            if self._exchange.record is not None:
                tell(Recorded(self.mode.name, *self._exchange.record()))
            elif self._exchange.spans():
                tell(Recorded(self.mode.name, {}, self._timeline()))
        self.close()
        tell(MethodDone(self.mode.name, parameters_digest(self._module)))

    def _timeline(self) -> Timeline:
        """Return the last step: computation as clocked here, the rest as the exchange kept it."""
        kinds: tuple[Kind, ...] = ("forward", "backward", "wait", "optimiser")
        start_s = self._marks[0]
        own = [
            Span(0, kind, "all layers", *ends)
            for kind, ends in zip(kinds, pairwise(self._marks), strict=True)
        ]
        spans = (
            replace(s, start_s=max(0.0, s.start_s - start_s), end_s=s.end_s - start_s)
            for s in (*own, *self._exchange.spans())
            if s.end_s > start_s
        )
        return Timeline(tuple(spans), self._marks[-1] - start_s)

    def close(self) -> None:
        """End the exchange."""
        self._exchange.close()
