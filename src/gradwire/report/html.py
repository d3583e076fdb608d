"""The report as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradwire.report.charts import loss_against_bytes, loss_against_time, step_breakdown
from gradwire.report.model import DemoResult
from gradwire.report.summary import summarise
from gradwire.report.words import notes, setting_line, table, verdicts


def render_html(result: DemoResult) -> str:
    """Return the page's text.

    Args:
        result: What the demo measured.
    """
    environment = Environment(
        loader=PackageLoader("gradwire.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    summaries = summarise(result)
    charts = [
        ("Loss against time", loss_against_time(summaries)),
        ("Loss against bytes sent", loss_against_bytes(summaries)),
        ("Where a step's time goes", step_breakdown(summaries)),
    ]
    return environment.get_template("demo.html.j2").render(
        result=result,
        setting=setting_line(result),
        verdicts=verdicts(result),
        methods=[s.method for s in summaries],
        rows=table(summaries),
        # Our own SVG; everything else is escaped.
        charts=[(title, Markup(svg)) for title, svg in charts],  # noqa: S704
        notes=notes(result),
    )
