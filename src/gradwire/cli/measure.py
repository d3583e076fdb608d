"""`gradwire measure`: speeds of this machine, its links, or a model's layers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.errors import CommandError
from gradwire.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from gradwire.hardware import Hardware
    from gradwire.measure.run import Options
    from gradwire.workload import Workload

_STEPS, _MORE_STEPS = 3, 10


@click.command("measure")
@click.option("--ranks", type=int, help="Processes to start here, to measure links between them.")
@click.option("--ranks-per-node", type=int, help="Consecutive ranks that share a node.")
@click.option("--link", help='Imitate a rate, such as "100Mbit/s"; needs --ranks.')
@click.option("--latency", help='Imitate a one-way delay, such as "1ms"; needs --ranks.')
@click.option("--model", help="Measure a model instead: module:function, which makes it.")
@click.option("--thorough", is_flag=True, help="Take longer, for numbers that scatter less.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON to a file.")
@click.option(
    "--errors", type=click.Path(path_type=Path), help="Write what codecs lose of the gradients."
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    ranks: int | None,
    ranks_per_node: int | None,
    link: str | None,
    latency: str | None,
    model: str | None,
    thorough: bool,
    as_json: bool,
    out: Path | None,
    errors: Path | None,
    force: bool,
) -> None:
    """Measure how fast this machine encodes, and how fast its links are.

    Started by torchrun, it measures the links between those ranks; with
    --ranks, between processes of this machine. With --model, the layers of a
    model. `gradwire plan` takes what --out writes.
    """
    if model is not None and (ranks or link or latency):
        raise CommandError("--model goes with neither --ranks nor --link", exit_code=2)
    if (link or latency) and not ranks:
        raise CommandError("--link and --latency need --ranks", exit_code=2)
    if ranks is not None and ranks < 2:  # noqa: PLR2004 - as the message says
        raise CommandError(f"--ranks {ranks} is not at least 2: a link has two ends", exit_code=2)
    if errors is not None and model is None:
        raise CommandError("--errors needs --model", exit_code=2)
    require_apart(out, errors)
    for path in filter(None, (out, errors)):
        require_free(path, force=force)
    if model is not None:
        steps = _MORE_STEPS if thorough else _STEPS
        found: Hardware | Workload = _workload(model, steps, errors)
    else:
        measured = _hardware(ranks, _options((link, latency), ranks_per_node, thorough=thorough))
        if measured is None:
            return  # rank 0 of the launched ones shows it
        found = measured
    _show(found, as_json=as_json, out=out)


def _options(
    line: tuple[str | None, str | None], ranks_per_node: int | None, *, thorough: bool
) -> Options:
    from gradwire.comm.shaped import Link  # noqa: PLC0415 - loads torch
    from gradwire.measure.run import Options  # noqa: PLC0415

    rate, latency = line
    link = Link(parse_rate(rate or "unlimited"), parse_seconds(latency or "0s"))
    return Options(None if link.is_unlimited else link, ranks_per_node, thorough)


def _hardware(ranks: int | None, options: Options) -> Hardware | None:
    """Measure; None on the launched ranks that do not show the result."""
    from gradwire.measure import run  # noqa: PLC0415 - loads torch

    if ranks is not None:
        return run.measure_ranks(ranks, options)
    if run.is_launched():
        hardware, is_first = run.measure_launched(options)
        return hardware if is_first else None
    return run.measure_here(options)


def _workload(model: str, steps: int, errors: Path | None) -> Workload:
    from gradwire.measure.run import measure_named  # noqa: PLC0415 - loads torch

    if "" not in sys.path:
        sys.path.insert(0, "")  # the model's module lies where the user is
    measured = measure_named(model, steps)
    if errors is not None:
        write_file(errors, json.dumps(measured.errors, indent=2, sort_keys=True) + "\n")
        click.echo(f"Written: {errors}", err=True)
    return measured.workload


def _show(found: Hardware | Workload, *, as_json: bool, out: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    from gradwire.report.hardware import render_hardware, render_workload  # noqa: PLC0415
    from gradwire.workload import Workload  # noqa: PLC0415

    text = found.to_json()
    if as_json:
        click.echo(text)
    else:
        Console().print(
            render_workload(found) if isinstance(found, Workload) else render_hardware(found)
        )
    if out is not None:
        write_file(out, text + "\n")
        click.echo(f"Written: {out}", err=as_json)
