"""Pages opened in a browser, as a reader would: all there, all legible, nothing fetched."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import made_pages
from made_pages import MAKERS, PLOTS
from made_results import bench_result

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.skipif(not HAS_PLAYWRIGHT, reason="playwright is not installed"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH"),
]

WIDTHS = (1280, 400)
LEAST_TEXT_PX = 8

SMALL_TEXTS = """least => [...document.querySelectorAll("main *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < least)
  .map(e => e.outerHTML)"""
CUT_TEXTS = """() => [...document.querySelectorAll("svg text")].filter(text => {
    const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
    return inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
      inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
  }).map(text => text.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    sync_playwright = importlib.import_module("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {kind: folder / f"{kind}.html" for kind in MAKERS}
    for kind, path in paths.items():
        path.write_text(made_pages.page(kind), encoding="utf-8")
    return paths


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", MAKERS)
def test_page_is_whole_and_legible(browser, files, kind, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(files[kind].as_uri())
    assert complaints == []
    assert requests == [files[kind].as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.evaluate(SMALL_TEXTS, LEAST_TEXT_PX) == []
    assert page.evaluate(CUT_TEXTS) == []
    plots = page.locator(".plot").all()
    assert len(plots) == PLOTS[kind]
    for plot in plots:
        assert plot.is_visible()
        box = plot.bounding_box()
        assert box["width"] >= 300
        assert box["height"] >= 40
    page.close()


def test_link_opens_the_folded_cell_it_leads_to(browser, files):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, java_script_enabled=False)
    page.goto(files["bench"].as_uri())
    table = page.locator("#cell-2 table").first
    assert page.locator("#cell-1 table").first.is_visible()
    assert not table.is_visible()
    page.locator('a[href="#cell-2"]').first.click()
    table.wait_for(state="visible")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_follows_the_readers_colours(browser, files, scheme):
    page = browser.new_page(color_scheme=scheme)
    page.goto(files["bench"].as_uri())
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}.match(/\\d+/g).map(Number)")
        for name in ("color", "backgroundColor")
    )
    assert (sum(ink) > sum(paper)) == (scheme == "dark")
    page.close()


def test_picture_tool_takes_a_part_of_the_page(tmp_path: Path):
    whole = bench_result()
    small = replace(whole, cells=whole.cells[2:])
    (tmp_path / "bench.json").write_text(small.to_json(), encoding="utf-8")
    tool = Path(__file__).parents[2] / "benchmarks" / "picture.py"
    for name, *options in (("parts.svg", "--cell", "1"), ("matrix.png", "--part", ".matrix")):
        command = [sys.executable, tool, tmp_path / "bench.json", tmp_path / name, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
        assert done.stdout == f"Written: {tmp_path / name}\n"
    assert (tmp_path / "parts.svg").read_text(encoding="utf-8").startswith("<svg xmlns=")
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
