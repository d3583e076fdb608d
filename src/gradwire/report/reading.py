"""Result files of three kinds, and a demo's result as a bench's."""

from __future__ import annotations

from pathlib import Path

from gradwire.errors import CommandError, SpecError
from gradwire.report.model import DemoResult, MethodResult, Step, read_format
from gradwire.report.results import BenchResult, Cell, ModeResult, Round, StepTimes
from gradwire.report.summary import training_times
from gradwire.sim.sweep import SweepResult

_FORMAT = 1


Result = BenchResult | DemoResult | SweepResult
"""Whatever a result file may hold."""


def read_result(path: Path) -> Result:
    """Read what `bench`, `demo --json` or `simulate --sweep` has written.

    Raises:
        CommandError: The file cannot be read as text, holds no result, or one of
            another version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no text: {error}") from None
    try:
        return _read(text)
    except SpecError as error:
        raise CommandError(f"{path} cannot be shown: {error}", exit_code=2) from None


def _read(text: str) -> Result:
    data = read_format(text, "result", _FORMAT)
    if "methods" in data:
        return DemoResult.from_json(text)
    if "grid" in data:
        return SweepResult.from_json(text)
    if "cells" in data:
        return BenchResult.from_json(text)
    wanted = "what gradwire bench, demo --json or simulate --sweep wrote"
    raise SpecError("content", ", ".join(data), wanted)


def as_bench(result: BenchResult | DemoResult) -> BenchResult:
    """Return a demo's result as a bench of one cell, whose modes had one round each."""
    if isinstance(result, BenchResult):
        return result
    s = result.settings
    cell = Cell(
        model=s.task,
        ranks=s.ranks,
        rate_bytes_per_s=s.link_bytes_per_s,
        latency_s=s.latency_s,
        network="none" if s.link_bytes_per_s is None and not s.latency_s else "shaped",
        modes=tuple(_mode(m, s.untimed_steps) for m in result.methods),
        num_parameters=s.num_parameters,
    )
    settings = {"seed": s.seed, "batch_size": s.batch_size, "steps": s.steps}
    return BenchResult(result.environment, (cell,), result.started, result.wall_s, settings)


def _mode(method: MethodResult, untimed_steps: int) -> ModeResult:
    timed = method.steps[untimed_steps:] or method.steps
    times_s = [0.0, *training_times(method.steps)]
    sent = sorted(step.sent_bytes for step in timed)
    return ModeResult(
        mode=method.name,
        label=method.label,
        family=method.family,
        rounds=(Round(tuple(_step(step) for step in timed), sent[len(sent) // 2]),),
        validations=method.validations,
        elapsed_s=tuple(times_s[min(v.step, len(method.steps))] for v in method.validations),
        digests=method.digests,
    )


def _step(step: Step) -> StepTimes:
    return StepTimes(step.forward_s, step.backward_s, step.exposed_s, step.optimiser_s)
