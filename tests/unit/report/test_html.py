from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import made_pages
from gradwire.report.bench.heat import Heat, draw_heat
from gradwire.report.bench.matrix import speedup_matrix
from gradwire.report.bench.summary import summarise_bench
from gradwire.report.charts import Curve, draw_curves
from gradwire.report.results import BenchResult
from made_pages import MAKERS, PLOTS, SVGS
from made_results import bench_result

_VOID = {"meta", "br", "img", "link", "path", "use"}


class Outline(HTMLParser):
    """Checks that tags are closed in order, and collects what refers elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_endtag(self, tag):
        if tag not in _VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module", params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def page(kind: str) -> str:
    return made_pages.page(kind)


@pytest.fixture
def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


def test_html_refers_to_nothing_outside(page: str, outline: Outline):
    assert [link for link in outline.links if not link.startswith("#")] == []
    assert re.search(r"https?://|@import|url\((?!#)|<script", page) is None


def test_html_closes_every_tag(outline: Outline):
    assert outline.open == []


def test_html_plots_are_all_there_and_described(kind: str, outline: Outline):
    plots = [attrs for _, attrs in outline.tags if "plot" in (attrs.get("class") or "").split()]
    assert len(plots) == PLOTS[kind]
    images = [(tag, attrs) for tag, attrs in outline.tags if attrs.get("role") == "img"]
    assert all(attrs["aria-label"] for _, attrs in images)
    assert [tag for tag, _ in images].count("svg") == SVGS[kind]


def test_html_colours_follow_the_theme(page: str):
    body = page[page.index("<body") :]
    assert re.search(r"#[0-9a-f]{6}\b", body) is None
    paints = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", body))
    assert all(
        p in {"none", "currentColor", "var(--page)"} or p.startswith("var(--series-")
        for p in paints
    )


def test_html_references_lead_to_something(page: str, outline: Outline):
    ids = {attrs["id"] for _, attrs in outline.tags if "id" in attrs}
    named = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page))
    assert named <= ids


def test_html_ids_are_unique(outline: Outline):
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_html_escapes_what_it_is_given(page: str):
    assert "Some &lt;CPU&gt;" in page
    assert "<fp8>" not in page


@pytest.mark.parametrize("kind", ["demo", "timeline"])
def test_html_is_the_same_for_the_same_result(kind: str):
    assert MAKERS[kind]() == made_pages.page(kind)


def test_bench_page_marks_doubts_and_says_why():
    page = made_pages.page("bench")
    assert '<a href="#cell-3-d" aria-label="doubt d">d</a>' in page
    assert (
        '<dt id="cell-3-d">d</dt><dd>the ranks ended with different parameters: gradwire int4'
        in page
    )
    assert "did not run: gradwire fp8 (no kernel for &lt;fp8&gt;" in page


def test_bench_page_shows_the_plan_and_why():
    page = made_pages.page("bench")
    assert "The link takes longer than encoding." in page
    assert "two_phase(quantize bits=4) for *" in page
    assert '<summary>gradwire int4</summary>\n<p class="setting">Timeline of a step of' in page


def test_bench_page_folds_all_cells_but_the_first():
    page = made_pages.page("bench")
    assert page.count('<details class="cell" open>') == 1
    assert page.count('<details class="cell">') == 2
    assert page.index('class="matrix"') < page.index('<details class="cell" open>')


def test_axis_of_bytes_has_numbers_over_many_decades():
    curve = Curve("int4", "gradwire", [1e-5, 0.1, 2000.0], [3.0, 2.0, 1.0])
    svg = draw_curves([curve], "Sent, MB", "Loss", log=True)
    numbers = re.findall(r">([0-9.e+-]+)</text>", svg)
    assert {"0.01", "1", "100"} <= set(numbers)


def test_longer_side_of_the_matrix_runs_down():
    whole = bench_result()
    assert [words for words, _ in _heat(whole).columns] == [
        ("vgg,", "4 ranks,", "100 Mbit/s,", "1 ms"),
        ("text,", "2 ranks,", "10 Gbit/s,", "1 ms"),
        ("digits,", "2 ranks,", "no link limit"),
    ]
    wide = _heat(replace(whole, cells=whole.cells[2:] * 3))
    assert [words for words, _ in wide.columns] == [("plain DDP",), ("gradwire int4",)]
    assert [title.cell for title, _ in wide.rows] == [1, 2, 3]


def test_matrix_shows_steps_where_plain_ddp_did_not_run():
    whole = bench_result()
    cell = whole.cells[0]
    heat = _heat(replace(whole, cells=(replace(cell, modes=cell.modes[1:]),)))
    ((_, (first,)), *_) = heat.rows
    assert (first.text, first.below, first.colour, first.marks) == ("534 ms", (), "", "r")


def _heat(result: BenchResult) -> Heat:
    return draw_heat(speedup_matrix(summarise_bench(result)))
