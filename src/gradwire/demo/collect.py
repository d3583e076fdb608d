"""Joins what the ranks tell into one result."""

from __future__ import annotations

import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradwire.demo.events import (
    Event,
    Finished,
    MethodDone,
    MethodStarted,
    PlanChosen,
    Recorded,
    StepDone,
    Validated,
)
from gradwire.demo.settings import UNTIMED_STEPS, Job
from gradwire.report.model import (
    DemoResult,
    Environment,
    MethodResult,
    Settings,
    Step,
    Validation,
)
from gradwire.timeline import Timeline
from gradwire.version import installed_version


@dataclass(slots=True)
class Collector:
    """Takes events of all ranks, in any order between ranks.

    Args:
        job: What the workers were asked to do.
    """

    job: Job
    num_parameters: int = 0
    torch: str = ""
    _steps: dict[tuple[str, int], dict[int, Step]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _scores: dict[tuple[str, int], list[Validated]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _why: dict[str, str] = field(default_factory=dict)
    _digests: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))

    _recorded: dict[str, Recorded] = field(default_factory=dict)

    def add(self, rank: int, event: Event) -> None:
        """Take one event."""
        match event:
            case MethodStarted():
                self.num_parameters = event.num_parameters
            case StepDone():
                self._steps[event.method, event.step.step][rank] = event.step
            case Validated():
                self._scores[event.method, event.step].append(event)
            case PlanChosen():  # by rank 0
                self._why[event.method] = event.why
            case MethodDone():
                self._digests[event.method][rank] = event.digest
            case Recorded():
                self._recorded[event.method] = event
            case Finished():
                self.torch = event.torch

    def result(self, started: str, wall_s: float, cores: int) -> DemoResult:
        """Return the result of a run in which every rank has finished."""
        job = self.job
        limited = job.link_bytes_per_s != float("inf")
        settings = Settings(
            task=job.task,
            num_parameters=self.num_parameters,
            ranks=job.ranks,
            steps=job.steps,
            batch_size=job.batch_size,
            seed=job.seed,
            link_bytes_per_s=job.link_bytes_per_s if limited else None,
            latency_s=job.latency_s,
            untimed_steps=min(UNTIMED_STEPS, job.steps - 1),
        )
        methods = tuple(
            MethodResult(
                method.name,
                method.label,
                method.family,
                tuple(_joined(self._steps[method.name, s]) for s in range(job.steps)),
                self._validations(method.name),
                tuple(self._digests[method.name][rank] for rank in range(job.ranks)),
                self._why.get(method.name, ""),
                *self._record(method.name),
            )
            for method in job.methods
        )
        return DemoResult(settings, environment(self.torch, cores), methods, started, wall_s)

    def _record(self, method: str) -> tuple[Mapping[str, float] | None, Timeline | None]:
        recorded = self._recorded.get(method)
        return (recorded.bits, recorded.timeline) if recorded else (None, None)

    def _validations(self, method: str) -> tuple[Validation, ...]:
        found = []
        for (name, step), scores in sorted(self._scores.items()):
            if name == method:
                targets = sum(s.num_targets for s in scores)
                loss = sum(s.loss_sum for s in scores) / targets
                correct = sum(s.num_correct for s in scores) / targets
                found.append(Validation(step, loss, correct))
        return tuple(found)


def _joined(by_rank: dict[int, Step]) -> Step:
    """Join one step of all ranks: mean loss, most bytes, and the times of rank 0."""
    loss = statistics.fmean(s.loss for s in by_rank.values())
    sent_bytes = max(s.sent_bytes for s in by_rank.values())
    return replace(by_rank[0], loss=loss, sent_bytes=sent_bytes)


def environment(torch: str, cores: int) -> Environment:
    """Describe this machine and what is installed on it.

    Args:
        torch: PyTorch's version, as the workers told it.
        cores: Cores this process may use.
    """
    return Environment(
        gradwire=installed_version(),
        torch=torch,
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        cores=cores,
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if os.name == "posix" and info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
