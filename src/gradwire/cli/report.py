"""`gradwire report`: turns result files into text, HTML, JSON or CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradwire import report
from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.doctor import missing_extras
from gradwire.errors import CommandError

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

_RESULT = click.Path(exists=True, dir_okay=False, path_type=Path)
_DRAWING = ("jinja2", "matplotlib")


@click.command("report")
@click.argument("result", type=_RESULT)
@click.argument("other", type=_RESULT, required=False)
@click.option("--html", metavar="FILE", help="Write one page with every plot.")
@click.option("--json", metavar="FILE", help="Write the summary for machines.")
@click.option("--csv", metavar="FILE", help="Write one row a cell and mode.")
@click.option("--euro-per-rank-hour", type=float, help="Price; adds the cost of a training.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(
    *,
    result: Path,
    other: Path | None,
    euro_per_rank_hour: float | None,
    force: bool,
    **targets: str | None,
) -> None:
    """Show what bench, demo or a sweep has written.

    As text, or as what the options name; FILE may be - for standard output.
    With OTHER, a later result of bench or demo, the two are compared cell by
    cell, and all else is about OTHER.
    """
    if euro_per_rank_hour is not None and not 0 < euro_per_rank_hour < float("inf"):
        raise CommandError(f"--euro-per-rank-hour {euro_per_rank_hour} is not above 0", exit_code=2)
    asked = {kind: target for kind, target in targets.items() if target}
    _require_writable(asked, (result, other), force=force)
    read = report.read_result(result)
    later = None if other is None else report.read_result(other)
    renderers = _renderers(read, later, euro_per_rank_hour)
    if refused := [f"--{kind}" for kind in asked if kind not in renderers]:
        raise CommandError(f"{result} holds a sweep, which has no {', '.join(refused)}")
    if not asked:
        _print(renderers["text"]())
    for kind, target in asked.items():
        text = renderers[kind]().rstrip("\n") + "\n"
        if target == "-":
            click.echo(text, nl=False)
        else:
            write_file(Path(target), text)
            click.echo(f"Written: {target}", err="-" in asked.values())


def _renderers(
    read: report.Result, later: report.Result | None, price: float | None
) -> dict[str, Callable[[], Any]]:
    """Return what draws a result, by kind of output; plain text is `"text"`."""
    if isinstance(read, report.SweepResult) and later is None and price is None:
        return {"text": partial(report.sweep_text, read), "html": partial(report.sweep_html, read)}
    if isinstance(read, report.SweepResult) or isinstance(later, report.SweepResult):
        raise CommandError(
            "a sweep is shown by itself: its price is given to gradwire simulate, and it has "
            "no OTHER to be compared with"
        )
    before, after = report.as_bench(read), None if later is None else report.as_bench(later)
    kinds: dict[str, Callable[[], Any]] = {
        "text": partial(report.bench_text, before, after, euro_per_rank_hour=price),
        "html": partial(report.bench_html, before, after, euro_per_rank_hour=price),
        "json": partial(report.bench_json, before, after, euro_per_rank_hour=price),
        "csv": partial(report.bench_csv, after or before, euro_per_rank_hour=price),
    }
    if isinstance(read, report.DemoResult) and later is None and price is None:
        kinds |= {
            "text": partial(report.render_text, read),
            "html": partial(report.render_html, read),
        }
    return kinds


def _require_writable(
    asked: dict[str, str], sources: Sequence[Path | None], *, force: bool
) -> None:
    if list(asked.values()).count("-") > 1:
        raise CommandError("standard output cannot hold two outputs", exit_code=2)
    paths = [Path(target) for target in asked.values() if target != "-"]
    require_apart(*paths)
    for source in filter(None, sources):
        if source.resolve() in {path.resolve() for path in paths}:
            raise CommandError(f"{source} is what the report is made from", exit_code=2)
    for path in paths:
        require_free(path, force=force)
    missing = [package for package in missing_extras() if package in _DRAWING]
    if "html" in asked and missing:
        raise CommandError(f"--html needs {', '.join(missing)}: pip install 'gradwire[demo]'")


def _print(text: ConsoleRenderable) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    Console().print(text)
