"""Each kind of page, made once for all tests from made-up results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from gradwire.report import bench_html, render_html, sweep_html, timeline_html
from made_results import bench_result, demo_result, sweep_result, timeline

_BENCH = bench_result()
_SHAKY = replace(_BENCH, cells=_BENCH.cells[2:])
MAKERS: dict[str, Callable[[], str]] = {
    "demo": lambda: render_html(demo_result()),
    "bench": lambda: bench_html(_BENCH),
    "comparison": lambda: bench_html(_BENCH, _SHAKY),
    "sweep": lambda: sweep_html(sweep_result(euro_per_rank_hour=2.0, samples=1e6)),
    "timeline": lambda: timeline_html(timeline(), facts={"Cluster": "Some <CPU>"}),
}
PLOTS = {"demo": 3, "bench": 12, "comparison": 4, "sweep": 4, "timeline": 1}
"""Charts, bars, lanes and the matrix."""

SVGS = {"demo": 2, "bench": 6, "comparison": 2, "sweep": 4, "timeline": 0}


@cache
def page(kind: str) -> str:
    return MAKERS[kind]()
