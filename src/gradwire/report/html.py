"""The demo's report as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

from markupsafe import Markup

from gradwire.report.bars import breakdown
from gradwire.report.charts import loss_against_bytes, loss_against_time
from gradwire.report.lanes import draw_timeline
from gradwire.report.model import DemoResult
from gradwire.report.page import render_page
from gradwire.report.summary import summarise
from gradwire.report.words import notes, setting_line, table, verdicts


def render_html(result: DemoResult) -> str:
    """Return the page's text.

    Args:
        result: What the demo measured.
    """
    summaries = summarise(result)
    charts = [
        ("Loss against time", loss_against_time(summaries)),
        ("Loss against bytes sent", loss_against_bytes(summaries)),
    ]
    return render_page(
        "demo.html.j2",
        result=result,
        setting=setting_line(result),
        verdicts=verdicts(result),
        methods=[s.method for s in summaries],
        rows=table(summaries),
        breakdown=breakdown((s.method.label, s.method.family, s) for s in summaries),
        # Our own SVG; everything else is escaped.
        charts=[(title, Markup(svg)) for title, svg in charts],  # noqa: S704
        timelines=[(m.label, draw_timeline(m.timeline)) for m in result.methods if m.timeline],
        notes=notes(result),
    )
