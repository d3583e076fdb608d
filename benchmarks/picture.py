"""Draw pictures for the README and the docs from stored results.

    gradwire demo --json demo.json
    python benchmarks/picture.py demo.json docs/assets/demo.svg
    python benchmarks/picture.py bench.json docs/assets/matrix.png --part .matrix
    python benchmarks/picture.py bench.json docs/assets/cell.png --cell 14 --part "#cell-14"
    python benchmarks/picture.py sweep.json docs/assets/sweep.png --part section

An SVG holds the parts of a step; it is the report's chart, with colours of its own.
A PNG is the report's page, or a part of it, as a browser shows it; `--cell` unfolds a cell.
`make pictures` draws those of the README and the docs.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import click
from PIL import Image

from gradwire.report import (
    BenchResult,
    DemoResult,
    Result,
    SweepResult,
    bench_html,
    read_result,
    render_html,
    sweep_html,
)
from gradwire.report.bars import HasParts
from gradwire.report.bench.summary import summarise_bench
from gradwire.report.charts import step_breakdown
from gradwire.report.page import template_text
from gradwire.report.summary import summarise

_COLOUR = r"--(?:series|part)-\d: #\w+;"
_MARGIN_PX = 16
_COLOURS = 96
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _style() -> str:
    colours = re.findall(_COLOUR, template_text("base.html.j2"))
    light, dark = colours[: len(colours) // 2], colours[len(colours) // 2 :]
    return (
        "<style>svg { color: #1b1f24; font-family: sans-serif; " + " ".join(light) + " }"
        " @media (prefers-color-scheme: dark) { svg { color: #e6e9ec; " + " ".join(dark) + " } }"
        "</style>"
    )


def _parts(result: BenchResult | DemoResult, cell: int) -> list[tuple[str, HasParts]]:
    if isinstance(result, DemoResult):
        return [(s.method.label, s) for s in summarise(result)]
    summaries = summarise_bench(result)
    if not 1 <= cell <= len(summaries):
        raise click.ClickException(f"--cell {cell}: the result has cells 1 to {len(summaries)}")
    return [(m.mode.label, m.numbers) for m in summaries[cell - 1].modes if m.numbers]


def _write_svg(result: Result, cell: int, target: Path) -> None:
    if isinstance(result, SweepResult):
        raise click.ClickException("a sweep has no steps to draw: name a .png")
    svg = step_breakdown(_parts(result, cell))
    start = svg.index(">") + 1
    opening = svg[:start].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    target.write_text(opening + _style() + svg[start:] + "\n", encoding="utf-8")


def _page(result: Result) -> str:
    if isinstance(result, BenchResult):
        return bench_html(result)
    return sweep_html(result) if isinstance(result, SweepResult) else render_html(result)


class _View(NamedTuple):
    part: str
    cell: int
    width: int
    height: int | None
    scheme: Literal["light", "dark"]


def _write_png(result: Result, view: _View, target: Path) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an SVG needs none

    browser_path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser_path is None:
        raise click.ClickException("a PNG needs Chromium: none is on the PATH")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(_page(result), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": view.width, "height": 900},
            color_scheme=view.scheme,
            device_scale_factor=1.5,
        )
        page.goto(file.as_uri())
        cell = f"details:has(> #cell-{view.cell})"
        page.evaluate(f"""for (const part of document.querySelectorAll("{cell}, {cell} details"))
            part.open = true""")
        box = page.locator(view.part).first.bounding_box()
        if box is None:
            raise click.ClickException(f"--part {view.part}: the page shows nothing of that name")
        clip = {
            "x": max(0, box["x"] - _MARGIN_PX),
            "y": max(0, box["y"] - _MARGIN_PX),
            "width": box["width"] + 2 * _MARGIN_PX,
            "height": min(box["height"], view.height or math.inf) + 2 * _MARGIN_PX,
        }
        shot = page.screenshot(full_page=True, clip=clip)
        browser.close()
    # A page has few colours: a palette makes the file a quarter as large.
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--cell", default=1, show_default=True, help="Which cell of a bench.")
@click.option("--part", default="main", show_default=True, help="CSS selector, in a PNG.")
@click.option("--width", default=1280, show_default=True, help="Width of the page, in pixels.")
@click.option("--height", type=int, help="Most of the part's height that is drawn, in pixels.")
@click.option("--dark", is_flag=True, help="Dark colours, in a PNG.")
def main(
    source: Path,
    target: Path,
    *,
    cell: int,
    part: str,
    width: int,
    height: int | None,
    dark: bool,
) -> None:
    """Draw the parts of a step as an SVG file, or a part of the page as a PNG."""
    result = read_result(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".svg":
        _write_svg(result, cell, target)
    elif target.suffix == ".png":
        _write_png(result, _View(part, cell, width, height, "dark" if dark else "light"), target)
    else:
        raise click.ClickException(f"{target} ends in neither .svg nor .png")
    click.echo(f"Written: {target}")


if __name__ == "__main__":
    main()
