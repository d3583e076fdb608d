"""`gradwire demo`: trains with and without compression, and compares."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.errors import CommandError

if TYPE_CHECKING:
    from rich.console import Console

    from gradwire.demo.settings import Job
    from gradwire.report.model import DemoResult


@click.command("demo")
@click.option("--task", default="text", show_default=True, help="What to train: text or digits.")
@click.option("--ranks", default=2, show_default=True, help="Processes, all on this machine.")
@click.option("--steps", type=int, help="Steps of each method. [default: the task's]")
@click.option("--batch-size", type=int, help="Examples of each rank. [default: the task's]")
@click.option("--link", help='Rate, "100Mbit/s" or "unlimited". [default: the task\'s]')
@click.option("--latency", help='One-way delay, such as "1ms". [default: the task\'s]')
@click.option(
    "--methods",
    default="ddp,fp16,powersgd,gradwire,aqgb",
    show_default=True,
    help="What to compare; plain DDP is always there.",
)
@click.option("--plan", "plans", multiple=True, help="gradwire's plan; may be repeated.")
@click.option("--seed", default=0, show_default=True, help="Seeds model and data.")
@click.option("--report", type=click.Path(path_type=Path), help="HTML file. [default: reports/]")
@click.option("--json", "json_to", help="Write every step as JSON to a file, or - for stdout.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    task: str,
    ranks: int,
    steps: int | None,
    batch_size: int | None,
    link: str | None,
    latency: str | None,
    methods: str,
    plans: tuple[str, ...],
    seed: int,
    report: Path | None,
    json_to: str | None,
    force: bool,
) -> None:
    """Train a small model over a slow link, once for each way to exchange gradients.

    Plain DDP, PyTorch's own hooks and gradwire start from the same model and
    see the same data; the report says what each took and what it learned.
    """
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    job = _job(task, ranks, steps, batch_size, seed, (link, latency), (methods, plans))
    _require_extras()
    report = report or _fresh_report(task)
    json_path = Path(json_to) if json_to not in {None, "-"} else None
    require_apart(report, json_path)
    for path in filter(None, (report, json_path)):
        require_free(path, force=force)
    human = Console(stderr=json_to == "-")
    result = _run(job, human)
    _write(result, report, json_path, human)
    if json_to == "-":
        click.echo(result.to_json())
    if not all(method.is_replicated for method in result.methods):
        raise CommandError("the ranks ended with different parameters: see the table")


def _job(
    task: str,
    ranks: int,
    steps: int | None,
    batch_size: int | None,
    seed: int,
    line: tuple[str | None, str | None],
    compared: tuple[str, tuple[str, ...]],
) -> Job:
    from gradwire.demo.settings import Job, choose_methods, task_defaults  # noqa: PLC0415
    from gradwire.units import parse_rate, parse_seconds  # noqa: PLC0415

    defaults = task_defaults(task)
    link, latency = line
    methods, plans = compared
    names = [name.strip() for name in methods.split(",")]
    if plans and "gradwire" not in names:
        raise CommandError("--plan needs gradwire among the --methods", exit_code=2)
    return Job(
        task=task,
        ranks=ranks,
        steps=defaults.steps if steps is None else steps,
        batch_size=defaults.batch_size if batch_size is None else batch_size,
        seed=seed,
        link_bytes_per_s=parse_rate(link or defaults.link),
        latency_s=parse_seconds(latency or defaults.latency),
        methods=choose_methods(names, plans),
    )


def _require_extras() -> None:
    from gradwire.doctor import missing_extras  # noqa: PLC0415

    if missing := missing_extras():
        raise CommandError(f"the demo needs {', '.join(missing)}: pip install 'gradwire[demo]'")


def _fresh_report(task: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("reports") / f"demo-{task}-{stamp}.html"


def _run(job: Job, human: Console) -> DemoResult:
    from gradwire.demo.collect import Collector  # noqa: PLC0415
    from gradwire.demo.launch import Workers, available_cores  # noqa: PLC0415
    from gradwire.demo.progress import LiveView  # noqa: PLC0415

    started = datetime.now().astimezone().isoformat(timespec="seconds")
    start_s = time.perf_counter()
    collector = Collector(job)
    with LiveView(job, available_cores(), human) as view, Workers(job) as workers:
        for rank, event in workers.events():
            collector.add(rank, event)
            view.add(rank, event)
    return collector.result(started, time.perf_counter() - start_s, available_cores())


def _write(result: DemoResult, report: Path, json_path: Path | None, human: Console) -> None:
    from gradwire.report.html import render_html  # noqa: PLC0415
    from gradwire.report.text import render_text  # noqa: PLC0415

    human.print(render_text(result))
    texts = [(report, render_html(result))]
    if json_path is not None:
        texts.append((json_path, result.to_json() + "\n"))
    for path, text in texts:
        write_file(path, text)
        human.print(f"Written: {path}", soft_wrap=True)
