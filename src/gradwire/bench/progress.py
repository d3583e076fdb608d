"""The live view of a bench: cell, mode, round, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from gradwire.bench.events import RoundDone, RoundStarted
from gradwire.bench.settings import CellJob
from gradwire.demo.events import Event, MethodStarted
from gradwire.report.results import Cell
from gradwire.units import format_rate, format_seconds

_START_S = 6.0
"""From starting the processes to the first step: loading torch, reading data."""


def cell_title(job: CellJob) -> str:
    """Name a cell for people.

    Example:
        >>> cell_title(CellJob("mlp", 2, 1.25e7, 0.02, "lab", ()))
        'mlp, 2 ranks, 100 Mbit/s, latency 20 ms, lab'
    """
    rate = format_rate(job.rate_bytes_per_s) if job.rate_bytes_per_s else "unlimited"
    latency = f", latency {format_seconds(job.latency_s)}" if job.latency_s else ""
    return f"{job.model}, {job.ranks} ranks, {rate}{latency}, {job.network}"


class BenchView:
    """Shows what runs; without a terminal, one line a cell.

    Args:
        jobs: The cells to measure, in order.
        cores: Cores of this machine, for the prediction of the duration.
        console: Where to print.
    """

    def __init__(self, jobs: Sequence[CellJob], cores: int, console: Console) -> None:
        self._cores = cores
        self._console = console
        self._predicted_s = sum(_START_S + self._cell_s(job) for job in jobs)
        self._done_s = 0.0
        self._cell_done_s = 0.0
        self._job: CellJob | None = None
        self._number = 0
        self._count = len(jobs)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=self._predicted_s)

    def _cell_s(self, job: CellJob) -> float:
        return sum(job.rounds * job.predicted_round_s(m, self._cores) for m in job.modes)

    def __enter__(self) -> Self:
        self._start_s = time.perf_counter()
        self._console.print(
            f"{self._count} cells to measure; this takes about {self._predicted_s / 60:.1f} min"
            " on idle cores.",
            highlight=False,
        )
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def start(self, job: CellJob) -> None:
        """Show that a cell begins."""
        self._job, self._cell_done_s = job, 0.0
        self._number += 1
        self._update("starting the processes")

    def watch(self, event: Event) -> None:
        """Show an event of rank 0."""
        job = self._job
        assert job is not None, "a cell has begun"
        if isinstance(event, MethodStarted):
            self._update(f"{event.method}: warming up")
        elif isinstance(event, RoundStarted):
            self._update(f"{event.method}: round {event.number + 1}/{job.rounds}")
        elif isinstance(event, RoundDone):
            mode = next(m for m in job.modes if m.name == event.method)
            self._cell_done_s += job.predicted_round_s(mode, self._cores)

    def done(self, cell: Cell) -> None:
        """Print a line for a cell that is measured."""
        assert self._job is not None, "a cell has begun"
        self._done_s += _START_S + self._cell_s(self._job)
        self._cell_done_s = 0.0
        ran = [m for m in cell.modes if m.rounds]
        fastest = min((m for m in ran if m.mode != "nosync"), key=lambda m: m.step_s, default=None)
        best = (
            f": {fastest.mode} is fastest, {1e3 * fastest.step_s:.0f} ms a step" if fastest else ""
        )
        elapsed_s = time.perf_counter() - self._start_s
        line = f"{elapsed_s:5.0f} s  {self._number}/{self._count} {cell_title(self._job)}{best}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def _update(self, what: str) -> None:
        assert self._job is not None, "a cell has begun"
        done_s = self._done_s + self._cell_done_s
        left_s = max(0.0, self._predicted_s - done_s)
        if done_s:
            left_s *= (time.perf_counter() - self._start_s) / done_s
        title = f"{self._number}/{self._count} {cell_title(self._job)}, {what}"
        self._progress.update(
            self._bar, completed=done_s, description=f"{title}, {left_s / 60:.1f} min left"
        )
