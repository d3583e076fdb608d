"""Charts as inline SVG that follow the page's colours, light and dark."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.report.model import MethodResult
from gradwire.report.summary import Summary, smoothed_losses, training_times

_INK = "#010203"
_SERIES = ["#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06"]
_PARTS = ["#0c0d01", "#0c0d02", "#0c0d03", "#0c0d04"]
_VARIABLES = (
    {_INK: "currentColor"}
    | {colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES)}
    | {colour: f"var(--part-{i})" for i, colour in enumerate(_PARTS)}
)
_DASHES = [":", "--", "-.", "-", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1))]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradwire",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
}


def loss_against_time(summaries: Sequence[Summary]) -> str:
    """Draw the smoothed training loss over training time."""
    return _losses(summaries, "Training time, s", lambda m: training_times(m.steps))


def loss_against_bytes(summaries: Sequence[Summary]) -> str:
    """Draw the smoothed training loss over bytes sent."""

    def sent(method: MethodResult) -> list[float]:
        total, points = 0.0, []
        for step in method.steps:
            total += step.sent_bytes / 1e6
            points.append(max(total, 1e-6))
        return points

    return _losses(summaries, "Sent by one rank, MB (logarithmic)", sent, log=True)


def step_breakdown(summaries: Sequence[Summary]) -> str:
    """Draw the parts of a median step as stacked bars."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(0.55 * len(summaries) + 1.3)
        labels = [s.method.label for s in summaries]
        parts = ("forward", "backward", "exposed communication", "optimiser")
        spreads = [(s.forward_s, s.backward_s, s.exposed_s, s.optimiser_s) for s in summaries]
        left = [0.0] * len(summaries)
        for i, part in enumerate(parts):
            widths = [1e3 * spread[i].median for spread in spreads]
            axes.barh(labels, widths, left=left, color=_PARTS[i], label=part, height=0.6)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("Medians of the parts of a step, ms")
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4)
        return _svg(figure, "Parts of a median step, as stacked bars; the table has the numbers")


def _losses(
    summaries: Sequence[Summary],
    xlabel: str,
    places: Callable[[MethodResult], list[float]],
    *,
    log: bool = False,
) -> str:
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(4.2)
        for i, summary in enumerate(summaries):
            method = summary.method
            axes.plot(
                places(method),
                smoothed_losses(method.steps),
                color=_SERIES[i % len(_SERIES)],
                linestyle=_DASHES[i % len(_DASHES)],
                linewidth=3 if method.family == "gradwire" else 2,
                label=method.label,
            )
        if log:
            axes.set_xscale("log")
        axes.set_xlabel(xlabel)
        axes.set_ylabel("Training loss, nats (mean of 5 steps)")
        axes.legend()
        what = f"Training loss against {xlabel[0].lower()}{xlabel[1:]}, a line a method"
        return _svg(figure, what)


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.5, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Figure, description: str) -> str:
    """Render a figure with the page's variables in place of colours, and a description."""
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    body = body[body.index(">", body.index("<svg")) + 1 :].replace("xlink:href", "href")
    body = re.sub(r"font-family: [^;]+;", "font-family: inherit;", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    digest = hashlib.blake2b(description.encode(), digest_size=4)
    body = _with_own_ids(body, f"chart-{digest.hexdigest()}")
    return f'<svg {view[0]} role="img" aria-label="{description}">{body}'


def _with_own_ids(body: str, prefix: str) -> str:
    """Drop ids nothing refers to; prefix the others, as a page holds several charts."""
    used = set(re.findall(r"#([\w-]+)[\")]", body))
    body = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", body)
    for name in used:
        body = re.sub(rf'(id="|#){name}([")])', rf"\g<1>{prefix}-{name}\2", body)
    return body
