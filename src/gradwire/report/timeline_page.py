"""A timeline as an HTML page of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.report.lanes import draw_timeline
from gradwire.report.page import render_page
from gradwire.timeline import Timeline


def timeline_html(
    timeline: Timeline,
    *,
    title: str = "One training step",
    facts: Mapping[str, str] | None = None,
    ranks: Sequence[int] | None = None,
) -> str:
    """Return a page with a lane for computing, codec and link of each rank.

    Args:
        timeline: What each rank did, simulated or measured.
        title: What the page is called.
        facts: Names and values to show above the lanes, units included.
        ranks: Which ranks to draw; by default the first eight.

    Example:
        >>> from gradwire.timeline import Span
        >>> page = timeline_html(Timeline((Span(0, "forward", "fc", 0.0, 0.5),), 1.0))
        >>> "forward fc: 500 ms" in page
        True
    """
    drawing = draw_timeline(timeline, ranks)
    return render_page("timeline.html.j2", title=title, facts=facts or {}, drawing=drawing)
