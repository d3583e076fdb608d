"""The bench report as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from gradwire.plan import Plan
from gradwire.report.bars import Breakdown, breakdown
from gradwire.report.bench.changes import CHANGE_HEADINGS, change_texts, compare_results
from gradwire.report.bench.doubts import legend
from gradwire.report.bench.heat import draw_heat
from gradwire.report.bench.matrix import speedup_matrix
from gradwire.report.bench.overview import overview
from gradwire.report.bench.summary import CellSummary, summarise_bench
from gradwire.report.bench.verdicts import verdict
from gradwire.report.bench.words import (
    BenchRow,
    bench_facts,
    bench_intro,
    bench_notes,
    bench_table,
    cell_setting,
    cell_title,
    reasons,
)
from gradwire.report.charts import MEGABYTES, Curve, above_zero, draw_curves
from gradwire.report.lanes import Drawing, draw_timeline
from gradwire.report.page import render_page
from gradwire.report.results import BenchResult, ModeResult
from gradwire.spec import spec_key
from gradwire.timeline import Timeline


class PlanWords(NamedTuple):
    """One mode's plan: its rules in short, what speaks for it, all of it."""

    label: str
    rules: tuple[str, ...]
    why: tuple[str, ...]
    bits: tuple[tuple[str, str], ...]
    text: str


class CellPage(NamedTuple):
    """All that the page shows of a cell."""

    title: str
    setting: str
    verdict: str
    modes: tuple[ModeResult, ...]
    rows: list[BenchRow]
    reasons: list[tuple[str, str]]
    breakdown: Breakdown
    charts: list[tuple[str, Markup]]
    timelines: list[tuple[str, Drawing]]
    plans: list[PlanWords]


def bench_html(
    result: BenchResult,
    other: BenchResult | None = None,
    *,
    euro_per_rank_hour: float | None = None,
) -> str:
    """Return the page's text.

    Args:
        result: What the bench measured.
        other: A later result, to compare with; then the page is about that one.
        euro_per_rank_hour: Price of one rank, for the cost of a training.
    """
    shown = result if other is None else other
    summaries = summarise_bench(shown, euro_per_rank_hour=euro_per_rank_hour)
    heat = draw_heat(speedup_matrix(summaries))
    return render_page(
        "bench.html.j2",
        result=shown,
        intro=bench_intro(shown),
        facts=bench_facts(shown),
        changes=None if other is None else compare_results(result, other),
        change_headings=CHANGE_HEADINGS,
        change_texts=change_texts,
        overview=overview(summaries),
        heat=heat,
        legend=legend(heat.letters),
        cells=[_cell(summary) for summary in summaries],
        notes=bench_notes(),
    )


def _cell(summary: CellSummary) -> CellPage:
    return CellPage(
        title=cell_title(summary.cell),
        setting=cell_setting(summary.cell),
        verdict=verdict(summary),
        modes=summary.cell.modes,
        rows=bench_table(summary),
        reasons=reasons(summary),
        breakdown=breakdown(
            (m.mode.label, m.mode.family, m.numbers) for m in summary.modes if m.numbers
        ),
        charts=_charts(summary),
        timelines=[
            (m.label, draw_timeline(m.timeline))
            for m in summary.cell.modes
            if m.timeline and _has_transfers(m.timeline)
        ],
        plans=[_plan(m) for m in summary.cell.modes if m.plan or m.why or m.bits],
    )


def _charts(summary: CellSummary) -> list[tuple[str, Markup]]:
    by_time = [_curve(m, m.elapsed_s) for m in summary.cell.modes if m.validations]
    by_bytes = list(_by_bytes(summary))
    if not by_time:
        return []
    about = cell_title(summary.cell)
    label = "Validation loss"
    charts = [
        ("Loss against time", draw_curves(by_time, "Training time, s", label, about=about)),
        (
            "Loss against bytes sent",
            draw_curves(by_bytes, MEGABYTES, label, log=True, about=about),
        ),
    ]
    # Our own SVG; everything else is escaped.
    return [(title, Markup(svg)) for title, svg in charts]  # noqa: S704


def _curve(mode: ModeResult, xs: Sequence[float]) -> Curve:
    points = list(zip(xs, (v.loss for v in mode.validations), strict=False))
    return Curve(mode.label, mode.family, [x for x, _ in points], [y for _, y in points])


def _by_bytes(summary: CellSummary) -> Iterator[Curve]:
    """Yield curves over bytes sent, without the start."""
    for m in summary.modes:
        if m.numbers is None or not m.mode.validations:
            continue
        sent = [v.step * m.numbers.sent_bytes / 1e6 for v in m.mode.validations]
        yield above_zero(_curve(m.mode, sent))


def _has_transfers(timeline: Timeline) -> bool:
    """Whether a timeline says more than that computation waited."""
    return any(s.kind == "transfer" for s in timeline.spans)


def _plan(mode: ModeResult) -> PlanWords:
    rules: tuple[str, ...] = ()
    if mode.plan is not None:
        plan = Plan.from_json(mode.plan)
        rules = tuple(f"{spec_key(rule.reducer)} for {rule.match}" for rule in plan.rules)
    bits = mode.bits or {}
    return PlanWords(
        label=mode.label,
        rules=rules,
        why=mode.why,
        bits=tuple((layer, f"{value:.3g}") for layer, value in bits.items()),
        text=mode.plan or "",
    )
