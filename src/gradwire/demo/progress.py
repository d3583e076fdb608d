"""The live view of a run: method, step, loss, step time, time left."""

from __future__ import annotations

import statistics
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from gradwire.demo.events import Event, MethodDone, MethodStarted, StepDone
from gradwire.demo.settings import TASKS, UNTIMED_STEPS, VALIDATIONS, Job
from gradwire.report.model import Step
from gradwire.units import format_bytes, format_rate, format_seconds

_START_S = 6.0
"""From starting the processes to the first step: loading torch, reading data."""


class LiveView:
    """Shows events as they come; without a terminal, one line a method.

    Args:
        job: What runs.
        cores: Cores of this machine, for the prediction of the duration.
        console: Where to print.
    """

    def __init__(self, job: Job, cores: int, console: Console) -> None:
        self._job = job
        self._console = console
        self._labels = {m.name: m.label for m in job.methods}
        self._step_s = {m.name: job.predicted_step_s(m, cores) for m in job.methods}
        self._steps: dict[str, list[Step]] = {m.name: [] for m in job.methods}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task(
            "starting the processes", total=len(job.methods) * job.steps
        )

    def __enter__(self) -> Self:
        self._start_s = time.perf_counter()
        self._console.print(self._budget(), highlight=False)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def _budget(self) -> str:
        job = self._job
        link = format_rate(job.link_bytes_per_s)
        validation_s = VALIDATIONS * len(job.methods) * TASKS[job.task].validation_s
        names = ", ".join(
            f"{m.label} ({format_bytes(job.predicted_bytes(m))})" for m in job.methods
        )
        return (
            f"Training {TASKS[job.task].description}: {job.ranks} ranks, {job.steps} steps a "
            f"method, link {link}, latency {format_seconds(job.latency_s)}.\n"
            f"Methods, with about what a rank sends in each step: {names}.\n"
            f"This takes about {self._left_s() + validation_s + _START_S:.0f} s on idle cores."
        )

    def _left_s(self) -> float:
        return sum(
            (self._job.steps - len(steps)) * self._step_s[name]
            for name, steps in self._steps.items()
        )

    def add(self, rank: int, event: Event) -> None:
        """Show one event; only rank 0's are shown."""
        if rank:
            return
        if isinstance(event, MethodStarted):
            self._progress.update(self._bar, description=f"{self._labels[event.method]}: starting")
        elif isinstance(event, StepDone):
            self._add_step(event)
        elif isinstance(event, MethodDone):
            self._console.print(self._done_line(event.method), highlight=False)

    def _add_step(self, event: StepDone) -> None:
        steps, step = self._steps[event.method], event.step
        steps.append(step)
        timed = steps[UNTIMED_STEPS:] or steps
        self._step_s[event.method] = statistics.median(s.total_s for s in timed)
        text = (
            f"{self._labels[event.method]}: step {step.step + 1}/{self._job.steps}, "
            f"loss {step.loss:.3f}, {1e3 * step.total_s:.0f} ms a step, "
            f"{self._left_s():.0f} s left"
        )
        self._progress.update(self._bar, advance=1, description=text)

    def _done_line(self, method: str) -> str:
        elapsed_s = time.perf_counter() - self._start_s
        return (
            f"{elapsed_s:5.0f} s  {self._labels[method]}: {1e3 * self._step_s[method]:.0f} ms a "
            f"step, loss of the last step {self._steps[method][-1].loss:.3f}"
        )
