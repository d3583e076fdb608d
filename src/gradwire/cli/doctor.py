"""`gradwire doctor`: says what can run on this machine, and why the rest cannot."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from gradwire.errors import CommandError


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--selftest", is_flag=True, help="Compare every kernel with the reference.")
def command(*, as_json: bool, selftest: bool) -> None:
    """Say what can run on this machine, and the reason for each thing that cannot."""
    if selftest:
        _selftest(as_json=as_json)
        return
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


def _selftest(*, as_json: bool) -> None:
    from gradwire.measure.device import this_device  # noqa: PLC0415 - loads torch
    from gradwire.measure.selftest import check_kernels  # noqa: PLC0415

    found = check_kernels(this_device())
    if as_json:
        click.echo(json.dumps({"format": 1, "kernels": [asdict(p) for p in found]}, indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415

        from gradwire.report.selftest import render_parity  # noqa: PLC0415

        Console().print(render_parity(found))
    wrong = [p.op for p in found if p.mismatch is not None]
    if wrong:
        raise CommandError(
            f"{', '.join(wrong)} differ from the reference; set GRADWIRE_BACKEND=reference"
        )
