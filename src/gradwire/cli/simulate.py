"""`gradwire simulate`: predicts training steps on a cluster that need not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradwire.cli.cluster import ONE_STEP, parse_cluster
from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.errors import CommandError

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.hardware import Hardware
    from gradwire.sim.base import Simulation
    from gradwire.workload import Workload

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TARGET = click.Path(dir_okay=False, path_type=Path)
_ACCEL = "accel"
_DRAWING = ("jinja2", "matplotlib")
_LINKS_SHOWN = 16


@click.command("simulate")
@click.option("--network", "networks", multiple=True, help="Of the catalogue: NAME or NAME:BATCH.")
@click.option("--workload", "workloads", multiple=True, type=_FILE, help="Measured layers.")
@click.option("--device", default="a100", show_default=True, help="Computes a --network.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of its products.")
@click.option("--hardware", type=_FILE, help="Measured speeds. [default: modelled]")
@click.option("--ranks", help="A number; with --sweep a list. [default: 8, or 2 to 1,024]")
@click.option("--rate", help="Of a link; with --sweep a list. [default: as measured, or 10Gbit/s]")
@click.option("--plan", "plans", multiple=True, help="Short name; with --sweep repeated.")
@click.option("--engine", default="ddp", show_default=True, help="With --sweep a list.")
@click.option("--latency", default="10us", show_default=True, help="Between nodes, one way.")
@click.option("--topology", default="star", show_default=True, help="How nodes are connected.")
@click.option("--ranks-per-node", default=1, show_default=True, help="Ranks that share a link.")
@click.option("--nodes", type=int, help="In place of --ranks: so many nodes, full of ranks.")
@click.option("--bucket", help="Size at which DDP closes a bucket. [default: 25MiB]")
@click.option("--oversubscription", type=float, help="Of a tree: nodes' rate over the uplink's.")
@click.option("--nodes-per-leaf", type=int, help="Of a tree: nodes at each leaf. [default: 16]")
@click.option("--multicast", is_flag=True, help="Switches copy a message to several receivers.")
@click.option(
    "--straggler",
    "stragglers",
    multiple=True,
    metavar="DISTRIBUTION:SCALE[:RANKS]",
    help="Ranks slower by 1 + SCALE * x: normal:0.1, constant:0.5:3 or constant:0.5:0+3.",
)
@click.option("--seed", default=0, show_default=True, help="Draws the stragglers.")
@click.option(
    "--bandwidth-trace",
    "traces",
    multiple=True,
    metavar="[NODE:]TIME=RATE,...",
    help="Rates of a node's link from times of the step on; of all nodes without NODE.",
)
@click.option("--collective", default="direct", show_default=True, help="How bytes travel.")
@click.option("--sweep", is_flag=True, help="Simulate every combination, and compare plans.")
@click.option("--euro-per-rank-hour", type=float, help="Price; adds the cost to a sweep.")
@click.option("--samples", type=float, help="Until training has converged, for the cost.")
@click.option("--json", "json_path", type=_TARGET, help="Result file.")
@click.option("--trace", type=_TARGET, help="Chrome trace of one step.")
@click.option("--html", type=_TARGET, help="Page: the timeline, or the sweep's plots.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(**options: Any) -> None:  # noqa: ANN401 - one argument an option
    """Predict a training step, or with --sweep where which plan wins."""
    if options["sweep"] or options["html"] is not None:
        _require_drawing()
    works = _workloads(options)
    hardware = _hardware(options)
    run: Callable[..., None] = _sweep if options["sweep"] else _single
    run(works, hardware, options)


def _require_drawing() -> None:
    """Refuse before the work what could not be drawn after it."""
    from gradwire.doctor import missing_extras  # noqa: PLC0415

    if missing := [package for package in missing_extras() if package in _DRAWING]:
        raise CommandError(f"pages need {', '.join(missing)}: pip install 'gradwire[demo]'")


def _workloads(options: dict[str, Any]) -> list[Workload]:
    from gradwire.workload import Workload  # noqa: PLC0415 - keeps the start of the command fast

    measured = [Workload.from_json(_text(path)) for path in options["workloads"]]
    names = options["networks"] or (() if measured else ("resnet50:64",))
    return [*measured, *(_modelled(name, options) for name in names)]


def _modelled(text: str, options: dict[str, Any]) -> Workload:
    from gradwire.sim.catalogue import find_network  # noqa: PLC0415
    from gradwire.sim.catalogue.small import accel  # noqa: PLC0415
    from gradwire.sim.compute import find_device, workload  # noqa: PLC0415
    from gradwire.units import parse_whole  # noqa: PLC0415

    name, _, batch = text.partition(":")
    if name == _ACCEL:
        return accel()
    batch_size = parse_whole("--network's batch size", batch) if batch else 1
    device = find_device(options["device"])
    return workload(find_network(name), device, batch_size, options["dtype"])


def _hardware(options: dict[str, Any]) -> Hardware:
    from gradwire.hardware import Hardware  # noqa: PLC0415
    from gradwire.sim.compute.nodes import find_hardware  # noqa: PLC0415

    path = options["hardware"]
    return find_hardware(options["device"]) if path is None else Hardware.from_json(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no text file: {error}", exit_code=2) from None


def _sweep(works: Sequence[Workload], hardware: Hardware, options: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from gradwire.cli.sweep import parse_grid, run_sweep  # noqa: PLC0415
    from gradwire.sim.sweep import plan_sweep  # noqa: PLC0415

    for name, option in {"trace": "--trace", **ONE_STEP}.items():
        if options[name]:
            raise CommandError(f"{option} is of one step, not of a --sweep", exit_code=2)
    sweep = plan_sweep(
        parse_grid(options),
        works,
        hardware,
        euro_per_rank_hour=options["euro_per_rank_hour"],
        samples=options["samples"],
    )
    json_path = options["json_path"] or Path("reports/sweep.json")
    page = options["html"] or json_path.with_suffix(".html")
    run_sweep(sweep, works, hardware, (json_path, page), Console(), force=options["force"])


def _single(works: Sequence[Workload], hardware: Hardware, options: dict[str, Any]) -> None:
    from gradwire.cli.sweep import parse_grid  # noqa: PLC0415
    from gradwire.hardware import LinkSpeed  # noqa: PLC0415
    from gradwire.plan import load_plan  # noqa: PLC0415
    from gradwire.sim import simulate  # noqa: PLC0415
    from gradwire.units import parse_bytes  # noqa: PLC0415
    from gradwire.workload import BUCKET_BYTES  # noqa: PLC0415

    grid = parse_grid(options)
    lists = (works, grid.ranks, grid.rates_bytes_per_s, grid.engines, options["plans"])
    if any(len(values) > 1 for values in lists):
        raise CommandError("several values need --sweep", exit_code=2)
    targets = [options[name] for name in ("json_path", "trace", "html")]
    require_apart(*targets)
    for path in filter(None, targets):
        require_free(path, force=options["force"])
    is_measured = options["hardware"] is not None and options["rate"] is None
    link = LinkSpeed(grid.latency_s, grid.rates_bytes_per_s[0])
    step = simulate(
        load_plan(options["plans"][0] if options["plans"] else None),
        works[0],
        hardware if is_measured else replace(hardware, between=link),
        parse_cluster(options, grid),
        engine=grid.engines[0],
        bucket_bytes=parse_bytes(options["bucket"]) if options["bucket"] else BUCKET_BYTES,
        collective=grid.collective,
    )
    _show(step, works[0], options)


def _show(step: Simulation, work: Workload, options: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415

    from gradwire.units import format_bytes, format_seconds  # noqa: PLC0415

    row = step.row()
    facts = {
        "workload": work.name,
        "ranks": str(step.ranks),
        "step": format_seconds(step.step_s),
        "computation": format_seconds(work.compute_s),
        "waiting for gradients": format_seconds(step.exposed_s),
        "overlap over wait": "-" if row is None else f"{row:.3g}",
        "sent by the busiest rank": format_bytes(step.sent_bytes),
    }
    console = Console()
    for name, value in facts.items():
        console.print(f"{name:<25} {value}")
    _print_links(step, console)
    made: dict[str, Callable[[], str]] = {
        "json_path": lambda: step.to_json() + "\n",
        "trace": step.timeline.to_chrome_trace,
        "html": lambda: _page(step, facts),
    }
    for option, render in made.items():
        if options[option] is not None:
            write_file(options[option], render())
            console.print(f"Written: {options[option]}", soft_wrap=True)


def _print_links(step: Simulation, console: Console) -> None:
    """Print the bytes on each link: the busiest ones, and how many are like the last of them."""
    from rich.table import Table  # noqa: PLC0415

    from gradwire.units import format_bytes  # noqa: PLC0415

    busiest = sorted(step.link_bytes.items(), key=lambda item: (-item[1], item[0]))
    if not busiest:
        if step.sent_bytes:
            console.print("Links are listed for up to 128 ranks, or where ranks differ.")
        return
    table = Table("Link", "Bytes in a step", title="Payload by link")
    for name, num_bytes in busiest[:_LINKS_SHOWN]:
        table.add_row(name, format_bytes(num_bytes))
    console.print(table)
    if len(busiest) > _LINKS_SHOWN:
        console.print(f"{len(busiest) - _LINKS_SHOWN} more links carry no more; --json has all.")


def _page(step: Simulation, facts: dict[str, str]) -> str:
    from gradwire.report import timeline_html  # noqa: PLC0415

    return timeline_html(step.timeline, title="One simulated training step", facts=facts)
