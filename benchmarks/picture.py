"""Draw the README's picture from the JSON of a demo.

    gradwire demo --json demo.json
    python benchmarks/picture.py demo.json docs/assets/demo.svg

The chart is the report's; a picture by itself brings its own colours.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import click

from gradwire.report.charts import step_breakdown
from gradwire.report.model import (
    DemoResult,
    Environment,
    MethodResult,
    Settings,
    Step,
    Validation,
)
from gradwire.report.summary import summarise

_COLOUR = r"--(?:series|part)-\d: #\w+;"


def _read(path: Path) -> DemoResult:
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.pop("format") != 1:
        raise click.ClickException(f"{path} is of a format this script does not read")
    methods = tuple(
        MethodResult(
            **{
                **method,
                "steps": tuple(Step(**s) for s in method["steps"]),
                "validations": tuple(Validation(**v) for v in method["validations"]),
            }
        )
        for method in data["methods"]
    )
    settings, environment = Settings(**data["settings"]), Environment(**data["environment"])
    return DemoResult(
        **{**data, "settings": settings, "environment": environment, "methods": methods}
    )


def _style() -> str:
    page = (files("gradwire.report") / "demo.html.j2").read_text(encoding="utf-8")
    colours = re.findall(_COLOUR, page)
    light, dark = colours[: len(colours) // 2], colours[len(colours) // 2 :]
    return (
        "<style>svg { color: #1b1f24; font-family: sans-serif; " + " ".join(light) + " }"
        " @media (prefers-color-scheme: dark) { svg { color: #e6e9ec; " + " ".join(dark) + " } }"
        "</style>"
    )


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(source: Path, target: Path) -> None:
    """Draw the parts of a step, by method, as an SVG file."""
    svg = step_breakdown(summarise(_read(source)))
    start = svg.index(">") + 1
    opening = svg[:start].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(opening + _style() + svg[start:] + "\n", encoding="utf-8")
    click.echo(f"Written: {target}")


if __name__ == "__main__":
    main()
