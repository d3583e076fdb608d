from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from gradwire.report.sweep.html import sweep_html
from gradwire.report.sweep.summary import share_won, slices
from gradwire.report.sweep.text import sweep_text
from gradwire.sim.sweep import SweepResult
from made_results import SWEEP_RATES, sweep_result


def test_winner_is_the_fastest_and_the_first_of_equals():
    [part] = slices(sweep_result())
    assert [part.winner(2, rate) for rate in SWEEP_RATES] == ["int4", "int4", "none"]
    assert share_won(part) == pytest.approx({"none": 1 / 3, "int4": 2 / 3, "int2": 0})


def test_break_even_lies_between_the_rates_around_it():
    [part] = slices(sweep_result())
    # Really: 8.75e7 bytes less in 20 ms and 1 %, about 3.9e9 bytes/s.
    assert 1e9 < part.break_even_bytes_per_s("int4", 2) < 1e10


def test_break_even_outside_the_grid_is_all_or_nothing():
    result = sweep_result()
    fast = [p for p in result.points if p.rate_bytes_per_s < 1e10]
    [part] = slices(SweepResult(result.grid, result.workloads, "", "", tuple(fast)))
    assert part.break_even_bytes_per_s("int4", 2) == math.inf
    slow = [p for p in result.points if p.rate_bytes_per_s == 1e10]
    [part] = slices(SweepResult(result.grid, result.workloads, "", "", tuple(slow)))
    assert part.break_even_bytes_per_s("int4", 2) == 0
    [part] = slices(SweepResult(result.grid, result.workloads, "", ""))
    assert part.break_even_bytes_per_s("int4", 2) is None


def test_efficiency_and_cost_follow_from_the_step():
    [part] = slices(sweep_result(euro_per_rank_hour=2.0, samples=8 * 2 * 3600))
    assert part.efficiency("none", 2, 1e9) == pytest.approx(0.5)
    assert part.train_hours("none", 2, 1e9) == pytest.approx(0.2)
    assert part.euros("none", 2, 1e9) == pytest.approx(0.8)


def test_without_price_there_is_no_cost():
    [part] = slices(sweep_result())
    assert part.euros("none", 2, 1e9) is None
    assert "Cost" not in sweep_html(sweep_result())


def test_text_shows_map_break_even_and_scaling():
    console = Console(width=120, record=True)
    with console.capture() as captured:
        console.print(sweep_text(sweep_result(euro_per_rank_hour=2.0, samples=1e6)))
    text = captured.get()
    for words in ("Which plan wins where", "Break-even", "1024 ranks", "EUR", "Some <CPU>"):
        assert words in text


class _Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href") and not v.startswith("#")]


def test_page_has_every_chart_and_refers_to_nothing():
    page = sweep_html(sweep_result(euro_per_rank_hour=2.0, samples=1e6))
    collector = _Collector()
    collector.feed(page)
    assert collector.tags.count("svg") == 4
    assert collector.tags.count("table") == 4
    assert collector.links == []
    assert not re.search("#0a0b|#01020", page)


def test_page_is_the_same_for_the_same_result():
    assert sweep_html(sweep_result()) == sweep_html(sweep_result())


def test_page_of_an_unfinished_sweep_leaves_gaps():
    result = sweep_result()
    page = sweep_html(SweepResult(result.grid, result.workloads, "toy", "", result.points[:4]))
    assert "4 of 18 points" in page


def test_stored_page_is_made_from_the_stored_result():
    folder = Path(__file__).parents[3] / "docs/assets/results"
    result = SweepResult.from_json((folder / "sweep.json").read_text(encoding="utf-8"))
    assert _without_drawings(sweep_html(result)) == _without_drawings(
        (folder / "sweep.html").read_text(encoding="utf-8")
    )


def _without_drawings(page):
    """Leave out what versions of matplotlib draw differently."""
    return re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
