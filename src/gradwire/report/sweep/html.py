"""The sweep report as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

from markupsafe import Markup

from gradwire.report.page import render_page
from gradwire.report.sweep.charts import break_even, cost, scaling, win_map
from gradwire.report.sweep.summary import Slice, slices
from gradwire.report.sweep.words import heading, notes, setting, tables, verdicts
from gradwire.sim.sweep import SweepResult


def sweep_html(result: SweepResult) -> str:
    """Return the page's text.

    Args:
        result: What the sweep simulated.
    """
    parts = [
        {"heading": heading(part), "tables": tables(part), "charts": _charts(part)}
        for part in slices(result)
    ]
    return render_page(
        "sweep.html.j2",
        setting=setting(result),
        verdicts=verdicts(result),
        parts=parts,
        notes=notes(),
    )


def _charts(part: Slice) -> list[tuple[str, Markup]]:
    drawn = [
        ("Which plan wins where", win_map(part)),
        ("Below which rate each plan pays", break_even(part)),
        ("Scaling efficiency", scaling(part)),
    ]
    if part.result.euro_per_rank_hour is not None and part.result.samples is not None:
        drawn.append(("Cost to converge", cost(part)))
    # Our own SVG; everything else is escaped.
    return [(title, Markup(svg)) for title, svg in drawn]  # noqa: S704
