from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gradwire.report.html import render_html
from gradwire.report.model import DemoResult

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


@pytest.fixture(scope="module")
def page(result: DemoResult) -> str:
    return render_html(result)


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


def test_html_charts_follow_the_theme_and_are_described(page: str, outline: Outline):
    charts = [attrs for tag, attrs in outline.tags if tag == "svg"]
    assert len(charts) == 3
    assert all(c["role"] == "img" and c["aria-label"] for c in charts)
    body = page[page.index("<body") :]
    assert re.search(r"#[0-9a-f]{6}\b", body) is None
    paints = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", body))
    known = {f"var(--series-{i})" for i in range(4)} | {f"var(--part-{i})" for i in range(4)}
    assert paints == {"none", "currentColor"} | known


def test_html_references_lead_to_something(page: str, outline: Outline):
    ids = {attrs["id"] for _, attrs in outline.tags if "id" in attrs}
    named = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page))
    assert named
    assert named <= ids


def test_html_ids_are_unique(outline: Outline):
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_html_escapes_what_it_is_given(page: str):
    assert "Some &lt;CPU&gt;" in page


def test_html_is_the_same_for_the_same_result(result: DemoResult, page: str):
    assert render_html(replace(result)) == page
