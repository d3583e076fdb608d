"""Results as plain data, and the renderers that turn them into text and HTML.

Renderers are loaded when they are first used: drawing needs the extra `demo`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.report.bench.html import bench_html
    from gradwire.report.bench.text import bench_text
    from gradwire.report.timeline_page import timeline_html

_LOADED_ON_USE = {
    "bench_html": "gradwire.report.bench.html",
    "bench_text": "gradwire.report.bench.text",
    "timeline_html": "gradwire.report.timeline_page",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module 'gradwire.report' has no attribute {name!r}")
    return getattr(import_module(_LOADED_ON_USE[name]), name)


__all__ = ["bench_html", "bench_text", "timeline_html"]
