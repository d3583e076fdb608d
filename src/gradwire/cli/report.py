"""`gradwire report`: turns result files into text, HTML, JSON or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from gradwire import report
from gradwire.cli.files import require_apart, require_free, write_file
from gradwire.doctor import missing_extras
from gradwire.errors import CommandError

_RESULT = click.Path(exists=True, dir_okay=False, path_type=Path)
_DRAWING = ("jinja2", "matplotlib")


class _Shown(NamedTuple):
    """What to report on; the demo's own report is for one without prices."""

    demo: report.DemoResult | None
    before: report.BenchResult
    after: report.BenchResult | None
    euro_per_rank_hour: float | None


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
    """Show what `gradwire bench` or `gradwire demo --json` has measured.

    As text, or as what the options name; FILE may be - for standard output.
    With OTHER, a later result, the two are compared cell by cell, and all else
    is about OTHER.
    """
    if euro_per_rank_hour is not None and not 0 < euro_per_rank_hour < float("inf"):
        raise CommandError(f"--euro-per-rank-hour {euro_per_rank_hour} is not above 0", exit_code=2)
    asked = {kind: target for kind, target in targets.items() if target}
    _require_writable(asked, force=force)
    read = report.read_result(result)
    later = None if other is None else report.as_bench(report.read_result(other))
    is_plain = later is None and euro_per_rank_hour is None
    demo = read if isinstance(read, report.DemoResult) and is_plain else None
    shown = _Shown(demo, report.as_bench(read), later, euro_per_rank_hour)
    if not asked:
        _print(shown)
    for kind, target in asked.items():
        text = _render(kind, shown).rstrip("\n") + "\n"
        if target == "-":
            click.echo(text, nl=False)
        else:
            write_file(Path(target), text)
            click.echo(f"Written: {target}", err="-" in asked.values())


def _require_writable(asked: dict[str, str], *, force: bool) -> None:
    if list(asked.values()).count("-") > 1:
        raise CommandError("standard output cannot hold two outputs", exit_code=2)
    paths = [Path(target) for target in asked.values() if target != "-"]
    require_apart(*paths)
    for path in paths:
        require_free(path, force=force)
    missing = [package for package in missing_extras() if package in _DRAWING]
    if "html" in asked and missing:
        raise CommandError(f"--html needs {', '.join(missing)}: pip install 'gradwire[demo]'")


def _print(shown: _Shown) -> None:
    from rich.console import Console  # noqa: PLC0415 - keeps the start of the command line fast

    demo, before, after, price = shown
    if demo is not None:
        Console().print(report.render_text(demo))
    else:
        Console().print(report.bench_text(before, after, euro_per_rank_hour=price))


def _render(kind: str, shown: _Shown) -> str:
    demo, before, after, price = shown
    if kind == "csv":
        return report.bench_csv(after or before, euro_per_rank_hour=price)
    if kind == "json":
        return report.bench_json(before, after, euro_per_rank_hour=price)
    if demo is not None:
        return report.render_html(demo)
    return report.bench_html(before, after, euro_per_rank_hour=price)
