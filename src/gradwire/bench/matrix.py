"""Measures cell after cell into one file, which is complete after each of them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from gradwire.bench.cell import measure_cell
from gradwire.bench.lock import only_bench
from gradwire.bench.progress import BenchView
from gradwire.bench.settings import CellJob
from gradwire.demo.collect import environment
from gradwire.demo.launch import available_cores
from gradwire.errors import CommandError
from gradwire.lab import netns
from gradwire.report.results import BenchResult, Cell


def run_matrix(
    jobs: Sequence[CellJob], out: Path, previous: BenchResult | None, console: Console
) -> BenchResult:
    """Measure cells and write the result after each.

    Args:
        jobs: The cells; those that `previous` holds with equal settings are
            skipped.
        out: The file to write.
        previous: What an earlier run wrote.
        console: Where progress is shown.

    Raises:
        CommandError: Another bench runs, or the lab cannot be built here.
    """
    if any(job.network == "lab" for job in jobs) and (reason := netns.missing()):
        raise CommandError(
            f"{reason}; without --lab, links are imitated by collectives that take as long"
        )
    cells = list(previous.cells) if previous is not None else []
    left = [job for job in jobs if not _holds(cells, job)]
    result = previous or BenchResult(environment("", available_cores()), (), _now(), 0.0)
    if not left:
        return result
    earlier_s, start_s = result.wall_s, time.perf_counter()
    with only_bench(), BenchView(left, available_cores(), console) as view:
        for job in left:
            view.start(job)
            cell, torch = measure_cell(job, view.watch)
            cells = _with(cells, cell)
            result = replace(
                result,
                environment=replace(result.environment, torch=torch or result.environment.torch),
                cells=tuple(cells),
                wall_s=earlier_s + time.perf_counter() - start_s,
            )
            write_atomically(out, result.to_json() + "\n")
            view.done(cell)
    return result


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _holds(cells: Iterable[Cell], job: CellJob) -> bool:
    return any(cell.settings == job.settings() for cell in cells)


def _with(cells: Iterable[Cell], new: Cell) -> list[Cell]:
    """Return the cells with a new one, which takes the place of its like."""
    return [*(c for c in cells if _place(c) != _place(new)), new]


def _place(cell: Cell) -> tuple[object, ...]:
    return cell.name, cell.network, cell.settings.get("seed")


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either as before or complete, whatever interrupts.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder, "x"), "new")
        ...     Path(folder, "x").read_text()
        'new'
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
