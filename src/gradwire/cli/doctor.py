"""`gradwire doctor`: says what can run on this machine, and why the rest cannot."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from gradwire.errors import CommandError


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(*, as_json: bool) -> None:
    """Say what can run on this machine, and the reason for each thing that cannot."""
    from gradwire.doctor import examine  # noqa: PLC0415 - keeps the start of the command line fast

    checks = examine()
    if as_json:
        click.echo(json.dumps({"format": 1, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415

        from gradwire.report.doctor import render_checks  # noqa: PLC0415

        Console().print(render_checks(checks))
    missing = [c.name for c in checks if c.is_required and not c.is_available]
    if missing:
        raise CommandError(f"cannot work without {', '.join(missing)}")
