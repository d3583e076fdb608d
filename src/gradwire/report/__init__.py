"""Results as plain data, and the renderers that turn them into text and HTML.

Names are loaded when they are first used: drawing needs the extra `demo`.

Example:
    >>> from gradwire import report
    >>> report.BenchResult.__name__
    'BenchResult'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.report.bench.export import bench_csv, bench_json
    from gradwire.report.bench.html import bench_html
    from gradwire.report.bench.text import bench_text
    from gradwire.report.html import render_html
    from gradwire.report.model import DemoResult
    from gradwire.report.reading import Result, as_bench, read_result
    from gradwire.report.results import BenchResult
    from gradwire.report.sweep.html import sweep_html
    from gradwire.report.sweep.text import sweep_text
    from gradwire.report.text import render_text
    from gradwire.report.timeline_page import timeline_html
    from gradwire.sim.sweep import SweepResult

_LOADED_ON_USE = {
    "BenchResult": "gradwire.report.results",
    "DemoResult": "gradwire.report.model",
    "Result": "gradwire.report.reading",
    "SweepResult": "gradwire.sim.sweep",
    "as_bench": "gradwire.report.reading",
    "bench_csv": "gradwire.report.bench.export",
    "bench_html": "gradwire.report.bench.html",
    "bench_json": "gradwire.report.bench.export",
    "bench_text": "gradwire.report.bench.text",
    "read_result": "gradwire.report.reading",
    "render_html": "gradwire.report.html",
    "render_text": "gradwire.report.text",
    "sweep_html": "gradwire.report.sweep.html",
    "sweep_text": "gradwire.report.sweep.text",
    "timeline_html": "gradwire.report.timeline_page",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module 'gradwire.report' has no attribute {name!r}")
    return getattr(import_module(_LOADED_ON_USE[name]), name)


__all__ = [
    "BenchResult",
    "DemoResult",
    "Result",
    "SweepResult",
    "as_bench",
    "bench_csv",
    "bench_html",
    "bench_json",
    "bench_text",
    "read_result",
    "render_html",
    "render_text",
    "sweep_html",
    "sweep_text",
    "timeline_html",
]
