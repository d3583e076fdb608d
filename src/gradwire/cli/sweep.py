"""`gradwire simulate --sweep`: a grid of plans, ranks and rates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.errors import CommandError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.hardware import Hardware
    from gradwire.sim.base import Engine
    from gradwire.sim.sweep import Grid, Point, SweepResult
    from gradwire.workload import Workload

_SAVE_EVERY_S = 5.0
_ONE_POINT = {"ranks": "8", "rate": "10Gbit/s"}


def parse_grid(options: Mapping[str, Any]) -> Grid:
    """Read the grid of a sweep, or of one step, from the command's options.

    Raises:
        SpecError: A value that a grid or a unit refuses.
    """
    from gradwire.sim.sweep import PLANS, RANKS, RATES_BYTES_PER_S, Grid  # noqa: PLC0415
    from gradwire.units import parse_rate, parse_seconds, parse_whole  # noqa: PLC0415

    given = {**options}
    if not options["sweep"]:
        given |= {name: value for name, value in _ONE_POINT.items() if options[name] is None}
    return Grid(
        tuple(parse_whole("--ranks", item) for item in _items(given["ranks"]))
        if given["ranks"] is not None
        else RANKS,
        tuple(map(parse_rate, _items(given["rate"])))
        if given["rate"] is not None
        else RATES_BYTES_PER_S,
        tuple(options["plans"]) or PLANS,
        cast("tuple[Engine, ...]", _items(options["engine"])),
        parse_seconds(options["latency"]),
        options["ranks_per_node"],
        options["topology"],
        options["collective"],
    )


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(","))


def run_sweep(
    sweep: SweepResult,
    workloads: Sequence[Workload],
    hardware: Hardware,
    paths: tuple[Path, Path],
    human: Console,
    *,
    force: bool = False,
) -> SweepResult:
    """Simulate what a result file lacks, save as it grows, and write the page.

    Args:
        sweep: What to simulate, without points.
        workloads: In the order of `sweep.workloads`.
        hardware: The machine; links between nodes get the rates of the grid.
        paths: Of the result file and the page.
        human: Where progress and the report go.
        force: Overwrite files of another sweep, or of one that is complete.

    Raises:
        CommandError: A file is there that may not be overwritten.
    """
    json_path, page = paths
    require_apart(json_path, page)
    sweep = _resumed(sweep, json_path, force=force)
    if not sweep.points:
        require_free(json_path, force=force)
    require_free(page, force=force or bool(sweep.points))
    by_name = {workload.name: workload for workload in workloads}
    points = list(sweep.points)
    saved_s = time.monotonic()
    try:
        for point in _simulated(sweep, by_name, hardware, human):
            points.append(point)
            if time.monotonic() - saved_s > _SAVE_EVERY_S:
                _save(replace(sweep, points=tuple(points)), json_path)
                saved_s = time.monotonic()
    finally:
        result = replace(sweep, points=tuple(points))
        _save(result, json_path)
    _report(result, json_path, page, human)
    return result


def _resumed(sweep: SweepResult, json_path: Path, *, force: bool) -> SweepResult:
    """Take the points of an unfinished file of the same sweep."""
    from gradwire.sim.sweep import SweepResult  # noqa: PLC0415

    if force or not json_path.is_file():
        return sweep
    try:
        found = SweepResult.from_json(json_path.read_text(encoding="utf-8"))
    except (SpecError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{json_path} exists and holds no sweep ({error}); --force overwrites it", exit_code=2
        ) from None
    if not found.is_same_sweep(sweep):
        raise CommandError(f"{json_path} holds another sweep; --force overwrites it", exit_code=2)
    if len(found.points) >= found.size:
        raise CommandError(f"{json_path} is complete; --force simulates it again", exit_code=2)
    return replace(sweep, points=found.points)


def _save(result: SweepResult, path: Path) -> None:
    """Write a result file at once, so that an interruption leaves a whole one."""
    draft = path.with_name(path.name + ".part")
    write_file(draft, result.to_json() + "\n")
    draft.replace(path)


def _simulated(
    sweep: SweepResult, by_name: dict[str, Workload], hardware: Hardware, human: Console
) -> Iterator[Point]:
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from gradwire.sim.sweep import missing, simulate_point  # noqa: PLC0415
    from gradwire.units import format_rate  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=human, transient=True) as progress:
        task = progress.add_task("sweep", total=sweep.size, completed=len(sweep.points))
        for key in missing(sweep):
            what = f"{key.plan}, {key.ranks} ranks, {format_rate(key.rate_bytes_per_s)}"
            progress.update(task, description=what)
            yield simulate_point(key, sweep.grid, by_name[key.workload], hardware)
            progress.advance(task)


def _report(result: SweepResult, json_path: Path, page: Path, human: Console) -> None:
    from gradwire.report.sweep.html import sweep_html  # noqa: PLC0415
    from gradwire.report.sweep.text import sweep_text  # noqa: PLC0415

    human.print(sweep_text(result))
    write_file(page, sweep_html(result))
    for path in (json_path, page):
        human.print(f"Written: {path}", soft_wrap=True)
