"""`gradwire bench`: plans and baselines over models, ranks and rates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gradwire.errors import CommandError

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.bench.settings import CellJob
    from gradwire.report.results import BenchResult

_T = TypeVar("_T")


@click.command("bench")
@click.option("--models", default="mlp,accel", show_default=True, help="See --list.")
@click.option("--ranks", default="2,4", show_default=True, help="Processes, on this machine.")
@click.option("--rates", default="100Mbit/s,1Gbit/s", show_default=True, help="Or unlimited.")
@click.option("--latency", default="0s", show_default=True, help="One way, such as 1ms,20ms.")
@click.option("--modes", help="See --list. [default: hooks of PyTorch's, int6, int4, int2]")
@click.option("--rounds", default=3, show_default=True, help="How often modes take turns.")
@click.option("--steps", default=20, show_default=True, help="Of a mode in a round, at most.")
@click.option("--round-time", default="4s", show_default=True, help="Ends a mode's steps, too.")
@click.option("--seed", default=0, show_default=True, help="Seeds model and data.")
@click.option("--lab", is_flag=True, help="Really limited links, in network namespaces.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file. [default: reports/]")
@click.option("--resume", is_flag=True, help="Keep and complete what --out holds.")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
@click.option("--list", "show", is_flag=True, help="Print models and modes, and end.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    models: str,
    ranks: str,
    rates: str,
    latency: str,
    modes: str | None,
    rounds: int,
    steps: int,
    round_time: str,
    seed: int,
    lab: bool,
    out: Path | None,
    resume: bool,
    force: bool,
    show: bool,
) -> None:
    """Compare ways to exchange gradients, over models, ranks, rates and latencies.

    Each cell trains all modes side by side, in rounds. The result is one file,
    complete after each cell, that gradwire report shows.
    """
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    from gradwire.units import parse_seconds  # noqa: PLC0415

    console = Console()
    if show:
        _list(console)
        return
    jobs = _jobs(
        (models, ranks, rates, latency),
        modes,
        lab=lab,
        rounds=rounds,
        steps=steps,
        round_s=parse_seconds(round_time),
        seed=seed,
    )
    _require_extras()
    out = out or _fresh_file()
    previous = _previous(out, resume=resume, force=force)
    _require_folder(out)
    _print(_run(jobs, out, previous, console), console)
    console.print(f"Written: {out}", soft_wrap=True)


def _jobs(
    axes: tuple[str, str, str, str], modes: str | None, *, lab: bool, **settings: float
) -> tuple[CellJob, ...]:
    from gradwire.bench.modes import DEFAULT_MODES, parse_modes  # noqa: PLC0415
    from gradwire.bench.settings import Matrix  # noqa: PLC0415
    from gradwire.units import parse_rate, parse_seconds, parse_whole  # noqa: PLC0415

    models, ranks, rates, latency = axes
    matrix = Matrix(
        models=_each(models, str),
        ranks=_each(ranks, lambda text: parse_whole("ranks", text)),
        rates_bytes_per_s=tuple(
            None if rate == float("inf") else rate for rate in _each(rates, parse_rate)
        ),
        latencies_s=_each(latency, parse_seconds),
    )
    return matrix.jobs("lab" if lab else "shaped", parse_modes(modes or DEFAULT_MODES), **settings)


def _each(text: str, read: Callable[[str], _T]) -> tuple[_T, ...]:
    return tuple(read(part) for part in dict.fromkeys(p.strip() for p in text.split(",")))


def _list(console: Console) -> None:
    from gradwire.bench.table import render_models, render_modes  # noqa: PLC0415

    console.print(render_models())
    console.print(render_modes())


def _require_extras() -> None:
    from gradwire.doctor import missing_extras  # noqa: PLC0415

    if missing := missing_extras():
        raise CommandError(f"the bench needs {', '.join(missing)}: pip install 'gradwire[demo]'")


def _fresh_file() -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("reports") / f"bench-{stamp}.json"


def _previous(out: Path, *, resume: bool, force: bool) -> BenchResult | None:
    from gradwire.report.results import BenchResult  # noqa: PLC0415

    if out.is_dir():
        raise CommandError(f"{out} is a folder, not a file to write", exit_code=2)
    if resume and force:
        raise CommandError("--resume keeps what --force overwrites: give one", exit_code=2)
    if not out.exists() or force:
        return None
    if not resume:
        message = f"{out} exists; --resume completes it, --force overwrites it"
        raise CommandError(message, exit_code=2)
    return BenchResult.from_json(out.read_text(encoding="utf-8", errors="replace"))


def _require_folder(path: Path) -> None:
    """Make the folder before the run, whose result would be lost without it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", exit_code=2) from None


def _run(
    jobs: tuple[CellJob, ...], out: Path, previous: BenchResult | None, console: Console
) -> BenchResult:
    from gradwire.bench.matrix import run_matrix  # noqa: PLC0415

    return run_matrix(jobs, out, previous, console)


def _print(result: BenchResult, console: Console) -> None:
    from gradwire.report import bench_text  # noqa: PLC0415

    console.print(bench_text(result))
