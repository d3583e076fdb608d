"""`gradwire plan`: what to send for a workload on given hardware, and why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import click

from gradwire.cli.files import require_free, write_file
from gradwire.errors import CommandError
from gradwire.hardware import Hardware, LinkSpeed
from gradwire.planner.break_even import break_even_alone, break_even_overlapped
from gradwire.planner.errors import parse_errors
from gradwire.planner.select import CANDIDATES, CAPS_BYTES, PLAIN, Decision, Limits, select_plan
from gradwire.planner.step import Setting
from gradwire.spec import Auto
from gradwire.units import parse_rate, parse_seconds
from gradwire.workload import Workload

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(path_type=Path)


@click.command("plan")
@click.option("--workload", type=_FILE, required=True, help="From `gradwire measure --model`.")
@click.option("--hardware", type=_FILE, required=True, help="From `gradwire measure --out`.")
@click.option("--ranks", type=int, default=2, show_default=True, help="Number of ranks.")
@click.option("--ranks-per-node", type=int, default=1, show_default=True, help="Of those.")
@click.option("--link", help='Another rate than the measured one, such as "1Gbit/s".')
@click.option("--latency", help='Another one-way delay, such as "1ms".')
@click.option(
    "--max-harm",
    type=float,
    default=Auto().max_harm,
    show_default=True,
    help="Share of more steps allowed.",
)
@click.option("--errors", type=_FILE, help="From `gradwire measure --model --errors`.")
@click.option("--candidates", help="Short names of what may be used, such as none,int8,int4.")
@click.option("--bucket-cap-mb", type=int, help="DDP's bucket size, if it is given. [MiB]")
@click.option("--explain", is_flag=True, help="Show every candidate and break-even link speeds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--out", type=_OUT, help="Write the plan, for gradwire.attach(ddp, FILE).")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    workload: Path,
    hardware: Path,
    ranks: int,
    ranks_per_node: int,
    link: str | None,
    latency: str | None,
    max_harm: float,
    errors: Path | None,
    candidates: str | None,
    bucket_cap_mb: int | None,
    explain: bool,
    as_json: bool,
    out: Path | None,
    force: bool,
) -> None:
    """Choose what each bucket sends, from measured costs.

    Of the plans that are close to the fastest, the most exact one is taken;
    compression must win by more than 5 %.
    """
    if out is not None:
        require_free(out, force=force)
    speeds = _with_link(Hardware.from_json(_read(hardware)), link, latency)
    setting = Setting(Workload.from_json(_read(workload)), speeds, ranks, ranks_per_node)
    if math.isinf(setting.link.bandwidth_bytes_per_s) and link is None:
        raise CommandError(
            f"{hardware} has no measured link; give --link, or measure with --ranks or torchrun",
            exit_code=2,
        )
    caps = CAPS_BYTES if bucket_cap_mb is None else (bucket_cap_mb << 20,)
    names = tuple(candidates.split(",")) if candidates else CANDIDATES
    own = parse_errors(_read(errors)) if errors is not None else None
    decision = select_plan(setting, errors=own, limits=Limits(max_harm, names, caps))
    _show(decision, explain=explain, as_json=as_json)
    if out is not None:
        write_file(out, decision.plan.to_json() + "\n")
        click.echo(f"Written: {out}", err=as_json)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", exit_code=2) from None


def _with_link(hardware: Hardware, rate: str | None, latency: str | None) -> Hardware:
    """Put another link in the place of all measured ones."""
    if rate is None and latency is None:
        return hardware
    measured = hardware.between
    link = LinkSpeed(
        measured.latency_s if latency is None else parse_seconds(latency),
        measured.bandwidth_bytes_per_s if rate is None else parse_rate(rate),
    )
    return replace(hardware, within=link, between=link)


def _show(decision: Decision, *, explain: bool, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    from gradwire.report.plan import decision_json, render_decision  # noqa: PLC0415

    rates = _rates(decision) if explain else None
    if as_json:
        click.echo(decision_json(decision, rates))
    else:
        Console().print(render_decision(decision, rates))


def _rates(decision: Decision) -> dict[str, tuple[float, float]]:
    setting = decision.setting
    names = dict.fromkeys(o.name for c in decision.buckets for o in c.options if o.costs)
    return {
        name: (break_even_alone(setting, name), break_even_overlapped(setting, name))
        for name in names
        if name != PLAIN[0]
    }
